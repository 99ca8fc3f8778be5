// One group's table: rows that pass the filters, ranked ones first, each unranked one with its reason.
(function (S) {
  "use strict";
  const cellOf = (row, key, scope) => (row.cells[scope] || {})[key];
  const rankOf = (cell) => (cell && cell.length > 6 ? cell[6] : null);
  S.cellOf = cellOf;

  // the columns that are no estimates
  const PLAIN = {
    method: (row) => row.label + " " + row.name + " " + row.policy,
    memory: (row) => row.memory[0],
    verdict: (row) => row.verdict,
    n: (row) => row.n,
  };

  S.placeOf = (row, view) => (row.reasons.length ? null : rankOf(cellOf(row, view.rank, view.scope)));

  S.whyNot = function (row, view, columns) {
    if (row.reasons.length) return row.reasons.join("; ");
    if (row.method === "vanilla" && view.rank === "speed_up") return "plain decoding is what the others are compared with";
    const column = columns.find((c) => c.key === view.rank);
    if (column.timed && row.untimed.length) return row.untimed.join("; ");
    return "no " + column.title + (view.scope ? " for domain " + view.scope : "") + " in the record";
  };

  // sorted copy: ranked rows, then the others, each by the chosen column; what is absent goes last
  S.sorted = function (rows, view) {
    const value = function (row) {
      if (PLAIN[view.sort]) return PLAIN[view.sort](row);
      const cell = cellOf(row, view.sort, view.scope);
      return cell ? cell[0] : null;
    };
    const keyed = rows.map((row, i) => ({ row, i, key: value(row), off: S.placeOf(row, view) === null ? 1 : 0 }));
    keyed.sort(function (a, b) {
      if (a.off !== b.off) return a.off - b.off;
      if (a.key === null || b.key === null || a.key === undefined || b.key === undefined) {
        const lack = (a.key === null || a.key === undefined ? 1 : 0) - (b.key === null || b.key === undefined ? 1 : 0);
        return lack || a.i - b.i;
      }
      const order = a.key < b.key ? -1 : a.key > b.key ? 1 : 0;
      return order * view.sign || a.i - b.i;
    });
    return keyed.map((one) => one.row);
  };

  function number(cell) {
    if (!cell) return S.el("td", { class: "num absent" }, "–");
    const [value, bounds] = S.parts(cell[3]);
    return S.el(
      "td",
      { class: "num", "data-value": JSON.stringify(cell[0]), title: cell[4] ? "n = " + cell[4] : null },
      S.el("span", { class: "value" }, value),
      bounds ? S.el("span", { class: "bounds" }, bounds) : null,
      cell[5] ? S.el("span", { class: "bounds" }, cell[5]) : null
    );
  }

  function methodCell(row, why) {
    const details = [row.name === row.method ? null : row.name.slice(row.method.length + 3), row.policy, row.seed === null || row.seed === undefined ? null : "seed " + row.seed];
    return S.el(
      "th",
      { scope: "row" },
      S.el("a", { href: "runs/" + row.id + ".html" }, row.label),
      S.el("span", { class: "sub" }, details.filter(Boolean).join(" · ")),
      why ? S.el("span", { class: "why" }, "Not ranked: " + why) : null
    );
  }

  function line(row, view, columns, all) {
    const place = S.placeOf(row, view);
    const verdict = row.verdict
      ? S.el("span", { class: "verdict " + row.verdict, title: row.evidence || null }, row.verdict)
      : S.el("span", { class: "absent" }, "–");
    return S.el(
      "tr",
      { class: place === null ? "unranked" : null, "data-run": row.id },
      S.el("td", { class: "num place" }, place === null ? "–" : String(place)),
      methodCell(row, place === null ? S.whyNot(row, view, all) : ""),
      ...columns.map((column) => number(cellOf(row, column.key, view.scope))),
      S.el("td", { class: "num", "data-value": row.memory[0] }, row.memory[1]),
      S.el("td", {}, verdict),
      S.el("td", { class: "num", "data-value": row.n }, String(row.n))
    );
  }

  function header(key, title, unit, help, view, onSort, numeric) {
    const current = view.sort === key;
    const button = S.el("button", { type: "button", class: "sort", "data-sort": key, onclick: () => onSort(key) }, title);
    return S.el(
      "th",
      {
        scope: "col",
        class: numeric ? "num" : null,
        title: help,
        "aria-sort": current ? (view.sign < 0 ? "descending" : "ascending") : null,
      },
      button,
      unit ? S.el("span", { class: "unit" }, " " + unit) : null
    );
  }

  // the table of a group; `limit` rows of it are drawn
  S.drawTable = function (group, rows, view, all, limit, onSort) {
    const columns = all.filter((c) => c.key === view.rank || rows.some((row) => cellOf(row, c.key, view.scope)));
    const ranked = columns.find((column) => column.key === view.rank);
    const domain = view.scope ? ", domain " + view.scope : "";
    const caption = "Ranked by " + ranked.title + domain + ", sorted by " + (columns.find((c) => c.key === view.sort) || { title: view.sort }).title;
    const head = S.el(
      "tr",
      {},
      S.el("th", { scope: "col", class: "num" }, "#"),
      header("method", "Method", "", null, view, onSort, false),
      ...columns.map((c) => header(c.key, c.title, c.unit, c.help, view, onSort, true)),
      header("memory", "Memory", "", "Peak memory of the run", view, onSort, true),
      header("verdict", "Lossless", "", "Is the text still plain decoding's?", view, onSort, false),
      header("n", "n", "", "Requests measured", view, onSort, true)
    );
    const body = rows.slice(0, limit).map((row) => line(row, view, columns, all));
    const table = S.el("table", { class: "ranking", "data-group": group.id }, S.el("caption", {}, caption), S.el("thead", {}, head), S.el("tbody", {}, ...body));
    return S.el("div", { class: "scroll", role: "region", "aria-label": caption, tabindex: "0" }, table);
  };
})(window.Specbench);
