// The figures: each is a grid of panels, drawn when it comes into view, and all of it before printing.

const hiddenMembers = new Set();
const asked = { log: false, all: false };

function axis(title, range, power) {
  const colours = ink();
  const marks = power ? { tickprefix: "2<sup>", ticksuffix: "</sup>", nticks: 7 } : { nticks: 6 };
  return {
    title: { text: title, standoff: 6, font: { size: 12 } }, range: [...range], gridcolor: colours.grid, zeroline: false,
    showline: true, linecolor: colours.line, ticks: "outside", ticklen: 3, tickcolor: colours.line,
    automargin: true, ...marks,
  };
}

function layout(x, y, height, width) {
  const colours = ink();
  const family = getComputedStyle(document.body).fontFamily;
  return {
    xaxis: x, yaxis: y, height, width, autosize: !width, margin: { l: 48, r: 10, t: 8, b: 40 }, showlegend: false,
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", hovermode: "closest", dragmode: "zoom",
    font: { family, size: 11.5, color: colours.text },
    hoverlabel: { bgcolor: colours.paper, bordercolor: colours.line, font: { family, size: 12, color: colours.text } },
  };
}

// Loss against rate

function curveTraces(panel) {
  const figure = page.curves;
  return panel.lines.flatMap((line) => {
    const index = figure.members.indexOf(line.member);
    if (hiddenMembers.has(line.member)) return [];
    const colour = colourOf(index), symbol = SYMBOLS[index % SYMBOLS.length];
    return [runsTrace(line, colour), meanTrace(line, colour, index), ...optimumTrace(line, colour, symbol),
      ...divergedTrace(line, colour)];
  });
}

function runsTrace(line, colour) {
  return {
    x: line.runs.x, y: line.runs.y, customdata: line.runs.seed, meta: inert(line.member), mode: "markers", type: "scatter",
    marker: { color: colour, size: page.curves.lines ? 4 : 6, opacity: page.curves.lines ? 0.45 : 0.75 },
    hovertemplate: "<b>%{meta}</b><br>lr 2<sup>%{x:.2f}</sup>, seed %{customdata}<br>loss %{y:.4f}<extra></extra>",
  };
}

function meanTrace(line, colour, index) {
  return {
    x: page.curves.lines ? line.x : [], y: page.curves.lines ? line.mean : [], customdata: line.count,
    meta: inert(line.member), mode: "lines", type: "scatter",
    line: { color: colour, width: 1.8, dash: DASHES[index % DASHES.length] },
    hovertemplate: "<b>%{meta}</b><br>lr 2<sup>%{x:.2f}</sup><br>mean of %{customdata}: %{y:.4f}<extra></extra>",
  };
}

function optimumTrace(line, colour, symbol) {
  const found = line.optimum;
  if (!found) return [];
  const bounded = found.low !== null && found.high !== null;
  const said = bounded ? `[${found.low.toFixed(2)}, ${found.high.toFixed(2)}]` : "no bound";
  const looks = { color: colour, symbol, size: 12, line: { color: ink().paper, width: 1.5 } };
  const open = { color: colour, symbol: `${symbol}-open`, size: 11, line: { color: colour, width: 2 } };
  return [{
    x: [found.x], y: [found.loss], meta: inert(line.member), mode: "markers", type: "scatter",
    text: [said + (found.flags ? `<br>${inert(found.flags)}` : "")],
    error_x: { type: "data", visible: bounded, symmetric: false, array: [found.high - found.x],
      arrayminus: [found.x - found.low], color: colour, thickness: 1.6, width: 4 },
    marker: bounded ? looks : open,
    hovertemplate: "<b>%{meta}</b>, optimum<br>lr 2<sup>%{x:.2f}</sup> %{text}<br>loss %{y:.4f}<extra></extra>",
  }];
}

function divergedTrace(line, colour) {
  if (!line.diverged.length) return [];
  const top = curveRange()[1];
  return [{
    x: line.diverged, y: line.diverged.map(() => top), meta: inert(line.member), mode: "markers", type: "scatter",
    cliponaxis: false, marker: { color: colour, symbol: "x-thin", size: 8, line: { color: colour, width: 1.5 } },
    hovertemplate: "<b>%{meta}</b><br>lr 2<sup>%{x:.2f}</sup> diverged<extra></extra>",
  }];
}

function curveRange() {
  const figure = page.curves;
  if (!asked.all) return figure.y_range;
  const losses = figure.panels.flatMap((panel) => panel.lines.flatMap((line) => [...line.runs.y, ...line.mean]));
  const high = losses.reduce((most, loss) => Math.max(most, loss), -Infinity);
  return [figure.y_range[0], high + 0.05 * (high - figure.y_range[0])];
}

