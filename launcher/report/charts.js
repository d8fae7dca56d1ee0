"use strict";
// Curves on a canvas. Points that share a pixel column are drawn as one line from the lowest to the highest of them.

function decode(text, Type) {
  const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  return new Type(bytes.buffer);
}

// The places of the points: many curves share them.
function decodePlaces(texts) {
  const decoded = new Map();
  return (number) => {
    if (!decoded.has(number)) decoded.set(number, decode(texts[number], Float64Array));
    return decoded.get(number);
  };
}

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
}

function niceStep(span, count) {
  const rough = span / Math.max(1, count), power = 10 ** Math.floor(Math.log10(rough));
  return power * [1, 2, 5, 10].find((factor) => factor * power >= rough * 0.75);
}

function short(value) {
  const size = Math.abs(value);
  if (size >= 1e12) return value.toExponential(1).replace("e+", "e");
  if (size >= 1e9) return trim(value / 1e9) + "G";
  if (size >= 1e6) return trim(value / 1e6) + "M";
  if (size >= 1e4) return trim(value / 1e3) + "k";
  return size !== 0 && size < 1e-3 ? value.toExponential(1).replace(".0e", "e") : trim(value);
}

function trim(value) {
  return String(Number(value.toPrecision(4)));
}

function clock(seconds) {
  const s = Math.max(0, Math.floor(seconds)), pad = (n) => String(n).padStart(2, "0");
  const minutes = Math.floor(s / 60) % 60, hours = Math.floor(s / 3600);
  return hours ? hours + ":" + pad(minutes) + ":" + pad(s % 60) : minutes + ":" + pad(s % 60);
}

// The title of a time axis up to some seconds.
function timeTitle(seconds) {
  return "time since the start, " + (seconds >= 3600 ? "h:mm:ss" : "m:ss");
}

// The index of the first x that is not below the value.
function firstFrom(x, value) {
  let low = 0, high = x.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (x[middle] < value) low = middle + 1; else high = middle;
  }
  return low;
}

// Points of a resumed run go back to an earlier step: pieces that only go forward, so that each can be searched.
function pieces(x) {
  const starts = [0];
  for (let i = 1; i < x.length; i++) if (x[i] < x[i - 1]) starts.push(i);
  return starts.map((start, n) => [start, starts[n + 1] ?? x.length]);
}

// A curve of fewer points is not smoothed: its values are to be read.
const FEW = 10;

// A curve that turns at few of its points has no noise: a smoothed one would only come later.
function isSmooth(y) {
  let turns = 0;
  for (let i = 2; i < y.length; i++) if ((y[i] - y[i - 1]) * (y[i - 1] - y[i - 2]) < 0) turns++;
  return turns < y.length / 20;
}

// The values of more curves than these are listed beside the pointer, because they do not fit above the chart.
const ON_A_LINE = 4;

// What the charts are drawn over: steps, seconds or tokens. `progress` has, for each run, the seconds and tokens at its steps.
let over = "steps", progress = [];

function loadProgress(specs, places) {
  return specs.map((spec) => ({
    steps: places(spec.steps), seconds: places(spec.seconds), tokens: spec.tokens === null ? null : places(spec.tokens),
  }));
}

// The places of steps on an axis, between the steps of the run that are known.
function placesOn(axis, steps, run) {
  if (axis === "steps") return steps;
  const known = run.steps, values = run[axis], last = known.length - 1;
  return steps.map((step) => {
    const at = Math.min(last, firstFrom(known, step));
    if (at === 0 || known[at] <= step) return values[at];
    return values[at - 1] + (values[at] - values[at - 1]) * (step - known[at - 1]) / (known[at] - known[at - 1]);
  });
}

// Points of a chart with fewer are never left out of the axis.
const ENOUGH = 20;

// The ends of the axis without outliers: values far from 96 % of all do not flatten the rest. They are not changed.
// Low values that are not negative stay: an axis from zero has them all, such as a warm-up or a pause.
function withoutOutliers(values, low, high) {
  if (values.length < ENOUGH) return [low, high];
  const sorted = Float64Array.from(values).sort(), at = (share) => sorted[Math.round(share * (sorted.length - 1))];
  const least = at(0.02), most = at(0.98), span = most - least;
  if (!(span > 0)) return [low, high];
  const near = sorted.filter((value) => value >= least - 3 * span && value <= most + 3 * span);
  return [low < 0 && low < least - 3 * span ? near[0] : low, high > most + 3 * span ? near[near.length - 1] : high];
}

