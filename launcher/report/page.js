"use strict";
// Binds the controls to the charts. Charts over the same axis are zoomed together.

const data = JSON.parse(document.getElementById("data").textContent);
let charts = [], strips = [];
const ranges = {};

// Loads what is to be drawn. Charts and strips of the same keys as before take the new values.
function load({ places, progress: newProgress, charts: newCharts, strips: newStrips }) {
  const decoded = decodePlaces(places);
  if (newProgress.length) progress = loadProgress(newProgress, decoded);
  for (const spec of newCharts) {
    const chart = charts.find((one) => one.spec.key === spec.key) ?? newChart("chart-" + spec.key);
    chart.load(spec, decoded);
    applyControls(chart);
  }
  for (const spec of newStrips) {
    const old = strips.find((one) => one.spec.key === spec.key), strip = old ?? new Strip(document.getElementById("strip-" + spec.key));
    strip.load(spec);
    if (!old) strips.push(strip);
  }
}

function newChart(id) {
  const chart = new Chart(document.getElementById(id));
  listen(chart);
  charts.push(chart);
  return chart;
}

function wholeRange(axis) {
  const extents = charts.filter((chart) => chart.axis === axis).map((chart) => chart.whole);
  return [Math.min(...extents.map((e) => e[0])), Math.max(...extents.map((e) => e[1]))];
}

function drawChart(chart) {
  chart.draw(ranges[chart.axis] ?? wholeRange(chart.axis));
}

// Draws some charts now and the others in the next frames, so that the page never stands still.
let waiting = [], isDrawing = false;
function drawCharts(axis) {
  const asked = charts.filter((chart) => !axis || chart.axis === axis);
  waiting = [...waiting.filter((chart) => !asked.includes(chart)), ...asked];
  if (!isDrawing) drawSome();
}

function drawSome() {
  const begin = performance.now();
  while (waiting.length && performance.now() - begin < 20) drawChart(waiting.shift());
  isDrawing = waiting.length > 0;
  if (isDrawing) requestAnimationFrame(drawSome);
}

function drawAll() {
  for (const swatch of document.querySelectorAll("[data-colour]")) swatch.style.background = colour(swatch.dataset.colour);
  for (const chart of charts) drawChart(chart);
  for (const strip of strips) strip.draw();
}

// Pointers move more often than a screen is drawn.
let pending = null;
function point(axis, place, then = () => {}) {
  if (pending === null)
    requestAnimationFrame(() => {
      const [toAxis, to, next] = pending;
      pending = null;
      for (const chart of charts) if (chart.axis === toAxis) chart.point(to);
      next();
    });
  pending = [axis, place, then];
}

function listen(chart) {
  let from = null;
  chart.canvas.addEventListener("pointerdown", (event) => {
    if (event.pointerType === "mouse") from = chart.place(event);
    chart.isPointedAt = true;
    point(chart.axis, chart.place(event));
  });
  chart.canvas.addEventListener("pointermove", (event) => {
    const to = chart.place(event);
    chart.isPointedAt = true;
    point(chart.axis, to, () => { if (from !== null) chart.shade(from, to); });
  });
  chart.canvas.addEventListener("pointerup", (event) => {
    if (from === null) return;
    const to = chart.place(event), range = [Math.min(from, to), Math.max(from, to)];
    if (Math.abs(chart.toX(to) - chart.toX(from)) > 5) ranges[chart.axis] = range;
    from = null;
    drawCharts(chart.axis);
  });
  chart.canvas.addEventListener("pointerleave", () => { from = null; chart.isPointedAt = false; point(chart.axis, null); });
  chart.canvas.addEventListener("dblclick", () => { delete ranges[chart.axis]; drawCharts(chart.axis); });
}

function applyControls(chart) {
  const words = document.getElementById("find")?.value.toLowerCase().split(/\s+/) ?? [];
  const name = chart.canvas.getAttribute("aria-label").toLowerCase();
  if (chart.spec.axis === "step") chart.figure.hidden = !words.every((word) => name.includes(word));
  const smooth = document.getElementById("smooth");
  if (!smooth || chart.spec.axis !== "step") return;
  chart.smoothen(Number(smooth.value));
  chart.all = document.getElementById("outliers").checked;
  chart.log = document.getElementById("log").checked && chart.series.some((s) => s.high.some((value) => value > 0));
}

// The controls may come later, with the first step.
document.addEventListener("input", (event) => {
  if (!["smooth", "log", "outliers", "find"].includes(event.target.id)) return;
  charts.forEach(applyControls);
  drawCharts();
});
document.addEventListener("change", (event) => {
  if (event.target.id !== "over") return;
  over = event.target.value;
  for (const chart of charts) chart.placeCurves();
  drawCharts();
});
// Not every browser opens what a link leads into.
document.addEventListener("click", (event) => {
  if (event.target.getAttribute("href") === "#failed") document.getElementById("failed").closest("details").open = true;
});
function toggle(target) {
  const key = target.closest?.("[data-curve]")?.dataset.curve;
  if (key === undefined) return;
  if (!hidden.delete(key)) hidden.add(key);
  for (const item of document.querySelectorAll("[data-curve]")) item.setAttribute("aria-pressed", String(!hidden.has(item.dataset.curve)));
  drawCharts();
}
document.addEventListener("click", (event) => toggle(event.target));
document.addEventListener("keydown", (event) => { if (event.key === "Enter") toggle(event.target); });
document.addEventListener("click", (event) => {
  if (event.target.id !== "reset") return;
  for (const axis of Object.keys(ranges)) delete ranges[axis];
  drawCharts();
});

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
load(data);
drawAll();
