// The view is in the address bar: one parameter a filter, a value for every choice. Reading it back gives the view.
(function (S) {
  "use strict";
  S.readView = function () {
    const view = {};
    for (const [name, value] of new URLSearchParams(location.hash.slice(1))) {
      (view[name] = view[name] || []).push(value);
    }
    return view;
  };

  S.writeView = function (view) {
    const parameters = new URLSearchParams();
    for (const name of Object.keys(view).sort()) for (const value of view[name]) parameters.append(name, value);
    const text = parameters.toString();
    const hash = text ? "#" + text : "";
    if (hash !== location.hash) history.replaceState(null, "", hash || location.pathname + location.search);
  };

  // one value of a parameter, or what stands for none
  S.one = (view, name, otherwise) => (view[name] && view[name].length ? view[name][0] : otherwise);
})(window.Specbench);
