// A run's figures, from the numbers in the page's own tables. And the copy button.
(function (S) {
  "use strict";
  const rows = [...document.querySelectorAll("tr[data-metric]")].map(function (row) {
    const low = row.querySelector("[data-low]");
    return {
      metric: row.dataset.metric,
      scope: JSON.parse(row.dataset.scope),
      cell: [
        Number(row.querySelector("data").value),
        low ? Number(low.dataset.low) : null,
        low ? Number(low.dataset.high) : null,
        row.querySelector("data").textContent,
      ],
    };
  });
  const only = (one, ...names) => Object.keys(one.scope).sort().join() === names.sort().join();
  const method = document.querySelector("h1").firstChild.textContent.trim().split(":")[0];
  const figures = document.querySelector(".figures");
  let pending = [];

  function add(title, traces, layout) {
    const plot = S.el("div", { class: "plot", role: "img", "aria-label": title + "; the numbers are in the tables below" });
    figures.append(S.el("div", {}, S.el("h3", {}, title), plot));
    document.getElementById("figures").hidden = false;
    pending.push(() => S.plot(plot, traces, layout));
  }

  function positions() {
    const mark = S.mark(method, [method]);
    const colours = S.colours();
    const traces = [["conditional", mark.colour, mark.shape, "solid"], ["survival", colours[6], "circle-open", "dot"]].flatMap(function ([metric, colour, shape, dash]) {
      const found = rows.filter((one) => one.metric === metric && only(one, "k")).sort((a, b) => a.scope.k - b.scope.k);
      if (!found.length) return [];
      return [{
        type: "scatter", mode: "lines+markers", name: metric, x: found.map((one) => Number(one.scope.k)), y: found.map((one) => one.cell[0]),
        error_y: S.bars(found.map((one) => one.cell), colour), line: { color: colour, dash: dash, width: 1.8 }, marker: { color: colour, symbol: shape, size: 9 },
        text: found.map((one) => metric + " at " + one.scope.k + ": " + one.cell[3]), hovertemplate: "%{text}<extra></extra>",
      }];
    });
    if (!traces.length) return;
    const layout = S.layout("draft position, k", "share of rounds");
    layout.yaxis.range = [0, 1.02];
    layout.xaxis.dtick = 1;
    add("Acceptance by position", traces, layout);
  }

  function time() {
    const phases = ["T_draft", "T_schedule", "T_verify", "T_accept", "T_other"];
    const found = phases.map((name) => rows.find((one) => one.metric === name && one.scope.steps === "decode" && one.scope.stat === "mean" && only(one, "steps", "stat")));
    if (!found.some(Boolean)) return;
    const layout = S.layout("ms per decode round", "");
    layout.showlegend = false;
    const trace = {
      type: "bar", orientation: "h", y: phases, x: found.map((one) => (one ? one.cell[0] * 1000 : null)), marker: { color: S.colours()[0] },
      text: found.map((one) => (one ? (one.cell[0] * 1000).toFixed(2) + " ms" : "")), textposition: "auto", hoverinfo: "skip",
    };
    layout.yaxis.autorange = "reversed";
    add("Time split", [trace], layout);
  }

  function reliability() {
    const halves = (metric) => new Map(rows.filter((one) => one.metric === metric && only(one, "k", "bin") && one.scope.k === "1").map((one) => [one.scope.bin, one.cell[0]]));
    const forecast = halves("reliability_forecast");
    const outcome = halves("reliability_outcome");
    const bins = [...forecast].filter(([bin]) => outcome.has(bin)).map(([bin, value]) => [value, outcome.get(bin)]).sort((a, b) => a[0] - b[0]);
    if (!bins.length) return;
    const layout = S.layout("mean forecast", "share accepted");
    layout.xaxis.range = layout.yaxis.range = [-0.02, 1.02];
    const mark = S.mark(method, [method]);
    add("Reliability at position 1", [
      { type: "scatter", mode: "lines", name: "perfect", x: [0, 1], y: [0, 1], hoverinfo: "skip", line: { color: layout.xaxis.linecolor, dash: "dash" } },
      { type: "scatter", mode: "lines+markers", name: "confidence", x: bins.map((bin) => bin[0]), y: bins.map((bin) => bin[1]), line: { color: mark.colour }, marker: { color: mark.colour, symbol: mark.shape, size: 9 } },
    ], layout);
  }

  function draw() {
    figures.replaceChildren();
    pending = [];
    positions();
    time();
    reliability();
    for (const plot of pending) plot(); // all frames first: each takes its width from how many there are
    document.body.dataset.drawn = "yes";
  }

  draw();
  document.addEventListener("themechange", draw);
  for (const button of document.querySelectorAll("[data-copy]")) {
    if (!navigator.clipboard) continue;
    button.hidden = false;
    button.addEventListener("click", function () {
      navigator.clipboard.writeText(document.getElementById(button.dataset.copy).textContent).then(() => (button.textContent = "Copied"));
    });
  }
})(window.Specbench);
