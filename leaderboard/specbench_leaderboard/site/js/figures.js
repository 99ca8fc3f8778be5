// The charts but the frontier: from points to traces, each with the table that holds the same numbers.
(function (S) {
  "use strict";
  const PHASES = ["T_draft", "T_schedule", "T_verify", "T_accept", "T_other"];
  const byValue = (list, key) => [...list].sort((a, b) => key(a) - key(b));
  const link = (point) => S.el("a", { href: "runs/" + point.id + ".html" }, point.label);
  const isFixed = (point) => point.policy === "" || point.policy.startsWith("fixed");
  const textOf = (cell) => (cell ? cell[3] : "–");

  // "dspark:7 threshold:0.5", and the checkpoint where a method has several
  S.nameSeries = function (points) {
    const names = S.groupBy(points, (point) => point.method);
    const several = new Set([...names].filter(([, list]) => new Set(list.map((p) => p.name)).size > 1).map(([method]) => method));
    for (const point of points) {
      point.checkpoint = several.has(point.method) && point.name !== point.method ? point.name.slice(point.method.length + 3) : "";
    }
  };

  S.seriesName = (point) => [point.label, isFixed(point) ? "" : point.policy.split(",")[0], point.checkpoint ? "· " + point.checkpoint : ""].filter(Boolean).join(" ");
  const contestant = (point) => [point.method, point.checkpoint].filter(Boolean).join(" · ");

  S.groupBy = function (list, key) {
    const found = new Map();
    for (const one of list) {
      const name = key(one);
      if (!found.has(name)) found.set(name, []);
      found.get(name).push(one);
    }
    return found;
  };

  // a line with marks; hollow where the run is not ranked
  S.line = function (name, points, x, cells, methods, more) {
    const mark = S.mark(points[0].method, methods);
    return Object.assign(
      {
        type: "scatter",
        mode: "lines+markers",
        name: S.plain(name),
        x: points.map(x),
        y: cells.map((cell) => cell[0]),
        error_y: S.bars(cells, mark.colour),
        text: points.map((point, i) => S.plain(S.seriesName(point) + ", " + point.load + ": " + cells[i][3])),
        hovertemplate: "%{text}<extra></extra>",
        line: { color: mark.colour, width: 1.8, dash: DASHES[family(points[0])] || "solid" },
        marker: {
          color: points.map((point) => (point.reasons.length ? "rgba(0,0,0,0)" : mark.colour)),
          symbol: mark.shape,
          size: 9,
          line: { color: mark.colour, width: 1.6 },
        },
      },
      more || {}
    );
  };

  const family = (point) => point.policy.split(":")[0];
  const DASHES = { threshold: "dot", algorithm1: "dashdot", "load-aware": "dash" };

  // ranked runs where there are any
  const ranked = (list) => (list.some((p) => !p.reasons.length) ? list.filter((p) => !p.reasons.length) : list);

  // of one drafter and policy, the draft length that was run at the most loads, the longest of several
  function widest(list) {
    const spread = (same) => new Set(same.map((p) => p.load)).size * 1000 + same[0].k;
    return [...S.groupBy(list, (p) => p.k).values()].reduce((a, b) => (spread(b) > spread(a) ? b : a));
  }

  const have = (points, name) => points.filter((point) => point.values[name]);

  function byLength(points, state) {
    const chosen = have(points, "tau").filter((p) => p.load === state.load && isFixed(p) && p.k > 0);
    const lines = S.groupBy(byValue(chosen, (p) => p.k), (p) => p.name);
    const traces = [...lines].map(([, list]) => S.line(contestant(list[0]), list, (p) => p.k, list.map((p) => p.values.tau), state.methods));
    const rows = chosen.map((p) => [link(p), p.name, String(p.k), textOf(p.values.tau)]);
    const layout = S.layout("drafts per round, k", "accepted length, τ");
    layout.xaxis.dtick = 1;
    return { traces, layout, heads: [{ title: "Run" }, { title: "Drafter" }, { title: "k", num: true }, { title: "τ", num: true }], rows };
  }

  function byPosition(points, state) {
    const chosen = points.filter((p) => p.load === state.load && p.conditional.length > 1 && isFixed(p));
    const longest = [...S.groupBy(chosen, (p) => p.name).values()].map((list) => ranked(list).reduce((a, b) => (b.k > a.k ? b : a)));
    const traces = longest.map(function (point) {
      const repeated = point.conditional.map(() => point);
      const cells = point.conditional.map((one) => [one[1], one[2], one[3], one[4]]);
      let i = 0;
      return S.line(S.seriesName(point), repeated, () => point.conditional[i++][0], cells, state.methods);
    });
    const rows = longest.flatMap((p) => p.conditional.map((one) => [link(p), p.name, String(one[0]), one[4]]));
    const layout = S.layout("draft position, k", "accepted, given all before it were");
    layout.xaxis.dtick = 1;
    layout.yaxis.range = [0, 1.02];
    return { traces, layout, heads: [{ title: "Run" }, { title: "Drafter" }, { title: "k", num: true }, { title: "Conditional", num: true }], rows };
  }

  const twoPanels = function (xtitle, top, bottom) {
    const layout = S.layout(xtitle, bottom);
    layout.yaxis.domain = [0, 0.45];
    layout.yaxis2 = Object.assign(S.axis(top), { domain: [0.55, 1] });
    return layout;
  };

  function byUsers(points, state) {
    const chosen = points.filter((p) => p.users && p.load.startsWith("closed") && (p.values.throughput || p.values.budget));
    const drawn = [...S.groupBy(chosen, (p) => p.name + " " + family(p)).values()].flatMap(widest);
    const lines = S.groupBy(byValue(drawn, (p) => p.users), S.seriesName);
    const traces = [...lines].flatMap(([name, list]) => {
      const fast = have(list, "throughput");
      const spent = have(list, "budget");
      const both = [];
      if (fast.length) both.push(S.line(name, fast, (p) => p.users, fast.map((p) => p.values.throughput), state.methods, { legendgroup: S.plain(name) }));
      if (spent.length) both.push(S.line(name, spent, (p) => p.users, spent.map((p) => p.values.budget), state.methods, { legendgroup: S.plain(name), yaxis: "y2", showlegend: !fast.length }));
      return both;
    });
    const layout = twoPanels("users at once", "tokens judged a round", "tok/s");
    layout.xaxis.type = "log";
    layout.xaxis.tickvals = [...new Set(drawn.map((p) => p.users))].sort((a, b) => a - b);
    layout.xaxis.ticktext = layout.xaxis.tickvals.map(String);
    const rows = byValue(drawn, (p) => p.users).map((p) => [link(p), p.name, String(p.users), textOf(p.values.budget), textOf(p.values.throughput)]);
    return { traces, layout, heads: [{ title: "Run" }, { title: "Drafter" }, { title: "Users", num: true }, { title: "Budget", num: true }, { title: "tok/s", num: true }], rows };
  }

  function byThreshold(points, state) {
    const chosen = byValue(points.filter((p) => p.threshold !== null && p.load === state.load), (p) => p.threshold);
    const lines = S.groupBy(chosen, (p) => p.label + (p.checkpoint ? " · " + p.checkpoint : ""));
    const traces = [...lines].flatMap(([name, list]) => {
      const long = have(list, "tau");
      const spent = have(list, "budget");
      const both = [];
      if (long.length) both.push(S.line(name + ": τ", long, (p) => p.threshold, long.map((p) => p.values.tau), state.methods));
      if (spent.length) both.push(S.line(name + ": tokens judged", spent, (p) => p.threshold, spent.map((p) => p.values.budget), state.methods, { yaxis: "y2" }));
      return both;
    });
    for (const trace of traces) if (trace.yaxis === "y2") trace.line.dash = "dot";
    const layout = twoPanels("confidence threshold", "tokens judged a round", "accepted length, τ");
    const rows = chosen.map((p) => [link(p), p.name, String(p.threshold), textOf(p.values.tau), textOf(p.values.budget), textOf(p.values.throughput)]);
    return { traces, layout, heads: [{ title: "Run" }, { title: "Drafter" }, { title: "Threshold", num: true }, { title: "τ", num: true }, { title: "Budget", num: true }, { title: "tok/s", num: true }], rows };
  }

  function timeSplit(points, state) {
    const chosen = points.filter((p) => p.load === state.load && Object.keys(p.phases).length && isFixed(p)).slice(0, 30).reverse();
    const colours = S.colours();
    const paper = S.layout("", "").paper_bgcolor;
    const traces = PHASES.map((phase, i) => ({
      type: "bar",
      orientation: "h",
      name: phase,
      y: chosen.map((p) => p.id),
      x: chosen.map((p) => (p.phases[phase] ? p.phases[phase][0] * 1000 : null)),
      text: chosen.map((p) => S.plain(S.seriesName(p) + ", " + phase + ": " + textOf(p.phases[phase]) + " ms")),
      textposition: "none",
      hovertemplate: "%{text}<extra></extra>",
      marker: { color: colours[i], line: { color: paper, width: 1 } },
    }));
    const layout = S.layout("ms per decode round", "", { barmode: "stack", height: Math.max(430, 160 + 26 * chosen.length) });
    layout.yaxis.tickvals = chosen.map((p) => p.id);
    layout.yaxis.ticktext = chosen.map((p) => S.plain(S.seriesName(p)));
    layout.yaxis.ticks = "";
    layout.xaxis.rangemode = "tozero";
    layout.legend.traceorder = "normal";
    const rows = [...chosen].reverse().map((p) => [link(p), p.name, ...PHASES.map((phase) => textOf(p.phases[phase]))]);
    return { traces, layout, heads: [{ title: "Run" }, { title: "Drafter" }, ...PHASES.map((title) => ({ title: title + ", ms", num: true }))], rows };
  }

  // bins of one run at one position; the area of a mark grows with the positions in its bin
  S.reliability = function (curve, mark, title) {
    const most = Math.max(...curve.bins.map((bin) => bin[2]), 1);
    const layout = S.layout("mean forecast", "share accepted");
    layout.xaxis.range = layout.yaxis.range = [-0.02, 1.02];
    const traces = [
      { type: "scatter", mode: "lines", name: "perfect", x: [0, 1], y: [0, 1], hoverinfo: "skip", line: { color: layout.xaxis.linecolor, dash: "dash", width: 1.5 } },
      {
        type: "scatter",
        mode: "lines+markers",
        name: S.plain(title),
        x: curve.bins.map((bin) => bin[0]),
        y: curve.bins.map((bin) => bin[1]),
        text: curve.bins.map((bin) => "forecast " + bin[0].toFixed(3) + ", accepted " + bin[1].toFixed(3) + ", n = " + bin[2]),
        hovertemplate: "%{text}<extra></extra>",
        line: { color: mark.colour, width: 1.5 },
        marker: { color: mark.colour, symbol: mark.shape, size: curve.bins.map((bin) => 6 + 10 * Math.sqrt(bin[2] / most)) },
      },
    ];
    return [traces, layout];
  };

  S.FIGURES = [
    { id: "length", title: "Accepted length by draft length", note: "Fixed policies at the chosen load.", make: byLength },
    { id: "position", title: "Conditional acceptance by position", note: "Of the rounds that accepted all before position k, the share that accepted k; each drafter at its longest draft length.", make: byPosition },
    { id: "concurrency", title: "Budget and throughput by concurrency", note: "Closed loops; each drafter and policy at the draft length that was run at the most loads. A policy that sees the load judges fewer tokens as it grows.", make: byUsers },
    { id: "threshold", title: "Threshold sweep", note: "What a confidence threshold saves, and what it costs in accepted length.", make: byThreshold },
    { id: "time", title: "Time split", note: "Where a decode round's time goes at the chosen load, fixed policies; at most 30 runs.", make: timeSplit },
  ];
})(window.Specbench);