// Curves that the reader has hidden by a click on the legend.
const hidden = new Set();

class Chart {
  constructor(figure) {
    this.figure = figure;
    this.canvas = figure.querySelector("canvas");
    this.output = figure.querySelector("output");
    this.log = false;
    this.all = false; // outliers are shown, too
    this.note = "";
    this.hover = null;
    this.isPointedAt = false;
    this.tip = document.createElement("div");
    this.tip.className = "tip";
    this.tip.hidden = true;
  }

  load(spec, places) {
    this.spec = spec;
    this.series = spec.series.map((s, number) => {
      const steps = places(s.x), y = decode(s.y, Float32Array);
      // Of runs that are compared, all curves of one colour are hidden together, in all charts.
      const key = s.colour === null ? spec.key + " " + s.name : "colour " + s.colour;
      return { key, name: s.name, style: s.style, colour: "c" + (s.colour ?? number % 8), run: s.progress,
        steps, x: steps, y, pieces: pieces(steps), smooth: null,
        // Of curves that are compared the first are the widest: those that lie on each other are all seen.
        wider: s.colour === null ? 0 : 2 * (1 - number / spec.series.length),
        low: s.low ? decode(s.low, Float32Array) : y, high: s.high ? decode(s.high, Float32Array) : y, band: s.low !== null };
    });
    this.placeCurves();
    this.addLegend();
  }

  // Places the points on the chosen axis, if all runs of the chart have it.
  placeCurves() {
    const runs = this.series.map((s) => progress[s.run ?? -1]);
    this.axis = this.spec.axis !== "step" ? this.spec.axis : runs.length && runs.every((run) => run?.[over]) ? over : "steps";
    this.series.forEach((s, n) => { s.x = this.spec.axis === "step" ? placesOn(this.axis, s.steps, runs[n]) : s.steps; });
    this.first = this.series.reduce((least, s) => s.steps.reduce((a, b) => Math.min(a, b), least), Infinity);
    this.markRun = runs[0];
    this.whole = this.extent();
  }

  get isTime() {
    return this.axis === "time" || this.axis === "seconds";
  }

  extent() {
    let low = Infinity, high = -Infinity;
    for (const s of this.series) for (const x of s.x) { if (x < low) low = x; if (x > high) high = x; }
    if (this.isTime) low = Math.min(low, 0);
    return low < high ? [low, high] : [low - 0.5, high + 0.5];
  }

