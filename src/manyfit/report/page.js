"use strict";
(() => {
  const data = JSON.parse(document.getElementById("page-data").textContent);
  const root = document.documentElement;
  const resolve = (value) => {
    if (Array.isArray(value)) return value.map(resolve);
    if (value === null || typeof value !== "object") return value;
    if ("$array" in value) return data.arrays[value.$array];
    return Object.fromEntries(Object.entries(value).map(([key, inner]) => [key, resolve(inner)]));
  };
  const charts = data.charts.map((chart) => ({ ...chart, node: document.getElementById(chart.key), drawn: false, stale: true, visible: false }));
  const hidden = new Set();
  let by = null; // the horizontal axis that was chosen; null for each chart's first

  const color = (name) => getComputedStyle(root).getPropertyValue(`--${name}`).trim();
  const narrow = () => window.innerWidth <= 600;
  const isAxis = (name) => /^[xy]axis\d*$/.test(name);

  // What belongs to the page and not to a figure: colours of text and grid, margins, how it is hovered.
  const themed = (layout) => {
    const axis = { gridcolor: color("grid"), zerolinecolor: color("rule"), linecolor: color("rule"), automargin: true };
    const merged = {
      margin: { l: 8, r: 8, t: 10, b: 8 }, hovermode: "closest", showlegend: false, dragmode: narrow() ? false : "zoom",
      ...layout,
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", autosize: true,
      font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: color("text"), ...(layout.font || {}) },
      legend: { orientation: "h", yanchor: "bottom", y: 1.02, x: 0, traceorder: "normal", ...(layout.legend || {}) },
      hoverlabel: { bgcolor: color("surface"), bordercolor: color("rule"), font: { color: color("text") }, namelength: -1, ...(layout.hoverlabel || {}) },
    };
    for (const name of new Set(["xaxis", "yaxis", ...Object.keys(layout).filter(isAxis)])) {
      merged[name] = { ...axis, ...(layout[name] || {}) };
    }
    return merged;
  };

  const current = (chart) => {
    const figure = resolve(chart.figure);
    const names = Object.keys(chart.by);
    const layout = { ...figure.layout };
    let traces = figure.data;
    if (names.length) {
      const chosen = resolve(chart.by[names.includes(by) ? by : names[0]]);
      layout.xaxis = { ...(layout.xaxis || {}), title: { text: chosen.title } };
      traces = traces.map((trace, index) => ({ ...trace, x: chosen.x[index] || [] }));
    }
    traces = traces.map((trace) => ({
      ...trace, visible: trace.legendgroup !== undefined && hidden.has(trace.legendgroup) ? false : trace.visible ?? true,
    }));
    return [traces, themed(layout)];
  };

  const draw = (chart) => {
    chart.drawn = true;
    chart.stale = false;
    const [traces, layout] = current(chart);
    Plotly.react(chart.node, traces, layout, { responsive: true, displaylogo: false, scrollZoom: false, modeBarButtons: [["toImage", "resetScale2d"]],
      toImageButtonOptions: { filename: document.getElementById(`${chart.key}-title`).textContent, scale: 2 } })
      .then(() => { chart.node.dataset.drawn = "true"; });
  };
  // What is on the screen is drawn first; the rest while nothing else happens, one at a time.
  const later = window.requestIdleCallback || ((work) => setTimeout(work, 30));
  let waits = false;
  const drawNext = () => {
    waits = false;
    const next = charts.find((chart) => chart.stale);
    if (next) { draw(next); drawRest(); }
  };
  const drawRest = () => { if (!waits) { waits = true; later(drawNext); } };
  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      const chart = charts.find((one) => one.node === entry.target);
      chart.visible = entry.isIntersecting;
      if (chart.visible && chart.stale) draw(chart);
    }
    drawRest();
  }, { rootMargin: "100px" });
  charts.forEach((chart) => { seen.observe(chart.node); reachable(chart); });
  const redraw = () => {
    charts.forEach((chart) => { chart.stale = true; if (chart.visible) draw(chart); });
    drawRest();
  };
  window.addEventListener("beforeprint", () => charts.filter((chart) => chart.stale).forEach(draw));

  // The arrow keys walk along the points of a focused chart; up and down change the line.
  let telling = 0;
  function reachable(chart) {
    let trace = 0, point = -1;
    chart.node.addEventListener("keydown", (event) => {
      const step = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] }[event.key];
      if (!step || event.target !== chart.node || !chart.drawn) return;
      event.preventDefault();
      const shown = chart.node.data.map((one, index) => [one, index]).filter(([one]) => one.visible !== false && one.hoverinfo !== "skip" && (one.y || one.x || []).length);
      if (!shown.length) return;
      trace = (trace + step[0] + shown.length) % shown.length;
      const [one, curve] = shown[trace];
      const length = (one.orientation === "h" ? one.x : one.y).length;
      point = Math.max(0, Math.min(length - 1, point + step[1]));
      const axes = [one.xaxis || "x", one.yaxis || "y"];
      Plotly.Fx.hover(chart.node, [{ curveNumber: curve, pointNumber: point }], axes.join(""));
      clearTimeout(telling);
      telling = setTimeout(() => {  // Plotly shows at most one hover in 50 ms
        live.textContent = [...chart.node.querySelectorAll(".hoverlayer text")].map((one) => one.textContent).join(", ");
      }, 120);
    });
    chart.node.addEventListener("blur", () => chart.drawn && Plotly.Fx.unhover(chart.node));
  }
  const live = document.createElement("p");
  live.setAttribute("aria-live", "polite");
  live.className = "skip";
  document.body.append(live);

  document.querySelectorAll("input[data-series]").forEach((box) => box.addEventListener("change", () => {
    box.checked ? hidden.delete(box.dataset.series) : hidden.add(box.dataset.series);
    redraw();
  }));
  document.querySelectorAll("button[data-all]").forEach((button) => button.addEventListener("click", () => {
    button.closest("fieldset").querySelectorAll("input[data-series]").forEach((box) => {
      box.checked = button.dataset.all === "1";
      box.checked ? hidden.delete(box.dataset.series) : hidden.add(box.dataset.series);
    });
    redraw();
  }));
  document.querySelectorAll(".switch input").forEach((radio) => radio.addEventListener("change", () => {
    by = radio.value;
    document.querySelectorAll(".switch input").forEach((other) => { if (other.value === by) other.checked = true; });
    redraw();
  }));

  const button = document.getElementById("theme");
  const themes = { auto: "as the system", light: "light", dark: "dark" };
  button.addEventListener("click", () => {
    const names = Object.keys(themes);
    root.dataset.theme = names[(names.indexOf(root.dataset.theme) + 1) % names.length];
    button.textContent = `theme: ${themes[root.dataset.theme]}`;
    redraw();
  });
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
})();
