// Data files by name. Each is a script that calls Specbench.put; it is loaded once, when first asked for.
window.Specbench = window.Specbench || {};
(function (S) {
  "use strict";
  const held = new Map();
  const waiting = new Map();
  const root = document.documentElement.dataset.root;

  S.put = function (name, data) {
    held.set(name, data);
  };

  S.held = (name) => held.get(name);

  S.get = function (name) {
    if (held.has(name)) return Promise.resolve(held.get(name));
    if (waiting.has(name)) return waiting.get(name);
    const promise = new Promise(function (resolve, reject) {
      const script = document.createElement("script");
      script.src = root + "data/" + name + ".js";
      script.onload = () => (held.has(name) ? resolve(held.get(name)) : reject(new Error("no data in " + name)));
      script.onerror = () => reject(new Error("cannot load " + name));
      document.head.append(script);
    });
    waiting.set(name, promise);
    return promise;
  };

  S.script = function (file) {
    if (waiting.has(file)) return waiting.get(file);
    const promise = new Promise(function (resolve, reject) {
      const script = document.createElement("script");
      script.src = root + file;
      script.onload = resolve;
      script.onerror = () => reject(new Error("cannot load " + file));
      document.head.append(script);
    });
    waiting.set(file, promise);
    return promise;
  };
})(window.Specbench);
