// Curves on one time axis: a canvas each, with axes, one or two lines, and the values under the pointer, which all
// curves show for the same moment. What is kept is bounded: an hour in steps that grow with age.

export const RANGES = { "1 min": 60, "10 min": 600, "1 h": 3600 };
const LEAST_S = 10; // else the first seconds would jump
const FINE_S = 600; // in seconds; before that the largest of ten
const STEP_S = 10;
const POINTS_MAX = 1000; // 600 of a second, 300 of ten, and what is thinned next
const [NEAR, FAR] = [[42, 13, 6, 10], [64, 22, 9, 16]]; // a wall is read from afar
let [LEFT, BOTTOM, TOP, FONT] = NEAR; // room for the numbers of the axis, and their size
const DASHES = [[], [3, 2], [1, 2], [6, 2], [6, 2, 1, 2]];

// Axis ends that people count in: 1, 2, 5, 10, 20, 50 …
function rounded(most) {
  const power = 10 ** Math.floor(Math.log10(most));
  return [1, 2, 5, 10].map((step) => step * power).find((end) => end >= most * 0.999);
}

export function ago(seconds) {
  if (seconds < 1) return "now";
  return seconds < 90 ? `−${Math.round(seconds)}\u00a0s` : `−${Math.round(seconds / 60)}\u00a0min`;
}

class Line {
  constructor(name) {
    this.name = name;
    this.points = []; // [seconds, value or null], oldest first
  }

  load(coarse, step, fine, now) {
    const start = now - fine.length - coarse.length * step;
    this.points = coarse.map((value, at) => [start + (at + 0.5) * step, value]);
    for (let at = 0; at < fine.length; at++) this.points.push([now - fine.length + at + 1, fine[at]]);
  }

  add(now, value) {
    this.points.push([now, value]);
    if (this.points.length > POINTS_MAX) this.thin(now);
  }

  // What is older than the longest range goes, of what is older than ten minutes the largest of ten seconds stays.
  thin(now) {
    const kept = new Map();
    for (const [at, value] of this.points) {
      if (at < now - 3600 - STEP_S) continue;
      const step = at < now - FINE_S ? STEP_S : 0;
      const key = step ? Math.floor(at / step) * step + step / 2 : at;
      const before = kept.get(key);
      kept.set(key, before == null ? value : value == null ? before : Math.max(before, value));
    }
    this.points = [...kept];
  }

  // The largest value of each column, so that no spike is lost; null where there is none.
  columns(from, span, width) {
    const columns = new Array(width).fill(null);
    for (const [at, value] of this.points) {
      const column = Math.floor(((at - from) / span) * (width - 1));
      if (value == null || column < 0 || column >= width) continue;
      if (columns[column] == null || value > columns[column]) columns[column] = value;
    }
    return columns;
  }

  latest() {
    return this.points.length ? this.points[this.points.length - 1][1] : null;
  }
}

export class Curve {
  // `lines`: {name in the frames: what it is called in the caption, "" where there is but one}
  constructor(parent, label, lines, format, { top, bad, means } = {}) {
    const figure = parent.appendChild(document.createElement("figure"));
    if (means) figure.title = means;
    if (bad) figure.className = "failures";
    figure.dataset.curve = label;
    const caption = figure.appendChild(document.createElement("figcaption"));
    caption.append(label);
    const values = caption.appendChild(document.createElement("span"));
    const several = Object.keys(lines).length > 1;
    this.said = Object.keys(lines).map((_, which) => {
      const pair = values.appendChild(document.createElement("span"));
      if (which && !bad) pair.append(" · "); // between failures, of which only some are shown, the style sheet writes it
      // Of several lines each has a piece of itself before its value: that is their legend.
      if (several) pair.appendChild(document.createElement("i")).className = `piece p${which}${bad ? " bad" : ""}`;
      return pair.appendChild(document.createElement("span"));
    });
    this.figure = figure;
    if (bad) figure.hidden = true; // until something went wrong
    this.canvas = figure.appendChild(document.createElement("canvas"));
    this.canvas.setAttribute("role", "img");
    this.canvas.setAttribute("aria-label", label);
    this.canvas.curve = this;
    this.lines = Object.entries(lines).map(([name, called]) => Object.assign(new Line(name), { called }));
    Object.assign(this, { label, format, top, bad, written: "" });
  }

  since() {
    return this.lines[0].points[0]?.[0] ?? null;
  }

