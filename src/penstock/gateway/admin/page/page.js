// The live page: shows each frame that the gateway sends, and the curves. Columns are in columns.js, verbs in verbs.js,
// the connection in link.js, words in words.js and legend.js.

import { tables } from "./columns.js";
import { Curve, RANGES, within as place } from "./curves.js";
import { addTenants, drawStack, loadTenants, showBars } from "./fair.js";
import { grouped, matching, openGroups } from "./groups.js";
import { MEANS, legend } from "./legend.js";
import { listenForever, takeToken } from "./link.js";
import { $, coded, matches, put, seen } from "./seen.js";
import { count, percent, seconds, text, whole } from "./tables.js";
import { showKeys } from "./keys.js";
import { found, search } from "./try.js";
import { showSessions } from "./sessions.js";
import { showUsage } from "./usage.js";
import "./verbs.js";
import { heardOf, showTiles } from "./wall.js";
import { ORDERS, TONES, WRONG } from "./words.js";

// --- curves -------------------------------------------------------------------------------------------------------

const amount = (value) => (value > 0 && value < 10 ? String(Math.round(value * 10) / 10) : count(value));
const drawn = $("curves");
const curve = (label, lines, format, more = {}) => new Curve(drawn, label, lines, format, { ...more, means: MEANS[label] });
const charts = [
  curve("waiting here", { waiting: "" }, amount),
  curve("waiting inside engines", { inside: "" }, amount),
  curve("oldest wait", { oldest_s: "" }, seconds),
  curve("running", { running: "", slots: "slots" }, amount),
  curve("first token, streams of all", { first_token_p50_s: "p50", first_token_p99_s: "p99" }, seconds),
  curve("sent to engines / s", { sent_per_s: "" }, amount),
  curve("tokens / s", { tokens_per_s: "" }, amount),
  curve("fullest KV memory", { kv_max: "" }, percent, { top: 1 }),
  curve("went wrong / s", { refused_per_s: "refused", evicted_per_s: "evicted", broken_per_s: "broken", failed_per_s: "failed", retried_per_s: "retried" }, amount, { bad: true }),
];
legend($("legend"));
const lines = charts.flatMap((chart) => chart.lines);
let range = Number(localStorage.getItem("penstock-range")) || RANGES["10 min"];
let pointed = null; // how far into the curves the pointer is, 0 to 1


function drawCurves() {
  const style = getComputedStyle(document.documentElement);
  const [first, second, bad, line, dim, ink] = ["--blue", "--orange", "--red", "--line", "--dim", "--ink"].map((name) => style.getPropertyValue(name));
  const { at } = seen.frame;
  let span = 0;
  for (const chart of charts) span = chart.draw(at, { first, second, bad, line, dim, ink }, range, pointed) || span;
  drawStack(range);
  const there = Math.min(span, at - (charts[0].since() ?? at)); // the axes have ten seconds from the first moment on
  const since = new Date((at - there) * 1000).toLocaleTimeString("en-GB");
  put($("span"), span && there < range * 0.99 ? `there is only ${seconds(there)} of it yet, since ${since}` : "");
}

for (const [label, length] of Object.entries(RANGES)) {
  const button = $("ranges").appendChild(document.createElement("button"));
  button.textContent = label;
  button.setAttribute("aria-pressed", String(length === range));
  button.addEventListener("click", () => {
    range = length;
    localStorage.setItem("penstock-range", String(length));
    for (const other of $("ranges").children) other.setAttribute("aria-pressed", String(other === button));
    if (seen.frame) drawCurves();
  });
}

function point(at) {
  pointed = at;
  if (seen.frame) drawCurves();
}
for (const kind of ["pointermove", "pointerdown"]) {
  drawn.addEventListener(kind, (event) => { if (event.target.curve) point(place(event)); });
}
drawn.addEventListener("pointerleave", (event) => { if (event.pointerType === "mouse") point(null); });
drawn.addEventListener("keydown", (event) => {
  const step = { ArrowLeft: -0.02, ArrowRight: 0.02 }[event.key];
  if (event.key === "Escape") point(null);
  if (step) {
    event.preventDefault();
    point(Math.min(1, Math.max(0, (pointed ?? 1) + step)));
  }
});

// --- a frame ------------------------------------------------------------------------------------------------------

// `entries`: [name, value, the word that explains it where that is not the name]
function numbers(entries, list = $("numbers")) {
  entries.forEach(([name, value, word], at) => {
    let pair = list.children[at];
    if (!pair) {
      pair = list.appendChild(document.createElement("div"));
      pair.append(document.createElement("dt"), document.createElement("dd"));
    }
    put(pair.firstChild, name);
    if (MEANS[word ?? name]) pair.title = MEANS[word ?? name];
    put(pair.lastChild, value);
  });
}

