// The charts' page: which family, load and drafters are drawn, and the figures in order. The library comes last.
(function (S) {
  "use strict";
  const form = document.getElementById("chart-filters");
  const summary = document.getElementById("summary");
  const area = document.getElementById("charts");
  let index = null;
  let raw = {};
  let points = [];
  let turn = 0;
  const nodes = {};

  const family = () => index.families.find((one) => one.id === S.one(raw, "family", "")) || index.families[0];
  const loads = () => [...new Set(points.map((p) => p.load))].sort((a, b) => a.localeCompare(b, "en", { numeric: true }));

  function load() {
    const wanted = S.one(raw, "load", "");
    if (loads().includes(wanted)) return wanted;
    const counts = loads().map((name) => [name, points.filter((p) => p.load === name).length]);
    return counts.reduce((a, b) => (b[1] > a[1] ? b : a), ["", 0])[0];
  }

  function drawn() {
    const chosen = new Set(raw.drafter || []);
    const all = S.one(raw, "unranked", "yes") !== "no";
    return points.filter((p) => (chosen.size === 0 || chosen.has(p.name)) && (all || !p.reasons.length));
  }

  function change(name, values) {
    const list = Array.isArray(values) ? values : values ? [values] : [];
    if (list.length) raw[name] = list;
    else delete raw[name];
    if (name === "family") raw = list.length ? { family: list } : {};
    S.writeView(raw);
    if (name === "family") open();
    else draw();
  }

  function drawForm() {
    const families = index.families.map((one) => [one.id, [one.facts.target, one.facts.device, one.facts.sampling].join(", ") + " (" + S.plural(one.points, "run") + ")"]);
    const names = [...new Set(points.map((p) => p.name))].sort().map((name) => [name, name]);
    const box = S.el("input", { type: "checkbox", id: "unranked" });
    box.checked = S.one(raw, "unranked", "yes") !== "no";
    box.addEventListener("change", () => change("unranked", box.checked ? [] : ["no"]));
    form.replaceChildren(
      S.select("family", "Runs of", families, family().id, change),
      S.select("load", "Load", loads().map((name) => [name, name]), load(), change),
      S.facet("drafter", "Drafter", names, raw, change),
      S.el("label", {}, "Unranked runs", S.el("span", {}, box, " show, hollow"))
    );
    form.hidden = false;
  }

  function section(figure, ...controls) {
    const plot = S.el("div", { class: "plot", role: "img", "aria-label": figure.title + "; the same numbers are in the table below" });
    const table = S.el("div", { class: "numbers" });
    const note = S.el("p", { class: "note" }, figure.note);
    const node = S.el("section", { class: "chart", id: figure.id }, S.el("h2", {}, figure.title), note, ...controls, plot);
    nodes[figure.id] = { node, plot, table, near: false, paint: null };
    return node;
  }

  // drawing takes long, so a figure is drawn when the reader comes near it; its table is there at once
  const watcher = new IntersectionObserver(
    function (entries) {
      for (const entry of entries.filter((one) => one.isIntersecting)) {
        const part = Object.values(nodes).find((one) => one.node === entry.target);
        part.near = true;
        watcher.unobserve(part.node);
        if (part.paint) part.paint();
      }
    },
    { rootMargin: "300px" }
  );

  function paint(part, draw) {
    part.paint = draw;
    if (part.near) draw();
  }

  function range() {
    const values = drawn().filter((p) => p.values.user && p.values.throughput).map((p) => p.values.user[0]);
    return [Math.floor(Math.min(...values, Infinity)), Math.ceil(Math.max(...values, -Infinity))];
  }

  function floor() {
    const [low, high] = range();
    const wanted = Number(S.one(raw, "floor", ""));
    return raw.floor && Number.isFinite(wanted) ? wanted : Math.round((low + high) / 2);
  }

  function frontierControls() {
    const slide = S.el("input", { type: "range", id: "floor-range", step: "0.1" });
    const field = S.el("input", { type: "number", id: "floor", step: "0.1", min: "0" });
    slide.addEventListener("input", () => setFloor(Number(slide.value)));
    field.addEventListener("change", () => setFloor(Number(field.value)));
    return S.el("div", { class: "controls" }, S.el("label", {}, "Floor, tok/s/user", slide), S.el("label", {}, "exactly", field));
  }

  function setFloor(value) {
    if (!Number.isFinite(value) || value < 0) return;
    raw.floor = [String(Math.round(value * 10) / 10)];
    S.writeView(raw);
    drawFloor(true);
  }

  // the line and what follows from it; the plot itself stays
  function drawFloor(move) {
    const value = floor();
    const [low, high] = range();
    const slide = document.getElementById("floor-range");
    slide.min = low;
    slide.max = high;
    slide.value = value;
    document.getElementById("floor").value = value;
    nodes.frontier.table.replaceChildren(S.frontierTable(drawn(), value));
    if (move && nodes.frontier.plot.layout) Plotly.relayout(nodes.frontier.plot, { "shapes[0].x0": value, "shapes[0].x1": value, "annotations[0].x": value });
  }

  function drawFrontier() {
    const part = nodes.frontier;
    const usable = drawn().filter((p) => p.values.user && p.values.throughput);
    part.node.hidden = !usable.length;
    if (!usable.length) return;
    drawFloor(false);
    paint(part, function () {
      S.frontierPlot(part.plot, usable, floor(), { methods: index.methods });
      part.plot.removeAllListeners("plotly_relayout");
      part.plot.on("plotly_relayout", function (event) {
        const x = event["shapes[0].x0"];
        if (x !== undefined && Math.abs(x - floor()) > 0.05) setFloor(x);
      });
    });
  }

  function drawFigure(figure) {
    const part = nodes[figure.id];
    const made = figure.make(drawn(), { load: load(), methods: index.methods });
    part.node.hidden = !made.rows.length;
    if (!made.rows.length) return;
    part.plot.style.height = made.layout.height ? made.layout.height + "px" : "";
    paint(part, () => S.plot(part.plot, made.traces, made.layout));
    part.table.replaceChildren(S.table(figure.title, made.heads, made.rows));
  }

  async function drawReliability() {
    const part = nodes.reliability;
    const able = drawn().filter((p) => p.reliable && p.load === load());
    part.node.hidden = !able.length;
    if (!able.length) return;
    const curves = await S.get("reliability-" + family().id);
    const point = able.find((p) => p.id === S.one(raw, "run", "")) || able[0];
    const ks = Object.keys(curves[point.id]);
    const k = ks.includes(S.one(raw, "k", "")) ? S.one(raw, "k", "") : ks[0];
    part.controls.replaceChildren(
      S.select("run", "Run", able.map((p) => [p.id, S.seriesName(p)]), point.id, change),
      S.select("k", "Position", ks.map((one) => [one, one]), k, change)
    );
    const curve = curves[point.id][k];
    const [traces, layout] = S.reliability(curve, S.mark(point.method, index.methods), S.seriesName(point) + ", k = " + k);
    paint(part, () => S.plot(part.plot, traces, layout));
    const rows = curve.bins.map((bin) => [bin[0].toFixed(3), bin[1].toFixed(3), String(bin[2])]);
    const caption = S.seriesName(point) + ", position " + k + (curve.ece ? ": ECE " + curve.ece[3] : "");
    part.table.replaceChildren(S.table(caption, [{ title: "Mean forecast", num: true }, { title: "Share accepted", num: true }, { title: "Positions", num: true }], rows));
  }

  async function draw() {
    const mine = ++turn;
    drawForm();
    drawFrontier();
    S.FIGURES.forEach(drawFigure);
    await drawReliability();
    if (mine !== turn) return;
    const count = drawn().length;
    const ranked = drawn().filter((p) => !p.reasons.length).length;
    summary.textContent = S.plural(count, "run") + " drawn, " + ranked + " of them ranked";
    area.dataset.drawn = String(mine);
  }

  async function open() {
    points = await S.get("charts-" + family().id);
    S.nameSeries(points);
    await draw();
  }

  function build() {
    const rest = S.FIGURES.map((figure) => section(figure));
    const diagram = section({ id: "reliability", title: "Reliability", note: "Forecast of the confidence against what was accepted. On the dashed line the forecast is right; marks grow with the positions in a bin." });
    nodes.reliability.controls = S.el("div", { class: "controls" });
    diagram.insertBefore(nodes.reliability.controls, nodes.reliability.plot);
    area.append(section(S.FRONTIER, frontierControls()), ...rest, diagram);
    nodes.frontier.node.append(nodes.frontier.table);
    for (const [id, part] of Object.entries(nodes)) {
      if (id !== "frontier") part.node.append(S.el("details", {}, S.el("summary", {}, "Numbers"), part.table));
      watcher.observe(part.node);
    }
  }

  Promise.all([S.get("families"), S.script("js/plotly.min.js")])
    .then(function ([data]) {
      index = data;
      raw = S.readView();
      build();
      addEventListener("hashchange", function () {
        raw = S.readView();
        open();
      });
      document.addEventListener("themechange", draw);
      return open();
    })
    .catch(function (error) {
      summary.textContent = "The charts could not be drawn: " + error.message;
    });
})(window.Specbench);
