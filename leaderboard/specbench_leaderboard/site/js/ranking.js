// The first page: filters, groups that meet them, their tables, and the downloads of what is shown.
(function (S) {
  "use strict";
  const FACETS = [
    ["drafter", "Drafter"],
    ["target", "Target"],
    ["k", "Draft length"],
    ["policy", "Policy"],
    ["load", "Load"],
    ["temperature", "Temperature"],
    ["device", "Device"],
  ];
  const GROUP_FACETS = ["target", "load", "temperature", "device"];
  const GROUPS_AT_ONCE = 3;
  const ROWS_AT_ONCE = 25;
  const ROWS_TO_LOAD = 100;
  const form = document.getElementById("filters");
  const board = document.getElementById("board");
  const summary = document.getElementById("summary");
  let index = null;
  let raw = {};
  let shownGroups = GROUPS_AT_ONCE;
  const unfolded = new Set();
  let turn = 0;

  // what the address bar says, with everything it leaves open filled in
  function viewOf(parameters) {
    const rank = S.one(parameters, "rank", index.columns.find((c) => c.ranks).key);
    const [sort, way] = S.one(parameters, "sort", "").split(":");
    const known = ["method", "memory", "verdict", "n", ...index.columns.map((c) => c.key)];
    const key = known.includes(sort) ? sort : rank;
    const column = index.columns.find((c) => c.key === key);
    const falling = way ? way === "desc" : column ? column.better === "higher" : false;
    return {
      rank: index.columns.some((c) => c.ranks && c.key === rank) ? rank : index.columns.find((c) => c.ranks).key,
      sort: key,
      sign: falling ? -1 : 1,
      scope: S.one(parameters, "domain", ""),
      group: parameters.group || [],
      filters: Object.fromEntries(FACETS.map(([name]) => [name, new Set(parameters[name] || [])])),
    };
  }

  const meets = (chosen, values) => chosen.size === 0 || values.some((value) => chosen.has(String(value)));

  function groupPasses(group, view) {
    if (view.group.length && !view.group.includes(group.id)) return false;
    if (view.scope && !group.facets.domain.includes(view.scope)) return false;
    return FACETS.every(([name]) => meets(view.filters[name], group.facets[name]));
  }

  function rowPasses(row, view) {
    const f = view.filters;
    if (view.scope && !row.cells[view.scope]) return row.status !== "ok" && rowMeets(row, f);
    return rowMeets(row, f);
  }

  const rowMeets = (row, f) => meets(f.drafter, [row.name]) && meets(f.k, [row.k]) && meets(f.policy, [row.family]);

  async function rowsOf(group) {
    const names = Array.from({ length: group.shards }, (_, i) => "rows-" + group.id + "-" + i);
    const parts = await Promise.all(names.map((name) => S.get(name)));
    return parts.flat();
  }

  // rows already here; for the rest of a long group, only what the first screen needs
  async function rowsToShow(group, view) {
    const narrow = view.sort === index.columns.find((c) => c.ranks).key && view.rank === view.sort && view.sign < 0;
    const plain = narrow && !view.scope && FACETS.every(([name]) => GROUP_FACETS.includes(name) || view.filters[name].size === 0);
    if (!plain || group.rows <= ROWS_TO_LOAD || unfolded.has(group.id)) return [await rowsOf(group), true];
    return [await S.get("rows-" + group.id + "-0"), false];
  }

  function change(name, values) {
    const list = Array.isArray(values) ? values : values ? [values] : [];
    if (list.length) raw[name] = list;
    else delete raw[name];
    if (name === "rank") delete raw.sort;
    shownGroups = GROUPS_AT_ONCE;
    S.writeView(raw);
    draw();
  }

  function sortBy(key) {
    const view = viewOf(raw);
    const column = index.columns.find((c) => c.key === key);
    const first = column ? (column.better === "higher" ? "desc" : "asc") : "asc";
    const way = view.sort === key ? (view.sign < 0 ? "asc" : "desc") : first;
    raw.sort = [key + ":" + way];
    S.writeView(raw);
    draw(key);
  }

  function facetValues(name) {
    const values = new Set();
    for (const group of index.groups) for (const value of group.facets[name]) values.add(String(value));
    const sorted = [...values].sort((a, b) => a.localeCompare(b, "en", { numeric: true }));
    return sorted.map((value) => [value, name === "temperature" && value === "0" ? "0 (greedy)" : value]);
  }

  function drawForm() {
    const view = viewOf(raw);
    const domains = [["", "All domains"], ...facetValues("domain").map(([value, text]) => [value, text])];
    const ranks = index.columns.filter((c) => c.ranks).map((c) => [c.key, c.title]);
    const fields = FACETS.map(([name, title]) => S.facet(name, title, facetValues(name), raw, change));
    const actions = S.el(
      "div",
      { class: "actions" },
      S.el("button", { type: "button", id: "reset", onclick: reset }, "Reset"),
      S.el("button", { type: "button", id: "csv", onclick: () => download("csv") }, "CSV"),
      S.el("button", { type: "button", id: "json", onclick: () => download("json") }, "JSON")
    );
    form.replaceChildren(
      S.select("rank", "Rank by", ranks, view.rank, change),
      S.select("domain", "Domain", domains, view.scope, change),
      ...fields,
      actions
    );
    form.hidden = false;
    form.addEventListener("submit", (event) => event.preventDefault());
  }

  function reset() {
    raw = {};
    S.writeView(raw);
    drawForm();
    draw();
    document.getElementById("reset").focus();
  }

  function factsOf(group) {
    const pairs = Object.entries(group.facts).map(([name, value]) => S.el("div", {}, S.el("dt", {}, name), S.el("dd", {}, value)));
    return S.el("dl", { class: "facts" }, ...pairs);
  }

  function apartOf(group) {
    if (!group.nearest) return null;
    const list = S.el("ul", {}, ...group.differences.map((text) => S.el("li", {}, text)));
    const link = S.el("a", { href: "groups/" + group.nearest + ".html" }, "group " + group.nearest);
    return S.el("details", { class: "apart" }, S.el("summary", {}, "Why these rows stand alone"), S.el("p", {}, "Nearest is ", link, "; what differs:"), list);
  }

  function drawGroup(group, rows, whole, view) {
    const passing = S.sorted(rows.filter((row) => rowPasses(row, view)), view);
    if (!passing.length) return [null, 0];
    const limit = unfolded.has(group.id) ? Infinity : ROWS_AT_ONCE;
    const total = whole ? passing.length : group.rows;
    const unranked = whole ? passing.filter((row) => S.placeOf(row, view) === null).length : group.rows - group.ranked;
    const off = unranked ? ", " + unranked + " of them not ranked" : "";
    const title = [group.facts.target, group.facts.device, group.facts.sampling, group.facts.load].join(", ");
    const more = () => {
      unfolded.add(group.id);
      draw();
    };
    const section = S.el(
      "section",
      {},
      S.el("h2", {}, S.el("a", { href: "groups/" + group.id + ".html" }, title)),
      factsOf(group),
      S.drawTable(group, passing, view, index.columns, limit, sortBy),
      total > limit ? S.el("p", {}, S.el("button", { type: "button", class: "more", onclick: more }, "Show all " + S.plural(total, "row") + off)) : null,
      apartOf(group)
    );
    return [section, total];
  }

  async function draw(focus) {
    const mine = ++turn;
    const started = performance.now();
    const view = viewOf(raw);
    const groups = index.groups.filter((group) => groupPasses(group, view));
    const sections = [];
    let count = 0;
    let at = 0;
    for (; at < groups.length && sections.length < shownGroups; at++) {
      const [rows, whole] = await rowsToShow(groups[at], view);
      if (mine !== turn) return; // a newer view is on its way
      const [section, total] = drawGroup(groups[at], rows, whole, view);
      if (section) sections.push(section);
      count += total;
    }
    const left = groups.length - at;
    if (left > 0) sections.push(moreGroups(left));
    if (!sections.length) sections.push(S.el("p", { class: "empty" }, "No row meets these filters."));
    board.replaceChildren(...sections);
    summary.textContent = count
      ? S.plural(count, "row") + " in " + S.plural(sections.length - (left > 0 ? 1 : 0), "group") + " shown" + (left > 0 ? ", " + S.plural(left, "more group") + " below" : "")
      : "No row meets these filters";
    summary.hidden = false;
    if (focus) board.querySelector('[data-sort="' + focus + '"]')?.focus();
    board.dataset.drawn = String(turn);
    board.dataset.ms = (performance.now() - started).toFixed(1);
    ahead(groups.slice(0, at));
  }

  // while nobody waits: the rest of the groups on the screen, which the next filter will ask for
  function ahead(groups) {
    const load = () => groups.forEach((group) => rowsOf(group).catch(() => {}));
    if ("requestIdleCallback" in window) requestIdleCallback(load);
    else setTimeout(load, 200);
  }

  function moreGroups(left) {
    const show = () => {
      shownGroups += GROUPS_AT_ONCE;
      draw();
    };
    return S.el("p", {}, S.el("button", { type: "button", class: "more-groups", onclick: show }, "Show " + S.plural(Math.min(left, GROUPS_AT_ONCE), "more group")));
  }

  // every row of every group that passes, also of groups further down
  async function download(kind) {
    const view = viewOf(raw);
    const found = [];
    for (const group of index.groups.filter((one) => groupPasses(one, view))) {
      const rows = (await rowsOf(group)).filter((row) => rowPasses(row, view));
      for (const row of S.sorted(rows, view)) found.push(flat(group, row, view));
    }
    const heads = Object.keys(found[0] || {});
    if (kind === "csv") S.save("specbench-ranking.csv", "text/csv", S.csv(heads, found.map((one) => heads.map((head) => one[head]))));
    else S.save("specbench-ranking.json", "application/json", JSON.stringify(found, null, 1) + "\n");
  }

  function flat(group, row, view) {
    const place = S.placeOf(row, view);
    const found = {
      group: group.id,
      target: group.facts.target,
      device: group.facts.device,
      sampling: group.facts.sampling,
      load: group.facts.load,
      metrics_version: group.facts["metrics version"],
      domain: view.scope || null,
      ranked_by: view.rank,
      rank: place,
      not_ranked_because: place === null ? S.whyNot(row, view, index.columns) : null,
      run_id: row.id,
      method: row.method,
      drafter: row.name,
      draft_length: row.k,
      policy: row.policy,
      seed: row.seed,
      status: row.status,
      verdict: row.verdict || null,
      requests: row.n,
      peak_memory_bytes: row.memory[0],
    };
    for (const column of index.columns) {
      const cell = S.cellOf(row, column.key, view.scope) || [];
      found[column.key] = cell.length ? cell[0] : null;
      found[column.key + "_low"] = cell[1] ?? null;
      found[column.key + "_high"] = cell[2] ?? null;
    }
    return found;
  }

  S.get("index").then(function (data) {
    index = data;
    raw = S.readView();
    drawForm();
    addEventListener("hashchange", function () {
      raw = S.readView();
      drawForm();
      draw();
    });
    return draw();
  }).catch(function (error) {
    summary.hidden = false;
    summary.textContent = "The data could not be loaded (" + error.message + "); the table below is complete.";
  });
})(window.Specbench);