// The worst first token of those within their share; that of a flood stands beside it as what it asked for.
function late({ lately, tenants, bands }) {
  const { worst } = lately;
  if (!worst) return ["first token p99, streams of all", seconds(lately.first_token_p99_s), "first token, streams of all"];
  const byDesign = new Set(bands.filter((b) => b.preemptible).map((b) => b.name));
  const more = tenants.filter((t) => t.over_share && t.first_token_p99_s != null && !byDesign.has(t.band));
  const most = more.reduce((one, t) => (t.first_token_p99_s > (one?.first_token_p99_s ?? 0) ? t : one), null);
  const asked = worst.within_share && most ? `; over its share: ${text(most.tenant, 20)} ${seconds(most.first_token_p99_s)}` : "";
  const whose = worst.within_share ? `worst within its share: ${text(worst.tenant, 20)}` : `worst of all: ${text(worst.tenant, 20)}`;
  const of = worst.first_token_p99_s != null ? "p99" : worst.streams === 1 ? "of one stream" : `p50 of ${worst.streams} streams`;
  return [`first token ${of}, last minute, ${whose}${asked}`, seconds(worst.first_token_p99_s ?? worst.first_token_p50_s), "first token of a tenant"];
}

// The numbers that are read from across the room, five at most.
function showFive(s) {
  const { lately } = s;
  const wrong = WRONG.reduce((sum, kind) => sum + lately[kind], 0);
  numbers([
    ["waiting here", count(s.waiting), "waiting here"],
    ["waiting inside engines", count(s.inside), "waiting inside engines"],
    late(s),
    ["tokens in and out / s", count(s.now.tokens_per_s ?? 0), "tokens / s"],
    [`went wrong, of ${count(lately.ended)} in a minute`, count(wrong), "went wrong"],
  ], $("five"));
  const marks = [s.waiting, s.inside > 4 * s.endpoints.length, (lately.worst ?? lately).first_token_p99_s >= 10, 0, s.tone !== "ok" && wrong]; // a tenant's own limit is no fault
  [...$("five").children].forEach((pair, at) => pair.classList.toggle("marked", Boolean(marks[at])));
}

// Screen readers hear the first sentence when its words change, not each of its numbers every second.
let spoken = "";
function speak(lead) {
  const words = lead.replace(/[\d.,]+\s?(ms|s|min|h)?/g, "");
  if (words === spoken) return;
  spoken = words;
  put($("spoken"), lead);
}

// Tenants of the settings have a row without requests, too: for what is left of their limits.
function tenantRows(s) {
  const left = new Map(s.configured.map((t) => [t.tenant, t]));
  const rows = s.tenants.map((t) => ({ ...t, left: left.get(text(t.tenant, 60))?.left ?? "" }));
  const busy = new Set(s.tenants.map((t) => text(t.tenant, 60)));
  const idle = s.configured.filter((t) => !busy.has(t.tenant));
  return [...rows, ...idle.map((t) => ({ ...t, idle: true, band: "", waiting: 0, running: 0, oldest_wait_s: 0, went_wrong: {}, share_of_all: 0, within: "" }))];
}

// Who carries the bytes, where it is not this process alone.
const carried = (edges) => (edges?.length
  ? ` · ${edges.length} workers: ${edges.map((e) => (e.up_s === null ? `${text(e.name)} away`
    : `${text(e.name)} ${count(e.requests)} at ${percent(e.cpu)} CPU`)).join(", ")}` : "");

// Who decides, where several gateways share one queue.
const decided = (share) => (share
  ? ` · ${share.role === "leads" || share.role === "alone" ? text(share.name) : text(share.decider ?? "nobody")} decides${share.role === "alone" ? " alone" : ""} for ${seconds(share.since_s)}, ${share.gateways} gateways` : "");

function show() {
  const s = seen.frame;
  const began = performance.now();
  drawCurves(); // first, while the layout is clean: it asks for sizes
  put($("facts"), `${s.version} · settings ${s.settings.slice(0, 8)} · up ${seconds(s.up_s)} · loop lag ${(s.loop_lag_s * 1000).toFixed(1)} ms${decided(s.share)}${carried(s.edges)}`);
  const said = whole(text(s.headline, 900));
  put($("verdict"), s.verdict);
  put($("lead"), said.slice(0, s.lead.length));
  put($("rest"), said.slice(s.lead.length));
  speak(said.slice(0, s.lead.length));
  coded($("advice"), s.advice ? whole(`→ ${text(s.advice, 400)}`) : "");
  $("headline").title = s.queueing ? `Queueing: ${text(s.queueing.why, 600)}` : "";
  const tone = s.by_operators ? "hand" : s.tone;
  put($("tone"), TONES[tone] ?? tone);
  $("tone").className = tone;
  $("resume").hidden = s.paused.length + s.drained.length === 0;
  document.title = s.waiting ? `${s.waiting} wait – Penstock` : "Penstock";
  showFive(s);
  showBars();
  showTiles();
  const { lately } = s;
  numbers([
    ["running", count(s.running)], ["slots taken", `${count(s.slots_taken)} of ${count(s.slots)}`],
    ["oldest wait", s.waiting ? seconds(Math.max(...s.bands.map((b) => b.oldest_wait_s))) : "–"], ["sent to engines / s", (s.now.sent_per_s ?? 0).toFixed(1)],
    ["last minute", `${count(lately.ended)} requests ended, of them ${WRONG.map((kind) => `${count(lately[kind])} ${kind}`).join(", ")}; ${count(lately.retried)} retried`],
  ]);
  tables.failures.update(lately.rows.filter((f) => matches(f.tenant, f.endpoint, f.what, f.reason)), seen.filter ? 0 : lately.rows_more);
  tables.models.update(s.models.filter((m) => matches(m.name, m.cause)), seen.filter ? 0 : s.models_more);
  tables.bands.update(s.bands);
  tables.tenants.update(tenantRows(s).filter((t) => matches(t.tenant, t.band)), seen.filter ? 0 : s.tenants_more);
  tables.endpoints.update(s.endpoints.filter((e) => matches(e.name, e.state, e.closed)), seen.filter ? 0 : s.endpoints_more);
  showSessions(s.sessions);
  showRequests();
  $("batches").hidden = !s.batches?.length;
  tables.batches.update((s.batches ?? []).filter((b) => matches(b.id, b.tenant, b.status)));
  showUsage(s.usage);
  showKeys();
  tables.events.update(s.events.filter((e) => matches(e.text, e.kind)));
  window.penstockFrame = { at: s.at, ms: performance.now() - began, count: (window.penstockFrame?.count ?? 0) + 1 };
}

