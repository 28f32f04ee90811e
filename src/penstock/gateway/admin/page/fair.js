// Who gets how much: a bar per tenant with its fair share as a tick, and the tokens per second of the tenants over time,
// one on the other.

import { ago } from "./curves.js";
import { $, matches, put, seen } from "./seen.js";
import { REST, SHADES, forget, shade } from "./shades.js";
import { count, percent, seconds, text } from "./tables.js";

const BARS_MAX = 8;
const STEP_S = 5;
const SAMPLES_MAX = 720; // an hour of them

// --- bars ---------------------------------------------------------------------------------------------------------

function make() {
  const item = document.createElement("li");
  for (const name of ["name", "bar", "said"]) item.appendChild(document.createElement("span")).className = name;
  item.children[0].dir = "auto";
  item.children[1].append(document.createElement("i"), document.createElement("b"));
  return item;
}

export function showBars() {
  const s = seen.frame;
  const several = s.bands.length > 1 && new Set(s.tenants.map((t) => t.band)).size > 1;
  const all = s.tenants.filter((t) => matches(t.tenant, t.band));
  const idle = all.length ? [] : s.configured.filter((t) => matches(t.tenant)).slice(0, BARS_MAX);
  const rows = [...all].sort((a, b) => b.share_of_all - a.share_of_all || b.waiting - a.waiting).slice(0, BARS_MAX);
  const left = $("bars");
  const lines = rows.length || idle.length; // none: no requests, and no tenants in the settings
  while (left.children.length < lines) left.appendChild(make());
  while (left.children.length > lines) left.lastChild.remove();
  idle.forEach((t, at) => {
    const [name, bar, said] = left.children[at].children;
    put(name, t.tenant);
    bar.style.setProperty("--part", "0%");
    bar.classList.remove("fair");
    put(said, t.left ? `left: ${t.left}` : `idle, weight ${t.weight}, no limits`);
  });
  rows.forEach((t, at) => {
    const [name, bar, said] = left.children[at].children;
    put(name, text(t.tenant, 40));
    if (name.title !== name.textContent) name.title = name.textContent;
    left.children[at].dataset.shade = shade(text(t.tenant, 60));
    // Fair is a part of what the band got: bands have no fair shares, higher ones go first. With less than is fair and
    // hardly a wait, a tenant does not ask for more, as in the table (`why.py`).
    const content = t.share < t.fair_share && t.oldest_wait_s < 1;
    const fair = t.is_alone || t.fair_share == null || content ? null : t.fair_share * (s.bands.find((b) => b.name === t.band)?.share ?? 1);
    bar.style.setProperty("--part", `${Math.round(100 * t.share_of_all)}%`);
    bar.classList.toggle("fair", fair != null);
    bar.style.setProperty("--fair", `${Math.min(99, Math.round(100 * (fair ?? 0)))}%`);
    const first = t.first_token_p50_s == null ? "" : `first token ${seconds(t.first_token_p50_s)}${t.first_token_p99_s == null ? "" : ` · p99 ${seconds(t.first_token_p99_s)}`}`;
    const parts = [fair == null ? percent(t.share_of_all) : `${percent(t.share_of_all)}, fair ${percent(fair)}`];
    if (first) parts.push(first);
    if (t.waiting) parts.push(`${count(t.waiting)} wait, oldest ${seconds(t.oldest_wait_s)}`);
    if (several) parts.push(text(t.band, 20));
    put(said, parts.join(" · "));
  });
  $("fair").classList.toggle("none", rows.length === 0);
  $("fair").classList.toggle("empty", lines === 0);
}

// --- over time ----------------------------------------------------------------------------------------------------

const samples = []; // [at, {tenant: tokens per second}], oldest first

export function loadTenants(shown, now) {
  samples.splice(0, samples.length, ...shown.map(([age, rates]) => [now - age, rates]));
}

export function addTenants(now, rates) {
  const last = samples[samples.length - 1];
  if (last && now - last[0] < STEP_S) return;
  samples.push([now, rates]);
  if (samples.length > SAMPLES_MAX) samples.splice(0, samples.length - SAMPLES_MAX);
}

