// Small curves of the last hour: one canvas each, the same time axis, the largest value written beside the present one.

const HOUR_S = 3600;
const LEAST_S = 10; // else the first seconds would jump

export class Curve {
  constructor(parent, label, format, { top } = {}) {
    const figure = parent.appendChild(document.createElement("figure"));
    const caption = figure.appendChild(document.createElement("figcaption"));
    caption.append(label, document.createElement("span"));
    this.value = caption.lastChild.appendChild(document.createElement("b"));
    this.most = caption.lastChild.appendChild(document.createElement("span"));
    this.canvas = figure.appendChild(document.createElement("canvas"));
    this.format = format;
    this.top = top;
    this.points = []; // [seconds, value], oldest first
  }

  load(coarse, step, fine, now) {
    const start = now - fine.length - coarse.length * step;
    this.points = coarse.map((value, at) => [start + (at + 0.5) * step, value]);
    for (let at = 0; at < fine.length; at++) this.points.push([now - fine.length + at + 1, fine[at]]);
  }

  add(now, value) {
    this.points.push([now, value]);
    if (this.points.length > 8000) this.points.splice(0, 4000);
  }

  draw(now, colours) {
    const { canvas, points } = this;
    const scale = window.devicePixelRatio || 1;
    const width = canvas.clientWidth;
    const height = canvas.clientHeight;
    if (!width || !points.length) return 0;
    if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(height * scale)) {
      canvas.width = Math.round(width * scale);
      canvas.height = Math.round(height * scale);
    }
    // One column per pixel holds the largest value in it, so that no spike is lost and a frame costs the same always.
    const columns = new Float64Array(width).fill(-1);
    let largest = 0;
    const span = Math.min(HOUR_S, Math.max(LEAST_S, now - points[0][0])); // all there is, an hour at most
    for (const [at, value] of points) {
      const column = Math.floor(((at - now + span) / span) * (width - 1));
      if (column < 0 || column >= width) continue;
      if (value > columns[column]) columns[column] = value;
      if (value > largest) largest = value;
    }
    const top = this.top ?? (largest || 1);
    const context = canvas.getContext("2d");
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.clearRect(0, 0, width, height);
    context.strokeStyle = colours.line;
    for (const quarter of [0.25, 0.5, 0.75]) {
      context.beginPath();
      context.moveTo(Math.round(width * quarter) + 0.5, 0);
      context.lineTo(Math.round(width * quarter) + 0.5, height);
      context.stroke();
    }
    context.beginPath();
    let first = -1;
    let last = -1;
    for (let at = 0; at < width; at++) {
      if (columns[at] < 0) continue;
      const y = height - 1.5 - (Math.min(columns[at], top) / top) * (height - 4);
      if (first < 0) { context.moveTo(at, y); first = at; } else context.lineTo(at, y);
      last = at;
    }
    context.strokeStyle = colours.blue;
    context.lineWidth = 1.5;
    context.stroke();
    context.lineTo(last, height);
    context.lineTo(first, height);
    context.closePath();
    context.fillStyle = colours.fill;
    context.fill();
    context.lineWidth = 1;
    this.value.textContent = this.format(points[points.length - 1][1]);
    this.most.textContent = `  max ${this.format(largest)}`;
    return span;
  }
}