function showRequests() {
  const { waiting, running } = seen.frame;
  const requests = { ...seen.frame.requests, found: found.rows ?? [] };
  const chosen = seen.tab ?? (requests.waiting.length ? "waiting" : requests.running.length ? "running" : "ended");
  const totals = { waiting, running, ended: null, found: found.total };
  for (const name of ["waiting", "running", "ended", ...(found.rows ? ["found"] : [])]) {
    let button = $("tabs").querySelector(`[data-tab="${name}"]`);
    if (!button) {
      button = $("tabs").appendChild(document.createElement("button"));
      button.dataset.tab = name;
      button.addEventListener("click", () => { seen.tab = name; showRequests(); });
    }
    put(button, totals[name] == null ? "last ended" : `${name} ${count(totals[name])}`);
    button.setAttribute("aria-pressed", String(name === chosen));
  }
  seen.eldest = requests.waiting.reduce((most, r) => (r.waited_s > (most?.waited_s ?? -1) ? r : most), null);
  put($("order"), chosen === "found" ? found.note : ORDERS[chosen]);
  const rows = grouped(chosen, matching(requests[chosen]));
  const at = rows.indexOf(seen.eldest);
  const last = tables.requests.limit - 1;
  if (at > last) rows.splice(last, 0, ...rows.splice(at, 1)); // it is what people ask for
  const total = totals[chosen];
  const counted = rows.reduce((sum, row) => sum + (row.count ?? 0), 0) + rows.filter((row) => !row.group && !rows.some((group) => group.rows?.includes(row))).length;
  tables.requests.update(rows, total == null || seen.filter ? 0 : Math.max(0, total - counted));
}

$("filter").addEventListener("input", () => {
  seen.filter = $("filter").value.trim().toLowerCase();
  if (seen.frame) show();
});
document.addEventListener("keydown", (event) => {
  if (event.key === "/" && !/INPUT|TEXTAREA/.test(event.target.tagName)) {
    event.preventDefault();
    $("filter").focus();
  }
});
document.addEventListener("visibilitychange", () => { if (!document.hidden && seen.frame) show(); });
// Their size follows from all else that is shown, and an image that is stretched cannot be read.
const resized = new ResizeObserver(() => { if (seen.frame) drawCurves(); });
for (const node of [drawn, $("stack")]) resized.observe(node);

const THEMES = ["", "light", "dark"];
function theme(name) {
  if (name) document.documentElement.dataset.theme = name;
  else delete document.documentElement.dataset.theme;
  localStorage.setItem("penstock-theme", name);
  if (seen.frame) drawCurves();
}
$("theme").addEventListener("click", () => theme(THEMES[(THEMES.indexOf(localStorage.getItem("penstock-theme") ?? "") + 1) % 3]));
theme(localStorage.getItem("penstock-theme") ?? "");

$("stops").addEventListener("toggle", (event) => { if (event.newState === "open") document.body.classList.add("controls"); }); // on phones the filter comes with it
openGroups(() => showRequests());
search(() => showRequests());
const wall = () => {
  takeToken();
  document.body.classList.toggle("wall", location.hash === "#wall");
  if (seen.frame) show();
};
window.addEventListener("hashchange", wall);
wall();

listenForever(
  (frame) => {
    addTenants(frame.at, frame.tenant_tokens);
    for (const line of lines) if (line.name in frame.now) line.add(frame.at, frame.now[line.name]);
    heardOf();
    if (!document.hidden) show();
  },
  ({ coarse, coarse_s: step, fine, tenants }, at) => {
    for (const line of lines) line.load(coarse[line.name], step, fine[line.name], at);
    loadTenants(tenants, at);
  },
);