const canvas = document.createElement("canvas");
canvas.setAttribute("role", "img");
$("stack").append(canvas);

export function drawStack(range) {
  const style = getComputedStyle(document.documentElement);
  const [line, dim, ink, ground] = ["--line", "--dim", "--ink", "--ground"].map((name) => style.getPropertyValue(name));
  const colours = [...Array(SHADES + 1).keys()].map((number) => style.getPropertyValue(`--t${number}`));
  const { at: now } = seen.frame;
  const kept = samples.filter(([at]) => at >= now - range);
  const names = [...new Set(kept.flatMap(([, rates]) => Object.keys(rates)))];
  forget(new Set([...names, ...seen.frame.tenants.map((t) => text(t.tenant, 60))]));
  const sum = (name) => kept.reduce((all, [, rates]) => all + (rates[name] ?? 0), 0);
  names.sort((a, b) => (a === REST) - (b === REST) || sum(b) - sum(a));
  const width = canvas.clientWidth;
  const height = canvas.clientHeight;
  if (!width) return;
  const scale = window.devicePixelRatio || 1;
  if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(height * scale)) {
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
  }
  const context = canvas.getContext("2d");
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.clearRect(0, 0, width, height);
  const [LEFT, BOTTOM, TOP] = document.body.classList.contains("wall") ? [70, 24, 10] : [42, 15, 6];
  const tall = height - BOTTOM - TOP;
  const from = kept.length ? Math.min(kept[0][0], now - 10) : now - 10;
  const totals = kept.map(([, rates]) => Object.values(rates).reduce((all, rate) => all + rate, 0));
  const top = Math.max(2, ...totals.map((total) => total * 1.05)); // its half is a whole number, too
  const x = (at) => LEFT + ((at - from) / (now - from)) * (width - LEFT);
  const y = (value) => TOP + tall - (value / top) * tall;
  const base = kept.map(() => 0);
  context.font = `${document.body.classList.contains("wall") ? 18 : 11}px system-ui, sans-serif`;
  const labels = [];
  for (const name of names) {
    const upper = kept.map(([, rates], which) => base[which] + (rates[name] ?? 0));
    context.fillStyle = colours[shade(name)];
    context.beginPath();
    kept.forEach(([at], which) => context.lineTo(x(at), y(upper[which])));
    if (kept.length) context.lineTo(x(now), y(upper[upper.length - 1]));
    if (kept.length) context.lineTo(x(now), y(base[base.length - 1]));
    for (let which = kept.length - 1; which >= 0; which--) context.lineTo(x(kept[which][0]), y(base[which]));
    context.fill();
    context.strokeStyle = ground;
    context.lineWidth = 1;
    context.stroke();
    const end = upper.length - 1;
    const thick = end < 0 ? 0 : y(base[end]) - y(upper[end]);
    if (thick > 13) labels.push([name === REST ? "others" : text(name, 28), y(upper[end]) + thick / 2]);
    upper.forEach((value, which) => { base[which] = value; });
  }
  context.strokeStyle = line;
  context.fillStyle = dim;
  context.textBaseline = "middle";
  context.textAlign = "right";
  for (const part of [0, 0.5, 1]) {
    context.beginPath();
    context.moveTo(LEFT, Math.round(y(top * part)) + 0.5);
    context.lineTo(width, Math.round(y(top * part)) + 0.5);
    context.stroke();
    context.fillText(count(top * part), LEFT - 4, y(top * part));
  }
  context.textBaseline = "alphabetic";
  context.fillText("now", width, height - 3);
  context.textAlign = "left";
  context.fillText(ago(now - from), LEFT, height - 3);
  context.textAlign = "right";
  context.textBaseline = "middle";
  for (const [name, at] of labels) {
    context.lineWidth = 3;
    context.strokeStyle = ground;
    context.strokeText(name, width - 6, at);
    context.fillStyle = ink;
    context.fillText(name, width - 6, at);
  }
  const said = Object.entries(seen.frame.tenant_tokens).map(([name, rate]) => `${name === REST ? "others" : text(name, 60)} ${count(rate)}`);
  canvas.setAttribute("aria-label", `tokens per second by tenant: ${said.join(", ") || "none"}`);
}