  // `range`: seconds shown; `at`: how far from the left the pointer is, 0 to 1, or null.
  draw(now, colours, range, at) {
    const { canvas } = this;
    const scale = window.devicePixelRatio || 1;
    const width = canvas.clientWidth;
    const height = canvas.clientHeight;
    const since = this.since();
    if (this.bad) this.figure.hidden = !this.lines.some((line) => line.points.some(([when, value]) => value > 0 && when >= now - range));
    if (!width || since == null) return 0;
    if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(height * scale)) {
      canvas.width = Math.round(width * scale);
      canvas.height = Math.round(height * scale);
    }
    [LEFT, BOTTOM, TOP, FONT] = document.body.classList.contains("wall") ? FAR : NEAR;
    const inner = width - LEFT;
    const tall = height - BOTTOM - TOP;
    const span = Math.min(range, Math.max(LEAST_S, now - since)); // all there is, at most what is asked for
    const drawn = this.lines.map((line) => line.columns(now - span, span, inner));
    const largest = Math.max(0, ...drawn.flat().filter((value) => value != null));
    const top = this.top ?? (largest > 0 ? rounded(largest) : 1);
    const y = (value) => TOP + tall - (Math.min(value, top) / top) * tall;
    const context = canvas.getContext("2d");
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.clearRect(0, 0, width, height);
    this.axes(context, colours, { inner, tall, height, width, span, top, y });
    // Points further apart than the next one could be have nothing between them.
    const gap = Math.max(3, (inner / span) * (span > RANGES["1 min"] * 5 ? 2.2 * STEP_S : 2.2));
    const shades = this.bad ? [colours.second, colours.dim, colours.bad, colours.ink, colours.first] : [colours.first, colours.second];
    drawn.forEach((columns, which) => this.line(context, columns, y, gap, shades[which], which));
    const seen = at == null ? null : Math.round(at * (inner - 1));
    if (seen != null) {
      context.strokeStyle = colours.ink;
      context.lineWidth = 1;
      context.beginPath();
      context.moveTo(LEFT + seen + 0.5, TOP);
      context.lineTo(LEFT + seen + 0.5, TOP + tall);
      context.stroke();
    }
    const each = drawn.map((columns) => Math.max(0, ...columns.filter((value) => value != null)));
    // Of failures only the kinds that there were have a place in the caption.
    if (this.bad) this.said.forEach((node, which) => { node.parentNode.hidden = each[which] === 0; });
    this.tell(drawn.map((columns, which) => (seen == null ? this.lines[which].latest() : nearest(columns, seen, gap))), this.bad ? each : [largest], seen == null ? null : span * (1 - at));
    return span;
  }

  axes(context, colours, { inner, tall, height, width, span, top, y }) {
    context.strokeStyle = colours.line;
    context.fillStyle = colours.dim;
    context.font = `${FONT}px system-ui, sans-serif`;
    context.lineWidth = 1;
    context.textBaseline = "middle";
    context.textAlign = "right";
    for (const part of [0, 0.5, 1]) {
      const line = Math.round(y(top * part)) + 0.5;
      context.beginPath();
      context.moveTo(LEFT, line);
      context.lineTo(width, line);
      context.stroke();
      context.fillText(this.format(top * part), LEFT - 3, line);
    }
    context.textBaseline = "alphabetic";
    for (const part of [0, 0.5, 1]) {
      context.textAlign = part === 0 ? "left" : part === 1 ? "right" : "center";
      context.fillText(ago(span * (1 - part)), LEFT + inner * part, height - 2);
    }
  }

  line(context, columns, y, gap, colour, which) {
    context.strokeStyle = colour;
    context.lineWidth = which ? 1 : 1.5;
    context.setLineDash(DASHES[which]);
    context.beginPath();
    let last = null;
    columns.forEach((value, column) => {
      if (value == null) return;
      if (last == null || column - last > gap) {
        context.moveTo(LEFT + column, y(value));
        context.lineTo(LEFT + column + 1, y(value)); // else one alone would be nothing
      } else context.lineTo(LEFT + column, y(value));
      last = column;
    });
    context.stroke();
    context.setLineDash([]);
  }

  // The values, in the caption and for screen readers: of the moment under the pointer, else the present ones.
  tell(values, most, before) {
    const parts = values.map((value, which) => {
      const called = this.lines[which].called;
      const largest = before == null && most.length === values.length ? ` (max ${this.format(most[which])})` : ""; // of several the axis has to do
      return `${called ? `${called} ` : ""}${value == null ? "–" : this.format(value)}${largest}`;
    });
    if (before != null) parts.push(`${parts.pop()} (${ago(before)})`);
    const written = parts.filter((_, which) => !this.bad || most[which] > 0).join(" · ");
    if (written === this.written) return;
    this.written = written;
    this.said.forEach((node, which) => { node.textContent = parts[which]; });
    this.canvas.setAttribute("aria-label", `${this.label}: ${written}`);
  }
}

function nearest(columns, at, gap) {
  for (let away = 0; away <= gap; away++) {
    for (const column of [at - away, at + away]) if (columns[column] != null) return columns[column];
  }
  return null;
}

// How far into the plot a pointer is, 0 to 1.
export function within(event) {
  const box = event.target.getBoundingClientRect();
  return Math.min(1, Math.max(0, (event.clientX - box.left - LEFT) / (box.width - LEFT)));
}