function curveLayout(panel, width) {
  const figure = page.curves;
  const range = curveRange();
  const loss = axis("loss (nats)", asked.log ? range.map((end) => Math.log10(Math.max(end, 1e-9))) : range, false);
  const made = layout(axis(page.labels.lr, figure.x_range, true), { ...loss, type: asked.log ? "log" : "linear" }, 330, width);
  return { ...made, shapes: panel.mean === null ? [] : meanShapes(panel) };
}

function meanShapes(panel) {
  const colours = ink();
  const whole = { yref: "paper", y0: 0, y1: 1, layer: "below" };
  return [
    { ...whole, type: "rect", x0: panel.mean - panel.sd, x1: panel.mean + panel.sd, fillcolor: colours.quiet, opacity: 0.18,
      line: { width: 0 } },
    { ...whole, type: "line", x0: panel.mean, x1: panel.mean, line: { color: colours.quiet, width: 1.4, dash: "dash" } },
  ];
}

// Maps

const LEVELS = 24;

function mapTraces(figure, panel) {
  const levels = new Map();
  panel.polygons.forEach((polygon, index) => {
    const excess = panel.excess[index];
    const level = excess === null ? -1 : Math.min(LEVELS - 1, Math.floor((excess / figure.most) * LEVELS));
    if (polygon.length) levels.set(level, [...(levels.get(level) || []), polygon]);
  });
  const filled = [...levels].map(([level, polygons]) => polygonTrace(level, polygons));
  return [...filled, pointTrace(panel), ...markTraces(panel)];
}

function polygonTrace(level, polygons) {
  const colour = level < 0 ? ink().none : onRamp((level + 0.5) / LEVELS);
  const closed = polygons.flatMap((polygon) => [...polygon, polygon[0], [null, null]]);
  return {
    x: closed.map((vertex) => vertex[0]), y: closed.map((vertex) => vertex[1]), type: "scatter", mode: "lines", fill: "toself",
    fillcolor: colour, line: { color: colour, width: 0.6 }, hoverinfo: "skip",
  };
}

function pointTrace(panel) {
  const said = panel.loss.map((loss, index) => {
    const runs = panel.count[index] > 1 ? ` (mean of ${panel.count[index]})` : "";
    return loss === null ? "diverged" : `loss ${loss.toFixed(4)}${runs}`;
  });
  return {
    x: panel.x, y: panel.y, text: said, type: "scatter", mode: "markers",
    marker: { size: 4, color: "#ffffff", opacity: 0.8, line: { color: "#000000", width: 0.6 } },
    hovertemplate: "%{text}<br>2<sup>%{x:.2f}</sup>, 2<sup>%{y:.2f}</sup><extra></extra>",
  };
}

function markTraces(panel) {
  const mark = (place, symbol, size, word) => ({
    x: [place[0]], y: [place[1]], type: "scatter", mode: "markers", cliponaxis: false,
    marker: { symbol, size, color: "#ffffff", line: { color: "#000000", width: 1.5 } },
    hovertemplate: `${word}<br>2<sup>%{x:.2f}</sup>, 2<sup>%{y:.2f}</sup><extra></extra>`,
  });
  return [
    ...(panel.region.length ? [regionTrace(panel.region)] : []),
    ...(panel.mean ? [mark(panel.mean, "cross", 11, "mean over models")] : []),
    ...(panel.optimum ? [optimumMark(mark(panel.optimum, "star", 15, "optimum"), panel.sure)] : []),
  ];
}

// An optimum without a bound is drawn open, as in the figure above.
function optimumMark(trace, sure) {
  if (sure) return trace;
  const marker = { ...trace.marker, symbol: "star-open", color: "#000000", line: { color: "#000000", width: 1.5 } };
  return { ...trace, marker, hovertemplate: `${trace.hovertemplate.replace("optimum", "optimum without a bound")}` };
}

function regionTrace(region) {
  const closed = [...region, region[0]];
  return {
    x: closed.map((place) => place[0]), y: closed.map((place) => place[1]), type: "scatter", mode: "lines",
    line: { color: "#000000", width: 1.6, dash: "dot" }, hoverinfo: "skip",
  };
}

function mapLayout(figure, width) {
  const [x, y] = figure.box;
  const second = page.labels[figure.second] || figure.second;
  return layout(axis(page.labels.lr, x, true), axis(second, y, true), 290, width);
}

// Drawing

const waiting = new Set();

function draw(place) {
  waiting.delete(place);
  const { figure, number, panel } = place.dataset;
  const width = printing ? (figure === "maps" ? 205 : 305) : undefined;
  const config = { displayModeBar: false, responsive: true, doubleClick: "reset", showTips: false };
  if (figure === "curves") {
    const one = page.curves.panels[panel];
    Plotly.react(place, curveTraces(one), curveLayout(one, width), config);
  } else {
    const whole = page.maps[number];
    Plotly.react(place, mapTraces(whole, whole.panels[panel]), mapLayout(whole, width), config);
  }
  place.dataset.drawn = "yes";
}

