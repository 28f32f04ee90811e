// A table that is updated in place: rows are kept by key, and only what changed is written. All text goes in as
// textContent, so a name can be anything and stays a name.

import { put } from "./seen.js";
import { shadeOf } from "./shades.js";

const PRINTABLE = /[\u0000-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g;

export function text(value, most = 80) {
  const plain = String(value ?? "").replace(PRINTABLE, "·");
  return plain.length > most ? plain.slice(0, most - 1) + "…" : plain;
}

// A number and its unit stay on one line: the spaces between them are no-break spaces.
export const whole = (said) => said.replace(/(\d) (?=(?:%|ms|s|min|h|MiB)(?!\w))|([\d\w]) (?=ago\b)/g, "$1$2\u00a0");

export function seconds(value) {
  if (value == null) return "–";
  if (value === 0) return "0\u00a0s";
  if (value < 1) return `${Math.round(value * 1000)}\u00a0ms`;
  if (value < 60) return `${value.toFixed(1)}\u00a0s`;
  if (value < 3600) return `${Math.floor(value / 60)}m\u00a0${Math.floor(value % 60)}s`;
  return `${Math.floor(value / 3600)}h\u00a0${Math.floor((value % 3600) / 60)}m`;
}

// An amount of money: cents, or two digits of less.
export const money = (value) => (value === null ? "–" : value.toFixed(value === 0 || value >= 0.1 ? 2 : Math.min(6, 1 - Math.floor(Math.log10(value)))));

export function count(value) {
  if (value == null) return "–";
  if (value >= 1e6) return `${(value / 1e6).toFixed(1)}M`;
  if (value >= 1e4) return `${(value / 1e3).toFixed(0)}k`;
  return Math.round(value).toLocaleString("en");
}

export const percent = (value) => (value == null ? "–" : `${Math.round(value * 100)}\u00a0%`);

function setClass(node, value) { if (node.className !== value) node.className = value; }

// Writing a style that is there already would cost a layout all the same.
function setPart(cell, name, part) {
  const value = `${Math.round(100 * part)}%`;
  if (cell.style.getPropertyValue(name) !== value) cell.style.setProperty(name, value);
}

// A column: {title, value(row) -> text, name, tenant (has its colour before it), num, low (hidden on phones), tone(row), part(row) 0..1, hot, mark(row),
// by(row) -> what its heading sorts by, the largest first; once more: as the rows came,
// verbs(row) -> [[verb, label, disabled]]}
export class Table {
  constructor(section, columns, { key, limit, empty }) {
    Object.assign(this, { columns, key, limit, shown: limit, rows: new Map(), last: [], more: 0, sorted: null });
    const scroll = section.appendChild(document.createElement("div"));
    scroll.className = "scroll";
    scroll.tabIndex = 0;
    const table = scroll.appendChild(document.createElement("table"));
    const head = table.createTHead().insertRow();
    for (const column of columns) {
      const cell = head.appendChild(document.createElement("th"));
      cell.scope = "col";
      if (column.by) this.sortable(column, cell);
      else cell.textContent = column.title;
      if (column.hint) cell.title = column.hint;
      cell.className = this.classes(column);
    }
    this.body = table.createTBody();
    this.empty = section.appendChild(document.createElement("div"));
    this.empty.className = "empty";
    this.empty.textContent = empty;
    this.foot = section.appendChild(document.createElement("button"));
    this.foot.hidden = true;
    this.foot.addEventListener("click", () => {
      this.shown = this.shown === this.limit ? Infinity : this.limit;
      this.update(this.last, this.more);
    });
  }

  sortable(column, cell) {
    const button = cell.appendChild(document.createElement("button"));
    button.textContent = column.title;
    button.addEventListener("click", () => {
      this.sorted = this.sorted === column ? null : column;
      for (const other of cell.parentNode.children) other.removeAttribute("aria-sort");
      if (this.sorted) cell.setAttribute("aria-sort", "descending");
      this.update(this.last, this.more);
    });
  }

  classes(column) {
    return [column.num && "num", column.low && "low"].filter(Boolean).join(" ");
  }

  update(rows, more = 0) {
    this.last = rows;
    this.more = more;
    const by = this.sorted?.by;
    const visible = (by ? [...rows].sort((a, b) => by(b) - by(a)) : rows).slice(0, this.shown);
    const left = new Map(this.rows);
    let before = this.body.firstChild;
    for (const row of visible) {
      const key = this.key(row);
      let line = this.rows.get(key);
      if (!line) this.rows.set(key, (line = this.make()));
      left.delete(key);
      this.fill(line, row);
      if (line.element !== before) this.body.insertBefore(line.element, before);
      else before = before.nextSibling;
    }
    for (const [key, line] of left) {
      line.element.remove();
      this.rows.delete(key);
    }
    this.empty.hidden = rows.length > 0;
    const hidden = rows.length - visible.length + more;
    this.foot.hidden = hidden === 0 && rows.length <= this.limit;
    const label = hidden ? `and ${hidden.toLocaleString("en")} more${rows.length > visible.length ? " – show" : ""}` : "show fewer";
    put(this.foot, label);
    this.foot.disabled = hidden === more && hidden > 0 && rows.length <= this.limit;
  }

  make() {
    const element = document.createElement("tr");
    const cells = this.columns.map((column) => {
      const cell = element.insertCell();
      cell.className = this.classes(column);
      if (column.name) cell.dir = "auto";
      cell.dataset.label = column.title; // for cards, on phones
      return cell;
    });
    return { element, cells, row: null, verbs: "" };
  }

  fill(line, row) {
    const key = this.key(row);
    if (line.element.dataset.key !== key) line.element.dataset.key = key;
    line.element.classList.toggle("group", Boolean(row.group));
    this.columns.forEach((column, at) => {
      const cell = line.cells[at];
      if (column.verbs) return this.fillVerbs(line, cell, column.verbs(row), key);
      const value = column.value(row);
      if (column.opens?.(row)) opening(cell, row, value);
      else put(cell, value);
      const classes = [this.classes(column), column.name && "name", column.wide && "wide", column.tone?.(row)];
      if (column.name && cell.title !== value) cell.title = value;
      if (column.tenant) {
        const shade = shadeOf(text(row.tenant, 60));
        if (cell.dataset.shade !== shade) cell.dataset.shade = shade;
      }
      if (column.part) {
        classes.push("bar", column.hot?.(row) && "hot");
        setPart(cell, "--part", Math.min(1, column.part(row) ?? 0));
      }
      if (column.mark) {
        const mark = column.mark(row);
        if (mark != null) classes.push("mark");
        if (mark != null) setPart(cell, "--mark", Math.min(0.99, mark));
      }
      setClass(cell, classes.filter(Boolean).join(" "));
    });
  }

  // The first verb that only looks has a button, the others stand in a menu (verbs.js).
  fillVerbs(line, cell, verbs, key) {
    const wanted = verbs.map((verb) => verb.join()).join(";");
    if (line.verbs === wanted) return;
    line.verbs = wanted;
    const looks = verbs.filter(([verb]) => verb === "explain");
    const changes = verbs.filter(([verb]) => verb !== "explain");
    cell.replaceChildren(...looks.map(([verb, label, of]) => {
      const button = document.createElement("button");
      button.dataset.verb = verb;
      if (of) button.dataset.key = of;
      button.textContent = label;
      return button;
    }));
    if (!changes.length) return;
    const more = cell.appendChild(document.createElement("button"));
    more.dataset.menu = JSON.stringify(changes);
    more.textContent = "⋯";
    more.setAttribute("aria-haspopup", "menu");
    more.setAttribute("aria-label", `change ${text(key)}`);
  }
}

// A row that opens into others.
function opening(cell, row, value) {
  let button = cell.querySelector("button");
  if (!button) {
    cell.replaceChildren();
    button = cell.appendChild(document.createElement("button"));
  }
  if (button.dataset.group !== row.group) button.dataset.group = row.group;
  put(button, `${row.open ? "▾" : "▸"} ${value}`);
  button.setAttribute("aria-expanded", String(row.open));
}
