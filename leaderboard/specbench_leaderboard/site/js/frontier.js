// Throughput against the speed that one user sees, with a floor that the reader moves and the table that follows it.
(function (S) {
  "use strict";

  S.FRONTIER = { id: "frontier", title: "Throughput against tok/s/user", note: "Each line is one contestant at growing load, through the mean of its runs at each. The dashed line joins the runs that no other beats in both; the others are dominated and stay visible. Move the floor to read what each contestant can serve." };

  const both = (point) => point.values.user && point.values.throughput;

  const timed = (point) => !point.reasons.length && !point.untimed.length;

  // the best ranked run of each contestant that keeps the floor
  S.attainable = function (points, floor) {
    const lines = S.groupBy(points.filter((p) => both(p) && timed(p)), S.seriesName);
    return [...lines].map(function ([name, list]) {
      const held = list.filter((p) => p.values.user[0] >= floor);
      const best = held.length ? held.reduce((a, b) => (b.values.throughput[0] > a.values.throughput[0] ? b : a)) : null;
      return { name, best };
    }).sort((a, b) => (b.best ? b.best.values.throughput[0] : -1) - (a.best ? a.best.values.throughput[0] : -1));
  };

  S.frontierTable = function (points, floor) {
    const heads = [{ title: "Contestant" }, { title: "tok/s", num: true }, { title: "tok/s/user", num: true }, { title: "Load" }, { title: "Run" }];
    const rows = S.attainable(points, floor).map(function ({ name, best }) {
      if (!best) return [name, "not attainable", "", "", ""];
      return [name, best.values.throughput[3], best.values.user[3], best.load, S.el("a", { href: "runs/" + best.id + ".html" }, best.id)];
    });
    return S.table("Largest throughput of each contestant at " + floor.toFixed(1) + " tok/s/user or more", heads, rows);
  };

  // a contestant's line: its loads by their number of users, else by the speed of one, each at the mean of its runs
  function joined(list, trace) {
    const mean = (points, value) => points.reduce((sum, p) => sum + p.values[value][0], 0) / points.length;
    const loads = [...S.groupBy(list, (p) => p.load).values()].map((runs) => ({ users: runs[0].users || 0, x: mean(runs, "user"), y: mean(runs, "throughput") }));
    loads.sort((a, b) => a.users - b.users || b.x - a.x);
    return { type: "scatter", mode: "lines", name: trace.name, legendgroup: trace.name, showlegend: false, hoverinfo: "skip", x: loads.map((one) => one.x), y: loads.map((one) => one.y), line: Object.assign({}, trace.line, { width: 1 }) };
  }

  S.frontierPlot = function (node, points, floor, state) {
    const drawn = points.filter(both);
    const lines = S.groupBy([...drawn].sort((a, b) => b.values.user[0] - a.values.user[0]), S.seriesName);
    const traces = [...lines].flatMap(function ([name, list]) {
      const cells = list.map((p) => p.values.throughput);
      const trace = S.line(name, list, (p) => p.values.user[0], cells, state.methods);
      const colour = trace.line.color;
      trace.error_x = S.bars(list.map((p) => p.values.user), colour);
      trace.mode = "markers";
      trace.legendgroup = trace.name;
      trace.marker.color = list.map((p) => (timed(p) ? colour : "rgba(0,0,0,0)"));
      trace.marker.opacity = list.map((p) => (p.frontier ? 1 : 0.62));
      trace.marker.size = list.map((p) => (p.frontier ? 11 : 8));
      trace.text = list.map((p) => S.plain(S.seriesName(p) + ", " + p.load + ": " + p.values.throughput[3] + " tok/s, " + p.values.user[3] + " tok/s/user" + (p.frontier ? ", on the frontier" : timed(p) ? ", dominated" : ", not ranked")));
      return [joined(list, trace), trace];
    });
    const edge = drawn.filter((p) => p.frontier).sort((a, b) => a.values.user[0] - b.values.user[0]);
    const layout = S.layout("tok/s/user", "tok/s");
    traces.unshift({
      type: "scatter",
      mode: "lines",
      name: "frontier",
      x: edge.map((p) => p.values.user[0]),
      y: edge.map((p) => p.values.throughput[0]),
      hoverinfo: "skip",
      line: { color: layout.font.color, width: 2, dash: "dash" },
    });
    layout.shapes = [{ type: "line", xref: "x", yref: "paper", x0: floor, x1: floor, y0: 0, y1: 1, line: { color: layout.font.color, width: 2 } }];
    layout.annotations = [{ x: floor, xref: "x", y: 1, yref: "paper", yanchor: "bottom", showarrow: false, text: "floor", font: { size: 12 } }];
    layout.xaxis.rangemode = layout.yaxis.rangemode = "tozero";
    return S.plot(node, traces, layout, { shapePosition: true });
  };
})(window.Specbench);
