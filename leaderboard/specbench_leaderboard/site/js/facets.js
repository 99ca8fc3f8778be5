// Filter controls: groups of check boxes that open, and plain selects. They only read and write the view.
(function (S) {
  "use strict";

  // values offered: [value, text]; several may be chosen, none means all
  S.facet = function (name, title, values, view, onChange) {
    const chosen = new Set(view[name] || []);
    const count = S.el("span", { class: "count" });
    const boxes = values.map(function ([value, text]) {
      const box = S.el("input", { type: "checkbox", value: value });
      box.checked = chosen.has(value);
      box.addEventListener("change", function () {
        if (box.checked) chosen.add(value);
        else chosen.delete(value);
        show();
        onChange(name, [...chosen]);
      });
      return S.el("label", {}, box, S.el("span", {}, text));
    });
    function show() {
      count.textContent = chosen.size ? String(chosen.size) : "";
      count.setAttribute("aria-label", chosen.size ? chosen.size + " chosen" : "");
    }
    show();
    const summary = S.el("summary", {}, title, count);
    const details = S.el("details", { class: "facet", "data-facet": name }, summary, S.el("fieldset", {}, S.el("legend", {}, title), ...boxes));
    details.addEventListener("keydown", function (event) {
      if (event.key === "Escape" && details.open) {
        details.open = false;
        summary.focus();
      }
    });
    details.addEventListener("toggle", function () {
      if (!details.open) return;
      for (const other of document.querySelectorAll("details.facet[open]")) if (other !== details) other.open = false;
    });
    return details;
  };

  S.select = function (name, title, values, current, onChange) {
    const select = S.el("select", { name: name }, ...values.map(([value, text]) => S.el("option", { value: value }, text)));
    select.value = current;
    select.addEventListener("change", () => onChange(name, select.value));
    return S.el("label", {}, title, select);
  };

  document.addEventListener("click", function (event) {
    for (const open of document.querySelectorAll("details.facet[open]")) if (!open.contains(event.target)) open.open = false;
  });
})(window.Specbench);
