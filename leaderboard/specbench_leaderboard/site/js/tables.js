// Sorting for the tables of a group's page, in place.
(function (S) {
  "use strict";
  for (const table of document.querySelectorAll("table.ranking")) {
    const heads = [...table.tHead.rows[0].cells];
    const body = table.tBodies[0];
    heads.forEach(function (head, column) {
      const text = head.firstChild;
      const button = S.el("button", { type: "button", class: "sort", onclick: () => sort(column) });
      head.insertBefore(button, text);
      button.append(text);
    });
    function sort(column) {
      const numeric = heads[column].classList.contains("num");
      const falling = heads[column].getAttribute("aria-sort") !== "descending";
      const value = function (row) {
        const cell = row.cells[column];
        if (!numeric) return cell.textContent.trim();
        const text = cell.dataset.value ?? cell.textContent.trim();
        return text === "" || text === "–" || Number.isNaN(Number(text)) ? null : Number(text);
      };
      const rows = [...body.rows].map((row, i) => ({ row, i, key: value(row), off: row.classList.contains("unranked") ? 1 : 0 }));
      rows.sort(function (a, b) {
        if (a.off !== b.off) return a.off - b.off;
        if (a.key === null || b.key === null) return (a.key === null ? 1 : 0) - (b.key === null ? 1 : 0) || a.i - b.i;
        const order = a.key < b.key ? -1 : a.key > b.key ? 1 : 0;
        return (falling ? -order : order) || a.i - b.i;
      });
      body.append(...rows.map((one) => one.row));
      heads.forEach((head) => head.removeAttribute("aria-sort"));
      heads[column].setAttribute("aria-sort", falling ? "descending" : "ascending");
    }
  }
})(window.Specbench);
