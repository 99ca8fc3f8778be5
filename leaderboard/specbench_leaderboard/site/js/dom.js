// Elements from data. Text is always set as text, never as markup.
window.Specbench = window.Specbench || {};
(function (S) {
  "use strict";
  S.el = function (tag, attributes, ...children) {
    const node = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes || {})) {
      if (value === null || value === undefined || value === false) continue;
      if (name === "class") node.className = value;
      else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
      else node.setAttribute(name, value === true ? "" : String(value));
    }
    node.append(...children.filter((child) => child !== null && child !== undefined && child !== ""));
    return node;
  };

  // "2.25 [2.10,2.41]" as value and interval
  S.parts = function (text) {
    const at = text.indexOf(" ");
    return at < 0 ? [text, ""] : [text.slice(0, at), text.slice(at + 1)];
  };

  S.plural = (count, word) => count.toLocaleString("en") + " " + word + (count === 1 ? "" : "s");

  S.table = function (caption, heads, rows) {
    const head = S.el("tr", {}, ...heads.map((h) => S.el("th", { scope: "col", class: h.num ? "num" : null }, h.title)));
    const body = rows.map((cells) =>
      S.el(
        "tr",
        {},
        ...cells.map(function (cell, i) {
          const attributes = { class: heads[i].num ? "num" : null };
          if (i === 0) return S.el("th", { scope: "row", ...attributes }, cell);
          return S.el("td", attributes, cell);
        })
      )
    );
    const table = S.el("table", { class: "plain" }, S.el("caption", {}, caption), S.el("thead", {}, head), S.el("tbody", {}, ...body));
    return S.el("div", { class: "scroll", role: "region", "aria-label": caption, tabindex: "0" }, table);
  };
})(window.Specbench);