  addLegend() {
    const legend = this.figure.querySelector(".legend");
    legend.replaceChildren();
    // Runs that are compared have the same colours in all charts, which the first one names.
    if (charts.length && charts[0] !== this && this.series[0]?.key.startsWith("colour ")) return;
    // Dots in the colour of another curve need no name of their own, and neither does the same variant once more.
    const isAgain = (s, other) => other.colour === s.colour && (s.style === "dots" || s.name.replace(/ #\d+$/, "") === other.name);
    const named = this.series.filter((s, n, all) => !all.slice(0, n).some((other) => isAgain(s, other)));
    const entries = named.map((s) => [s.name, s.colour, s.key]);
    const kinds = new Set(this.marks.map((mark) => mark[1]));
    for (const [kind, text, name] of [["restart", "restart", "down"], ["save", "checkpoint", "save"], ["evaluate", "evaluation", "evaluate"]])
      if (kinds.has(kind)) entries.push([text, name]);
    if (entries.length < 2) return;
    for (const [text, name, key] of entries) {
      const item = document.createElement("span"), swatch = document.createElement("i");
      swatch.dataset.colour = name;
      swatch.style.background = colour(name);
      item.append(swatch, text);
      if (key) {
        item.setAttribute("role", "button");
        item.tabIndex = 0;
        item.title = "Show or hide";
        item.dataset.curve = key;
        item.setAttribute("aria-pressed", String(!hidden.has(key)));
      }
      legend.append(item);
    }
  }

  // A run that goes on from an earlier run's checkpoint has a mark at its step, before its curves begin.
  get marks() {
    return this.spec.marks.filter(([step]) => step >= this.first);
  }

  get shown() {
    return this.series.filter((s) => !hidden.has(s.key));
  }

  smoothen(weight) {
    for (const s of this.series) {
      s.smooth = null;
      if (!this.spec.smooth || s.style !== "line" || weight === 0 || s.x.length < FEW || isSmooth(s.y)) continue;
      s.smooth = new Float32Array(s.y.length);
      for (const [from, to] of s.pieces) {
        let mean = 0, mass = 0;
        for (let i = from; i < to; i++) {
          mean = weight * mean + (1 - weight) * s.y[i];
          mass = weight * mass + 1 - weight;
          s.smooth[i] = mean / mass;
        }
      }
    }
  }

  // The lowest and highest value between two places of the axis.
  bounds([from, to]) {
    let low = Infinity, high = -Infinity;
    const values = [];
    this.note = "";
    for (const s of this.shown)
      for (const [start, end] of s.pieces) {
        const x = s.x.subarray(start, end), last = firstFrom(x, to * (1 + 1e-12) + 1e-9);
        for (let i = start + firstFrom(x, from); i < start + last; i++) {
          if (!(this.log && s.low[i] <= 0) && s.low[i] < low) low = s.low[i];
          if (s.high[i] > high) high = s.high[i];
          values.push(s.y[i]);
        }
      }
    if (!(low <= high)) return [this.log ? 0.1 : 0, 1];
    if (low === 0 && high === 0) return [0, 1];
    if (this.log) return [Math.max(low, 1e-38) / 1.1, Math.max(high, 1e-37) * 1.1];
    if (this.spec.most) return [0, Math.max(high, this.spec.most)];
    if (!this.all && this.spec.axis !== "time") {
      [low, high] = withoutOutliers(values, low, high);
      const beyond = values.filter((value) => value < low || value > high).length;
      if (beyond) this.note = beyond + (beyond === 1 ? " value is" : " values are") + " beyond the axis";
    }
    if (low > 0 && low < 0.5 * high) low = 0;
    const margin = (high - low || Math.abs(high) || 1) * 0.06;
    return [low === 0 ? 0 : low - margin, high + margin];
  }

  draw(range) {
    const width = this.canvas.clientWidth, height = this.spec.key === "loss" ? 300 : 190, ratio = window.devicePixelRatio || 1;
    if (!width) return;
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(height * ratio);
    this.canvas.style.height = height + "px";
    const pen = this.canvas.getContext("2d");
    pen.scale(ratio, ratio);
    pen.font = "12px system-ui, sans-serif";
    this.range = range;
    const bounds = this.bounds(range), scale = this.log ? Math.log10 : (v) => v;
    const [low, high] = bounds.map(scale);
    const ticks = this.ticks(bounds);
    const left = 14 + Math.max(...ticks.map((t) => pen.measureText(short(t)).width)), right = width - 12, top = 8, bottom = height - 36;
    this.box = { left, right, top, bottom };
    this.toX = (x) => left + ((x - range[0]) / (range[1] - range[0])) * (right - left);
    this.toY = (y) => bottom - ((scale(y) - low) / (high - low)) * (bottom - top);
    this.drawAxes(pen, ticks);
    pen.save();
    pen.beginPath();
    pen.rect(left - 4, top - 4, right - left + 8, bottom - top + 8); // dots at the edges are whole
    pen.clip();
    this.drawMarks(pen);
    for (const s of this.shown) this.drawSeries(pen, s);
    pen.restore();
    this.still = document.createElement("canvas");
    this.still.width = this.canvas.width;
    this.still.height = this.canvas.height;
    this.still.getContext("2d").drawImage(this.canvas, 0, 0);
    this.point(this.hover);
  }

  // Shows the values at a place of the axis, on top of the curves, which are not drawn again.
  point(place) {
    if (!this.still) return;
    const pen = this.canvas.getContext("2d");
    pen.save();
    pen.setTransform(1, 0, 0, 1, 0, 0);
    pen.clearRect(0, 0, this.canvas.width, this.canvas.height);
    pen.drawImage(this.still, 0, 0);
    pen.restore();
    this.hover = place;
    this.drawHover(pen);
  }

  ticks([low, high]) {
    if (this.log && high / low > 20) {
      const rows = [];
      for (let power = Math.ceil(Math.log10(low)); power <= Math.log10(high); power++) rows.push(10 ** power);
      const every = Math.ceil(rows.length / 7);
      return rows.filter((_, n) => n % every === 0);
    }
    const step = niceStep(high - low, 5), rows = [];
    for (let n = Math.ceil(low / step); n * step <= high * (1 + 1e-9); n++) rows.push(n * step);
    return rows.length ? rows : [low];
  }

  drawAxes(pen, ticks) {
    const { left, right, top, bottom } = this.box, isTime = this.isTime;
    pen.lineWidth = 1;
    pen.strokeStyle = colour("line");
    pen.fillStyle = colour("quiet");
    pen.textAlign = "right";
    pen.textBaseline = "middle";
    for (const tick of ticks) {
      const y = Math.round(this.toY(tick)) + 0.5;
      line(pen, left, y, right, y);
      pen.fillText(short(tick), left - 6, y);
    }
    const span = this.range[1] - this.range[0], count = Math.max(2, Math.floor((right - left) / 90));
    let step = niceStep(span, count);
    if (isTime) step = [1, 5, 10, 30, 60, 300, 600, 1800, 3600, 10800, 21600, 86400].find((s) => s >= span / count) ?? step;
    else step = Math.max(1, step);
    pen.textAlign = "center";
    pen.textBaseline = "top";
    for (let n = Math.ceil(this.range[0] / step); n * step <= this.range[1]; n++) {
      const x = this.toX(n * step), text = isTime ? clock(n * step) : short(n * step), half = pen.measureText(text).width / 2;
      line(pen, x, bottom, x, bottom + 4);
      pen.fillText(text, Math.min(x, right + 10 - half), bottom + 6);
    }
    pen.fillText(isTime ? timeTitle(this.range[1]) : ["tokens", "trial"].includes(this.axis) ? this.axis : "step", (left + right) / 2, bottom + 21);
    line(pen, left, bottom + 0.5, right, bottom + 0.5);
  }

  drawMarks(pen) {
    const { top, bottom } = this.box;
    // A run often evaluates at the steps that it saves: the shorter mark is drawn over the longer one.
    for (const [step, kind] of this.marks.sort((a, b) => (a[1] === "evaluate") - (b[1] === "evaluate"))) {
      pen.strokeStyle = pen.fillStyle = colour(kind === "restart" ? "down" : kind);
      const at = this.toX(placesOn(this.axis, [step], this.markRun)[0]);
      pen.lineWidth = kind === "restart" ? 1 : 2;
      if (kind === "restart") {
        pen.setLineDash([4, 3]);
        line(pen, at, top, at, bottom);
        pen.setLineDash([]);
      } else {
        line(pen, at, bottom - (kind === "save" ? 14 : 7), at, bottom);
      }
    }
  }

  drawSeries(pen, s) {
    pen.strokeStyle = pen.fillStyle = colour(s.colour);
    if (s.style === "dots" || s.x.length === 1) {
      for (let i = 0; i < s.x.length; i++) dot(pen, this.toX(s.x[i]), this.toY(s.y[i]));
      if (s.x.length > 1) this.stroke(pen, s, s.y, s.y, 1);
      return;
    }
    if (s.smooth) {
      this.stroke(pen, s, s.low, s.high, 1, 0.3);
      this.stroke(pen, s, s.smooth, s.smooth, 2 + s.wider);
      return;
    }
    if (s.band) this.stroke(pen, s, s.low, s.high, 1, 0.4);
    this.stroke(pen, s, s.y, s.y, 1.5 + s.wider);
  }

  // Steps that a restart has repeated are fainter.
  stroke(pen, s, lows, highs, width, alpha = 1) {
    pen.lineWidth = width;
    pen.lineJoin = "round";
    s.pieces.forEach(([start, end], n) => {
      const again = n + 1 < s.pieces.length ? start + firstFrom(s.x.subarray(start, end), s.x[s.pieces[n + 1][0]]) : end;
      pen.globalAlpha = alpha;
      this.path(pen, s, lows, highs, start, again);
      pen.globalAlpha = 0.4 * alpha;
      if (again < end) this.path(pen, s, lows, highs, Math.max(start, again - 1), end);
    });
    pen.globalAlpha = 1;
  }

  path(pen, s, lows, highs, start, end) {
    const x = s.x.subarray(start, end);
    const from = Math.max(start, start + firstFrom(x, this.range[0]) - 1);
    const to = Math.min(end, start + firstFrom(x, this.range[1]) + 2);
    pen.beginPath();
    let column = null, low = 0, high = 0, moved = false;
    const flush = () => {
      if (column === null) return;
      const y = this.toY(low), z = this.toY(high);
      if (moved) pen.lineTo(column, y); else pen.moveTo(column, y);
      if (z !== y) pen.lineTo(column, z);
      moved = true;
    };
    for (let i = from; i < to; i++) {
      if (this.log && highs[i] <= 0) continue;
      const bottom = this.log && lows[i] <= 0 ? highs[i] : lows[i], at = Math.round(this.toX(s.x[i]) * 2) / 2;
      if (at === column) { low = Math.min(low, bottom); high = Math.max(high, highs[i]); continue; }
      flush();
      column = at; low = bottom; high = highs[i];
    }
    flush();
    pen.stroke();
  }

  drawHover(pen) {
    if (this.hover === null || this.hover < this.range[0] || this.hover > this.range[1]) {
      this.output.textContent = this.note;
      this.tip.hidden = true;
      return;
    }
    const { top, bottom } = this.box, texts = [], values = [];
    let at = null;
    for (const s of this.shown) {
      const i = this.nearest(s);
      if (i === null) continue;
      at = at ?? s.x[i];
      texts.push((this.series.length > 1 ? s.name + " " : "") + trim((s.smooth ?? s.y)[i]) + (s.smooth ? " (" + trim(s.y[i]) + ")" : ""));
      if (s.style !== "dots" || s.x[i] === at) values.push([s, s.y[i]]); // an evaluation of another step is not listed
      pen.fillStyle = colour(s.colour);
      dot(pen, this.toX(s.x[i]), this.toY((s.smooth ?? s.y)[i]));
    }
    pen.strokeStyle = colour("quiet");
    const x = this.toX(this.hover);
    line(pen, x, top, x, bottom);
    const isList = values.length > ON_A_LINE;
    if (at !== null) this.output.textContent = this.named(at) + (isList ? "" : ": " + texts.slice(0, ON_A_LINE).join(", "));
    this.tip.hidden = !(isList && this.isPointedAt);
    if (!this.tip.hidden) this.list(values, x);
  }

  // Lists the values of many curves beside the pointer, in their order on the chart.
  list(values, x) {
    values.sort((a, b) => b[1] - a[1]);
    this.tip.replaceChildren(...values.map(([s, value]) => {
      const row = document.createElement("div"), swatch = document.createElement("i"), name = document.createElement("span"), number = document.createElement("b");
      swatch.className = "swatch";
      swatch.style.background = colour(s.colour);
      name.textContent = s.name;
      number.textContent = trim(value);
      row.append(swatch, name, number);
      return row;
    }));
    if (!this.tip.isConnected) this.figure.append(this.tip);
    const isRight = x > this.canvas.clientWidth / 2;
    this.tip.style.left = isRight ? "auto" : x + 12 + "px";
    this.tip.style.right = isRight ? this.canvas.clientWidth - x + 12 + "px" : "auto";
    this.tip.style.top = this.canvas.offsetTop + 8 + "px";
  }

  named(at) {
    return this.isTime ? clock(at) : this.axis === "tokens" ? short(at) + " tokens" : (this.axis === "trial" ? "trial " : "step ") + at;
  }

  // Shows what a drag has chosen so far.
  shade(from, to) {
    const pen = this.canvas.getContext("2d"), { top, bottom } = this.box;
    pen.globalAlpha = 0.15;
    pen.fillStyle = colour("c0");
    pen.fillRect(this.toX(from), top, this.toX(to) - this.toX(from), bottom - top);
    pen.globalAlpha = 1;
  }

  // The point nearest to the place that the pointer is at; of several attempts, the last.
  nearest(s) {
    let best = null, distance = Infinity;
    for (const [start, end] of s.pieces) {
      const i = start + firstFrom(s.x.subarray(start, end), this.hover);
      for (const near of [i - 1, i])
        if (near >= start && near < end && Math.abs(s.x[near] - this.hover) <= distance) {
          distance = Math.abs(s.x[near] - this.hover);
          best = near;
        }
    }
    return best;
  }

  place(event) {
    const box = this.canvas.getBoundingClientRect(), x = event.clientX - box.left;
    const share = (x - this.box.left) / (this.box.right - this.box.left);
    return this.range[0] + Math.min(1, Math.max(0, share)) * (this.range[1] - this.range[0]);
  }
}

function line(pen, x, y, toX, toY) {
  pen.beginPath();
  pen.moveTo(x, y);
  pen.lineTo(toX, toY);
  pen.stroke();
}

function dot(pen, x, y) {
  pen.beginPath();
  pen.arc(x, y, 3, 0, 7);
  pen.fill();
}
