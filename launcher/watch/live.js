"use strict";
// Brings a page up to date with what the server sends: changed parts as HTML, new points of curves, and what is drawn over time.

let after = data.live.after, news = null, isLost = false, runState = data.live.state;

function tell(text, kind = "") {
  const line = document.getElementById("live");
  line.textContent = text;
  line.parentElement.className = "live " + kind;
}

function tellState() {
  const stop = document.getElementById("stop");
  if (stop) stop.hidden = !["running", "abandoned"].includes(runState);
  if (runState === undefined || runState === "running") tell("Live");
  else tell("The run does not go on: nothing new is expected.", "off");
}

// Changes an element into another one, and leaves alone what is equal: selections, open logs, and canvases with their curves.
function morph(from, to) {
  if (from.matches("canvas, .legend, output")) return;
  for (const { name } of [...from.attributes]) if (!to.hasAttribute(name) && name !== "open" && !(name === "hidden" && from.matches("figure"))) from.removeAttribute(name);
  for (const { name, value } of [...to.attributes]) if (from.getAttribute(name) !== value) from.setAttribute(name, value);
  let at = 0;
  for (const node of [...to.childNodes]) {
    const here = from.childNodes[at++], named = node.id ? [...from.children].find((child) => child.id === node.id) : undefined;
    const old = named ?? (here?.id ? undefined : here);
    if (old && old.nodeName === node.nodeName) {
      if (old !== here) from.insertBefore(old, here);
      if (node.nodeType === Node.ELEMENT_NODE) morph(old, node);
      else if (old.nodeValue !== node.nodeValue) old.nodeValue = node.nodeValue;
    } else from.insertBefore(document.importNode(node, true), here ?? null);
  }
  while (from.childNodes.length > at) from.lastChild.remove();
}

function replaceParts(parts, order) {
  const main = document.querySelector("main"), part = (key) => main.querySelector(`:scope > [data-part="${key}"]`);
  for (const [key, html] of Object.entries(parts)) {
    const wanted = new DOMParser().parseFromString(`<div data-part="${key}">${html}</div>`, "text/html").body.firstChild;
    if (part(key)) morph(part(key), wanted); else main.append(document.importNode(wanted, true));
  }
  if (!order) return;
  for (const child of [...main.children]) if (!order.includes(child.dataset.part)) child.remove();
  if (order.some((key, n) => main.children[n] !== part(key))) main.append(...order.map(part));
  charts = charts.filter((chart) => chart.canvas.isConnected);
  strips = strips.filter((strip) => strip.canvas.isConnected);
}

// Keeps the order and the search that the reader has chosen in the list of runs.
let sortedBy = null;
function arrange() {
  const body = document.querySelector(".runs tbody"), words = document.getElementById("search")?.value.toLowerCase().split(/\s+/);
  if (!body) return;
  tellChosen();
  const rows = [...body.rows];
  for (const row of rows) row.hidden = !words.every((word) => (row.textContent + row.id).toLowerCase().includes(word));
  document.getElementById("count").textContent = rows.filter((row) => !row.hidden).length + " of " + rows.length + " runs";
  if (!sortedBy) return;
  const { column, sign } = sortedBy;
  for (const head of document.querySelectorAll(".runs th")) {
    const own = Number(head.querySelector("button")?.dataset.column) === column;
    if (own) head.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending"); else head.removeAttribute("aria-sort");
  }
  const value = (row) => { const cell = row.cells[column]; return cell.dataset.order ?? cell.textContent; };
  const compare = (a, b) => {
    if ((a === "") !== (b === "")) return a === "" ? 1 : -1; // runs without a value come last, in any order
    return sign * (isNaN(a) || isNaN(b) ? a.localeCompare(b) : a - b);
  };
  body.append(...rows.sort((a, b) => compare(value(a), value(b))));
}
document.addEventListener("input", (event) => { if (event.target.id === "search") arrange(); });
document.addEventListener("change", (event) => { if (event.target.name === "run") tellChosen(); });

