"use strict";
// Binds the controls to the charts. Charts over steps are zoomed together, and so are those over time.

const charts = data.charts.map((spec) => new Chart(document.getElementById("chart-" + spec.key), spec));
const strips = data.strips.map((spec) => new Strip(document.getElementById("strip-" + spec.key), spec));
const ranges = {};

function wholeRange(axis) {
  const extents = charts.filter((chart) => chart.spec.axis === axis).map((chart) => chart.whole);
  return [Math.min(...extents.map((e) => e[0])), Math.max(...extents.map((e) => e[1]))];
}

function drawCharts(axis) {
  for (const chart of charts) if (!axis || chart.spec.axis === axis) chart.draw(ranges[chart.spec.axis] ?? wholeRange(chart.spec.axis));
}

function drawAll() {
  for (const swatch of document.querySelectorAll("[data-colour]")) swatch.style.background = colour(swatch.dataset.colour);
  drawCharts();
  for (const strip of strips) strip.draw();
}

// Pointers move more often than a screen is drawn.
let pending = null;
function point(axis, place, then = () => {}) {
  if (pending === null)
    requestAnimationFrame(() => {
      const [toAxis, to, next] = pending;
      pending = null;
      for (const chart of charts) if (chart.spec.axis === toAxis) chart.point(to);
      next();
    });
  pending = [axis, place, then];
}

for (const chart of charts) {
  const axis = chart.spec.axis;
  let from = null;
  chart.canvas.addEventListener("pointerdown", (event) => {
    if (event.pointerType === "mouse") from = chart.place(event);
    point(axis, chart.place(event));
  });
  chart.canvas.addEventListener("pointermove", (event) => {
    const to = chart.place(event);
    point(axis, to, () => { if (from !== null) chart.shade(from, to); });
  });
  chart.canvas.addEventListener("pointerup", (event) => {
    if (from === null) return;
    const to = chart.place(event), range = [Math.min(from, to), Math.max(from, to)];
    if (Math.abs(chart.toX(to) - chart.toX(from)) > 5) ranges[axis] = range;
    from = null;
    drawCharts(axis);
  });
  chart.canvas.addEventListener("pointerleave", () => { from = null; point(axis, null); });
  chart.canvas.addEventListener("dblclick", () => { delete ranges[axis]; drawCharts(axis); });
}

const smooth = document.getElementById("smooth"), log = document.getElementById("log"), reset = document.getElementById("reset");
if (smooth) {
  const apply = () => {
    for (const chart of charts) {
      chart.smoothen(Number(smooth.value));
      chart.log = log.checked && chart.spec.key === "loss";
    }
    drawCharts("step");
  };
  smooth.addEventListener("input", apply);
  log.addEventListener("change", apply);
  reset.addEventListener("click", () => { for (const axis of Object.keys(ranges)) delete ranges[axis]; drawCharts(); });
  apply();
}

document.getElementById("theme").addEventListener("click", () => {
  const root = document.documentElement, dark = window.matchMedia("(prefers-color-scheme: dark)").matches;
  const now = root.dataset.theme ?? (dark ? "dark" : "light");
  root.dataset.theme = now === "dark" ? "light" : "dark";
  drawAll();
});
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
window.addEventListener("resize", drawAll);
let theme;
window.addEventListener("beforeprint", () => { theme = document.documentElement.dataset.theme; document.documentElement.dataset.theme = "light"; drawAll(); });
window.addEventListener("afterprint", () => {
  if (theme) document.documentElement.dataset.theme = theme; else delete document.documentElement.dataset.theme;
  drawAll();
});
drawAll();
