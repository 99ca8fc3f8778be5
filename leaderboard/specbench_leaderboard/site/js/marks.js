// How a method is drawn, the same on every chart: a shape and a colour from the palette of Okabe and Ito (2008), which
// people with the common kinds of colour blindness can tell apart. Shapes alone suffice too.
window.Specbench = window.Specbench || {};
(function (S) {
  "use strict";
  const COLOURS = {
    light: ["#0072b2", "#d55e00", "#009e73", "#b8527f", "#8a6d00", "#2b8cc4", "#555b63"],
    dark: ["#56b4e9", "#e69f00", "#2fc79b", "#e08bb8", "#f0e442", "#8ab6ff", "#c3cad3"],
  };
  const SHAPES = ["circle", "square", "diamond", "triangle-up", "cross", "star", "hexagon", "triangle-down", "x", "pentagon"];
  const KNOWN = ["dspark", "dflash", "eagle3", "mtp", "ngram", "draft-model", "vanilla"];
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  S.isDark = function () {
    const forced = document.documentElement.dataset.theme;
    return forced ? forced === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  };

  S.colours = () => COLOURS[S.isDark() ? "dark" : "light"];

  // `methods` is the list of all methods of the site: one that is not among the known takes the next free place
  S.mark = function (method, methods) {
    const others = (methods || []).filter((name) => !KNOWN.includes(name));
    const at = KNOWN.includes(method) ? KNOWN.indexOf(method) : KNOWN.length + Math.max(0, others.indexOf(method));
    const colours = S.colours();
    return { colour: colours[at % colours.length], shape: SHAPES[at % SHAPES.length] };
  };

  // the charting library reads some markup in texts; a name from a record is never markup
  S.plain = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");

  S.bars = function (cells, colour) {
    if (!cells.some((cell) => cell[1] !== null && cell[1] !== undefined)) return undefined;
    return {
      type: "data",
      symmetric: false,
      array: cells.map((cell) => (cell[2] ?? cell[0]) - cell[0]),
      arrayminus: cells.map((cell) => cell[0] - (cell[1] ?? cell[0])),
      color: colour,
      thickness: 1.2,
      width: 3,
    };
  };

  S.layout = function (xtitle, ytitle, more) {
    const wide = innerWidth > 900; // there is room beside the plot for what the marks mean
    const axis = (title) => ({
      title: { text: title, standoff: 10, font: { size: 13, color: css("--soft") } },
      gridcolor: css("--line"),
      linecolor: css("--strong-line"),
      zeroline: false,
      showline: true,
      ticks: "outside",
      tickcolor: css("--strong-line"),
      automargin: true,
    });
    return Object.assign(
      {
        paper_bgcolor: css("--paper"),
        plot_bgcolor: css("--paper"),
        font: { family: css("--sans"), size: 13, color: css("--ink") },
        margin: { l: 64, r: 20, t: 28, b: 56 },
        hovermode: "closest",
        hoverlabel: { bgcolor: css("--panel"), bordercolor: css("--strong-line"), font: { color: css("--ink"), size: 13 } },
        legend: wide
          ? { orientation: "v", y: 1, x: 1.01, font: { size: 12.5 }, itemwidth: 30 }
          : { orientation: "h", y: -0.22, x: 0, font: { size: 12 }, itemwidth: 30 },
        xaxis: axis(xtitle),
        yaxis: axis(ytitle),
      },
      more || {}
    );
  };

  S.axis = (title) => S.layout("", title).yaxis;

  S.plot = function (node, traces, layout, edits) {
    const config = { responsive: true, displaylogo: false, displayModeBar: false, edits: edits || {} };
    return Plotly.react(node, traces, layout, config);
  };
})(window.Specbench);