// Says how many runs the button compares: the reader may have scrolled away from them.
function tellChosen() {
  const button = document.querySelector("button[form=chosen]"), most = Number(button.dataset.most);
  const count = document.querySelectorAll("#chosen input:checked").length;
  button.disabled = count === 0 || count > most;
  button.textContent = count > most ? "Choose up to " + most + " runs" : count ? "Compare " + count + (count > 1 ? " runs" : " run") : "Compare the chosen runs";
}
document.addEventListener("click", (event) => {
  const column = Number(event.target.dataset?.column);
  if (!column) return;
  sortedBy = { column, sign: sortedBy?.column === column ? -sortedBy.sign : 1 };
  arrange();
});

function joined(old, added) {
  const all = new old.constructor(old.length + added.length);
  all.set(old);
  all.set(added, old.length);
  return all;
}

// Goes on with curves that the page has.
function append({ places, progress: specsOfRuns, charts: specs }) {
  const decoded = decodePlaces(places);
  loadProgress(specsOfRuns, decoded).forEach((added, number) => {
    const old = progress[number], kept = old ? firstFrom(old.steps, added.steps[0]) : 0; // a restart repeats steps
    const more = (name) => old?.[name] && added[name] ? joined(old[name].subarray(0, kept), added[name]) : null;
    progress[number] = old ? { steps: more("steps"), seconds: more("seconds"), tokens: more("tokens") } : added;
  });
  for (const spec of specs) {
    const chart = charts.find((one) => one.spec.key === spec.key);
    for (const added of chart ? spec.series : []) {
      const s = chart.series.find((one) => one.name === added.name);
      if (!s) continue;
      const y = decode(added.y, Float32Array), low = added.low ? decode(added.low, Float32Array) : y;
      const high = added.high ? decode(added.high, Float32Array) : y;
      s.band = s.band || added.low !== null;
      s.low = joined(s.low, low);
      s.high = joined(s.high, high);
      s.steps = joined(s.steps, decoded(added.x));
      s.y = joined(s.y, y);
      s.pieces = pieces(s.steps);
    }
    if (!chart) continue;
    chart.placeCurves();
    applyControls(chart);
  }
}

function mark(marks) {
  const chart = charts.find((one) => one.spec.key === "loss") ?? charts[0]; // as in curves.py
  if (!chart) return;
  chart.spec.marks.push(...marks);
  chart.addLegend();
}

let isDue = false, cost = 0;
function redraw() {
  if (isDue) return;
  isDue = true;
  setTimeout(() => requestAnimationFrame(() => {
    isDue = false;
    const begin = performance.now();
    drawAll();
    cost = performance.now() - begin;
  }), Math.min(500, 5 * cost));
}

function apply(message) {
  if (message.reload) { location.reload(); return; }
  if (message.parts) { replaceParts(message.parts, message.order); arrange(); }
  if (message.data) load(message.data);
  if (message.points) append(message.points);
  if (message.marks) mark(message.marks);
  if (message.made) document.querySelector("footer").textContent = "Made by podrun at " + message.made + ".";
  if (message.state && message.state !== runState) { runState = message.state; tellState(); }
  if (message.removed) { runState = "removed"; tellState(); tell(message.removed + " This is what was known of it.", "off"); news.close(); }
  if (message.notice) tell(message.notice, "lost");
  if (message.data || message.points || message.marks || message.parts) redraw();
}

function connect() {
  tellState();
  const url = new URL(data.live.news, location.href);
  url.searchParams.set("after", after);
  news = new EventSource(url);
  news.onopen = () => { if (isLost) tellState(); isLost = false; };
  news.onmessage = (event) => { after = Number(event.lastEventId); apply(JSON.parse(event.data)); };
  news.onerror = () => { isLost = true; tell("Not connected: `podrun watch` has ended, or cannot be reached. The page tries again.", "lost"); };
}

// A page that nobody sees costs nothing, and leaves its connection to others: a browser has six to one server.
document.addEventListener("visibilitychange", () => {
  if (runState === "removed") return;
  if (document.hidden) news.close(); else connect();
});

document.getElementById("stop")?.addEventListener("click", async () => {
  if (!confirm("Stop run " + data.live.run + "? It saves a checkpoint first, as after Ctrl-C.")) return;
  try {
    const answer = await fetch(new URL(data.live.stop, location.href), { method: "POST" });
    tell(await answer.text());
  } catch { tell("The run could not be stopped: `podrun watch` does not answer.", "lost"); }
});
arrange();
connect();
