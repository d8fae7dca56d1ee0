"use strict";
// Rows of coloured stretches over time, one for each process; of very many, each is a line of a heat map, and some are named.

class Strip {
  constructor(figure) {
    this.figure = figure;
    this.canvas = figure.querySelector("canvas");
    this.output = figure.querySelector("output");
    this.canvas.addEventListener("pointermove", (event) => this.hover(event));
    this.canvas.addEventListener("pointerleave", () => { this.output.textContent = ""; });
  }

  load(spec) {
    this.spec = spec;
    this.height = Math.min(18, Math.max(0.5, 512 / spec.rows.length));
    this.gap = this.height > 6 ? 3 : 0;
    this.rows = spec.rows.map(([name, runs]) => {
      const cells = new Uint8Array(spec.columns);
      for (let i = 0, at = 0; i < runs.length; i += 2) cells.fill(runs[i], at, (at += runs[i + 1]));
      return { name, cells };
    });
    const used = new Set(this.rows.flatMap((row) => [...new Set(row.cells)]));
    this.legend(spec.kinds.map((kind, n) => [kind, n]).filter(([kind, n]) => kind && used.has(n)));
  }

  colourOf(kind) {
    return this.spec.key === "late" ? "level" + kind : this.spec.kinds[kind];
  }

  legend(kinds) {
    const legend = this.figure.querySelector(".legend");
    legend.replaceChildren();
    for (const [text, kind] of kinds) {
      const item = document.createElement("span"), swatch = document.createElement("i");
      swatch.dataset.colour = this.colourOf(kind);
      item.append(swatch, text);
      legend.append(item);
    }
  }

  draw() {
    const width = this.canvas.clientWidth, ratio = window.devicePixelRatio || 1, pitch = this.height + this.gap;
    if (!width) return;
    const height = this.rows.length * pitch + 36;
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(height * ratio);
    this.canvas.style.height = height + "px";
    const pen = this.canvas.getContext("2d");
    pen.scale(ratio, ratio);
    pen.font = "12px system-ui, sans-serif";
    const apart = Math.ceil(14 / pitch); // names stand below each other without touching
    const named = this.rows.filter((_, number) => number % apart === 0);
    this.left = Math.min(140, Math.max(...named.map((row) => pen.measureText(row.name).width)) + 8);
    const right = width - 12, colours = this.spec.kinds.map((_, kind) => colour(this.colourOf(kind)));
    this.right = right;
    this.rows.forEach((row, number) => {
      const y = number * pitch;
      this.cells(pen, row, y, this.height, colours, 1);
      if (number % apart === 0) {
        pen.fillStyle = colour("text");
        pen.textAlign = "left";
        pen.textBaseline = "middle";
        pen.fillText(row.name, 0, Math.max(7, y + this.height / 2), 132);
      }
    });
    // Of a thousand rows one that is late must still be seen.
    if (this.spec.key === "late" && this.height < 2)
      this.rows.forEach((row, number) => this.cells(pen, row, number * pitch, 2, colours, 3));
    this.axis(pen, right, this.rows.length * pitch);
  }

  // Draws the cells of a row whose kind is at least `least`.
  cells(pen, row, y, height, colours, least) {
    const columns = this.spec.columns, width = (this.right - this.left) / columns;
    for (let from = 0; from < columns; ) {
      const kind = row.cells[from];
      let to = from + 1;
      while (to < columns && row.cells[to] === kind) to++;
      if (kind >= least) {
        pen.fillStyle = colours[kind];
        pen.fillRect(this.left + from * width, y, (to - from) * width + 0.3, height);
      }
      from = to;
    }
  }

  axis(pen, right, top) {
    const span = this.spec.seconds, count = Math.max(2, Math.floor((right - this.left) / 90));
    const step = [1, 5, 10, 30, 60, 300, 600, 1800, 3600, 10800, 21600, 86400].find((s) => s >= span / count) ?? span;
    pen.fillStyle = colour("quiet");
    pen.strokeStyle = colour("line");
    pen.lineWidth = 1;
    line(pen, this.left, top + 0.5, right, top + 0.5);
    pen.textAlign = "center";
    pen.textBaseline = "top";
    for (let at = 0; at <= span; at += step) {
      const x = this.left + (at / (span || 1)) * (right - this.left), text = clock(at), half = pen.measureText(text).width / 2;
      line(pen, x, top, x, top + 4);
      pen.fillText(text, Math.max(half, Math.min(x, right + 10 - half)), top + 6);
    }
    pen.fillText(timeTitle(span), (this.left + right) / 2, top + 21);
  }

  hover(event) {
    const box = this.canvas.getBoundingClientRect();
    const row = this.rows[Math.floor((event.clientY - box.top) / (this.height + this.gap))];
    const share = (event.clientX - box.left - this.left) / (this.right - this.left);
    if (!row || share < 0 || share >= 1) { this.output.textContent = ""; return; }
    const kind = this.spec.kinds[row.cells[Math.floor(share * this.spec.columns)]];
    this.output.textContent = row.name + " at " + clock(share * this.spec.seconds) + ": " + (kind || "-");
  }
}