function redraw(figure, number) {
  const wanted = (place) => (!figure || place.dataset.figure === figure) && (!number || place.dataset.number === number);
  const places = [...document.querySelectorAll(".chart")].filter((place) => place.dataset.drawn && wanted(place));
  places.forEach(draw);
}

function legendMark(index) {
  const colour = colourOf(index);
  const dash = { solid: "", dash: "6 3", dot: "2 2", dashdot: "6 2 2 2", longdash: "9 3", longdashdot: "9 2 2 2" };
  const line = { x1: 0, x2: 26, y1: 7, y2: 7, stroke: colour, "stroke-width": 2 };
  const shapes = {
    circle: drawn("circle", { cx: 13, cy: 7, r: 4.5, fill: colour }),
    square: drawn("rect", { x: 9, y: 3, width: 8, height: 8, fill: colour }),
    diamond: drawn("path", { d: "M13 1.5 L18.5 7 L13 12.5 L7.5 7 Z", fill: colour }),
    "triangle-up": drawn("path", { d: "M13 1.5 L18.5 12 L7.5 12 Z", fill: colour }),
    cross: drawn("path", { d: "M11 2h4v3h3v4h-3v3h-4v-3h-3v-4h3z", fill: colour }),
    "triangle-down": drawn("path", { d: "M13 12.5 L18.5 2 L7.5 2 Z", fill: colour }),
    hexagon: drawn("path", { d: "M13 1.5l5 2.8v5.4l-5 2.8l-5-2.8v-5.4z", fill: colour }),
    star: drawn("path", { d: "M13 1l1.8 4 4.2.4-3.2 2.8 1 4.2-3.8-2.2-3.8 2.2 1-4.2-3.2-2.8 4.2-.4z", fill: colour }),
  };
  const style = dash[DASHES[index % DASHES.length]];
  const stroke = drawn("line", style ? { ...line, "stroke-dasharray": style } : line);
  return drawn("svg", { width: 26, height: 14, "aria-hidden": "true" }, [stroke, shapes[SYMBOLS[index % SYMBOLS.length]]]);
}

function drawLegend() {
  const list = document.getElementById("legend");
  if (!list) return;
  list.replaceChildren(...page.curves.members.map((member, index) => {
    const button = document.createElement("button");
    button.type = "button";
    button.setAttribute("aria-pressed", String(!hiddenMembers.has(member)));
    button.append(legendMark(index), member || "the model");
    button.addEventListener("click", () => {
      if (!hiddenMembers.delete(member)) hiddenMembers.add(member);
      button.setAttribute("aria-pressed", String(!hiddenMembers.has(member)));
      redraw("curves");
    });
    const item = document.createElement("li");
    item.append(button);
    return item;
  }));
}

function drawScales() {
  for (const ramp of document.querySelectorAll(".ramp")) {
    const steps = Array.from({ length: LEVELS }, (_, level) => drawn("rect", {
      x: level, y: 0, width: 1.05, height: 1, fill: onRamp((level + 0.5) / LEVELS) }));
    ramp.replaceChildren(drawn("svg", { viewBox: `0 0 ${LEVELS} 1`, preserveAspectRatio: "none" }, steps));
  }
  const line = { fill: "#ffffff", stroke: "#000000", "stroke-width": 1.2 };
  const marks = {
    star: "M9 1.5l2.2 5 5.3.5-4 3.6 1.2 5.3L9 13.1l-4.7 2.8 1.2-5.3-4-3.6 5.3-.5z",
    cross: "M6.5 2h5v4.5H16v5h-4.5V16h-5v-4.5H2v-5h4.5z",
  };
  for (const mark of document.querySelectorAll(".mark")) {
    const path = drawn("path", { d: marks[mark.dataset.mark], ...line });
    mark.replaceChildren(drawn("svg", { width: 18, height: 18 }, [path]));
  }
}

function figureButton(button) {
  const { figure, number, act } = button.dataset;
  if (act !== "reset") {
    asked[act] = !asked[act];
    button.setAttribute("aria-pressed", String(asked[act]));
  }
  redraw(figure, number);
}

function startFigures() {
  if (typeof Plotly === "undefined") return;
  drawLegend();
  drawScales();
  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (!entry.isIntersecting) continue;
      seen.unobserve(entry.target);
      if (waiting.has(entry.target)) draw(entry.target);
    }
  }, { rootMargin: "400px" });
  for (const place of document.querySelectorAll(".chart")) {
    waiting.add(place);
    seen.observe(place);
  }
  for (const button of document.querySelectorAll("button[data-act]")) {
    button.addEventListener("click", () => figureButton(button));
  }
  dark.addEventListener("change", repaint);
  window.addEventListener("beforeprint", () => print(true));
  window.addEventListener("afterprint", () => print(false));
  onPaper.addEventListener("change", (event) => print(event.matches));
}

function repaint() {
  drawLegend();
  redraw();
}

function print(now) {
  if (now === printing) return;
  printing = now;
  if (now) [...waiting].forEach(draw);
  repaint();
}
