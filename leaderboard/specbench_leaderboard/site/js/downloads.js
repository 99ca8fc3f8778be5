// Files made in the page, from the data that the page shows.
(function (S) {
  "use strict";
  function field(value) {
    if (value === null || value === undefined) return "";
    const text = String(value);
    return /[",\n\r]/.test(text) ? '"' + text.replace(/"/g, '""') + '"' : text;
  }

  S.csv = function (heads, rows) {
    return [heads, ...rows].map((row) => row.map(field).join(",")).join("\n") + "\n";
  };

  S.save = function (name, type, text) {
    const link = S.el("a", { href: URL.createObjectURL(new Blob([text], { type: type })), download: name });
    document.body.append(link);
    link.click();
    link.remove();
    setTimeout(() => URL.revokeObjectURL(link.href), 60000);
  };
})(window.Specbench);
