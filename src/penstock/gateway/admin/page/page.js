// The live page: listens to /admin/events, shows each frame, sends verbs. The token goes in the Authorization header
// only, so that no other site's page can act here.

import { Curve, RANGES, within as place } from "./curves.js";
import { MEANS, legend } from "./legend.js";
import { Table, count, percent, seconds, text } from "./tables.js";

const $ = (id) => document.getElementById(id);
const CAUSES = {
  no_backend: "no endpoint for the model is alive", warming: "endpoints have not told yet what they serve",
  unproven: "it has yet to show that it is an engine", ejected: "taken out after failures", held: "it refuses requests as too many", returning: "it just came back and is tried out first", stuck: "it has shown no movement for long", slots_full: "all slots are taken",
  engine_queue: "enough waits inside the engine", prefill_full: "enough prompt tokens are being computed",
  kv_full: "too little KV memory is free below the ceiling", pace: "it is slower per token than allowed", shunned: "it just refused this request",
  class_share: "the last slots and memory are kept for tenants under their share", tenant_paused: "an operator paused the tenant", tenant_cap: "the tenant runs as many as it may",
  affinity: "held for the endpoint that has its cache or session", no_decider: "it is not known which gateway decides, so nothing is sent", paused: "an operator stopped it",
  turn: "higher bands or tenants that got less go first",
};
const cause = (word, why) => (word ? `${word}: ${why ?? CAUSES[word] ?? ""}` : "");
const oldest = (row) => (row.waiting ? seconds(row.oldest_wait_s) : "");
const FAILED = [["refused", "refused"], ["evicted", "waited in vain"], ["broken", "broken off"], ["failed", "failed"]];
const TONES = { ok: "● ok", busy: "▲ busy", bad: "■ attention" };
const ORDERS = {
  waiting: "Highest band first, in each band who came first; between tenants turns decide. A heading sorts.",
  running: "Who was sent first. A heading sorts.",
  ended: "The last one first. A heading sorts.",
};
const STATES = { up: "● up", down: "■ down", loading: "▲ loading", sleeping: "▲ sleeping", stopping: "▲ stopping", hung: "■ hung", unproven: "■ no engine", stuck: "■ stuck", ejected: "■ ejected", held: "▲ held", draining: "▲ draining" };

let token = sessionStorage.getItem("penstock-token") || "";
let state = null;
let filter = "";
let tab = null;
let eldest = null; // of the requests that wait, the one that has waited longest

// --- what is shown --------------------------------------------------------------------------------------------

const tables = {
  models: new Table($("models"), [
    { title: "model", value: (m) => text(m.name), name: true },
    { title: "waiting", value: (m) => count(m.waiting), num: true, by: (m) => m.waiting, tone: (m) => (m.waiting ? "busy" : "") },
    { title: "running", value: (m) => count(m.running), num: true },
    { title: "slots taken", hint: "at the endpoints in service that serve it, whatever the model of what runs there", value: (m) => `${count(Math.min(m.taken, m.slots))} of ${count(m.slots)}`, num: true, part: (m) => m.taken / (m.slots || 1) },
    { title: "oldest", value: oldest, num: true, by: (m) => m.oldest_wait_s },
    { title: "waited p50 · p99 (last 256 sent)", hint: "in the queue, of those that were sent; who still waits does not count", value: (m) => (m.dispatched_total ? `${seconds(m.wait_p50_s)} · ${seconds(m.wait_p99_s)}` : "–"), num: true, low: true },
    { title: "endpoints", value: (m) => `${m.up} of ${m.endpoints}`, num: true, tone: (m) => (m.up < m.endpoints ? "bad" : "") },
    { title: "why they wait", value: (m) => (m.waiting ? cause(m.cause, m.why) : ""), wide: true },
    { title: "", verbs: (m) => stopVerbs(m.name) },
  ], { key: (m) => m.name, limit: 12, empty: "No model is known yet." }),
  bands: new Table($("bands"), [
    { title: "band", value: (b) => text(b.name), name: true },
    { title: "waiting", value: (b) => count(b.waiting), num: true, tone: (b) => (b.waiting ? "busy" : "") },
    { title: "waiting prompt tokens", hint: "of the prompts that wait, estimated", value: (b) => count(b.tokens), num: true, low: true },
    { title: "oldest", value: oldest, num: true },
    { title: "running", value: (b) => count(b.running), num: true },
    { title: "share of tokens", hint: "of those that all bands got over the last minute, by price", value: (b) => percent(b.share), num: true, part: (b) => b.share, mark: (b) => b.min_share || null },
    { title: "guaranteed", hint: MEANS.guaranteed, value: guaranteed, wide: true, low: true },
  ], { key: (b) => b.name, limit: 8, empty: "" }),
  tenants: new Table($("tenants"), [
    { title: "tenant", value: (t) => text(t.tenant), name: true },
    { title: "band", value: (t) => text(t.band) },
    { title: "waiting", value: (t) => count(t.waiting), num: true, by: (t) => t.waiting, tone: (t) => (t.waiting ? "busy" : "") },
    { title: "oldest", value: oldest, num: true, by: (t) => (t.waiting ? t.oldest_wait_s : -1) },
    { title: "running", value: (t) => count(t.running), num: true, by: (t) => t.running },
    { title: "went wrong", hint: MEANS["went wrong"], value: (t) => wrong(t).map(([number, said]) => `${count(number)} ${said}`).join(", "), wide: true, by: (t) => wrong(t).reduce((sum, [number]) => sum + number, 0), tone: (t) => (t.went_wrong.broken || t.went_wrong.failed ? "bad" : "busy") },
    { title: "share of tokens", hint: "of those that all tenants got over the last minute, by price", value: (t) => percent(t.share_of_all), num: true, by: (t) => t.share_of_all, part: (t) => t.share_of_all },
    { title: "within its band: got, fair", hint: "of what its band got over the last minute; fair by weight, among the tenants of the band", value: within, wide: true, low: true },
    { title: "weight", value: (t) => String(t.weight), num: true, low: true, by: (t) => t.weight },
    { title: "", verbs: tenantVerbs },
  ], { key: (t) => `${t.band} ${t.tenant}`, limit: 15, empty: "Nobody asks for anything." }),
  endpoints: new Table($("endpoints"), [
    { title: "endpoint", value: (e) => text(e.name), name: true },
    { title: "state", value: stateOf, tone: (e) => (e.state === "up" ? "" : ["down", "hung", "unproven", "stuck", "ejected"].includes(e.state) ? "bad" : "busy") },
    { title: "running / slots", hint: "requests that Penstock has there now, from dispatch to the last byte", value: (e) => `${e.leases} / ${e.slots}${e.slots_auto ? " auto" : ""}`, num: true, part: (e) => e.leases / (e.slots || 1) },
    { title: "engine said", hint: "its own gauges, and how old that reading is, or why they are not believed; what was sent since is not in it", value: (e) => said(e), by: (e) => e.engine_waiting ?? -1, tone: (e) => (e.observed_s_ago > 5 ? "busy" : "") },
    { title: "KV used / ceiling", hint: "memory in use with what was sent since the reading; the line marks the ceiling, admission.max_kv_usage", value: (e) => (e.kv_usage_believed == null ? "–" : `${Math.round(e.kv_usage_believed * 100)} / ${percent(state.kv_usage_ceiling)}`), num: true, by: (e) => e.kv_usage_believed ?? -1, part: (e) => e.kv_usage_believed ?? 0, mark: (e) => (e.kv_usage_believed == null ? null : state.kv_usage_ceiling), hot: (e) => e.kv_usage_believed >= state.kv_usage_ceiling },
    { title: "KV tokens free", hint: "below the ceiling", value: (e) => count(e.kv_tokens_free), num: true, low: true, by: (e) => e.kv_tokens_free ?? -1 },
    { title: "ms / token", value: (e) => (e.time_per_output_token_s ? (e.time_per_output_token_s * 1000).toFixed(1) : "–"), num: true, low: true },
    { title: "takes nothing because", value: (e) => cause(e.closed, e.why), wide: true, low: true },
    { title: "last failure", value: (e) => (e.failure ? `${e.failure}, ${seconds(e.failed_s_ago)} ago` : ""), low: true },
    { title: "", verbs: (e) => [e.state === "draining" ? ["endpoint-resume", "Resume"] : ["endpoint-drain", "Drain"], ["endpoint-slots", "Slots"], ["endpoint-remove", "Remove"]] },
  ], { key: (e) => e.name, limit: 24, empty: "No endpoint is configured or discovered." }),
  requests: new Table($("listed"), [
    { title: "id", value: (r) => text(r.id, 40), name: true },
    { title: "tenant", value: (r) => text(r.tenant, 40), name: true },
    { title: "band", value: (r) => text(r.band), low: true },
    { title: "model", value: (r) => text(r.model, 40), name: true, low: true },
    { title: "state", value: (r) => (r === eldest ? `${r.state}, oldest` : r.state), tone: (r) => (["rejected", "evicted", "failed"].includes(r.state) ? "bad" : "") },
    { title: "waited", value: (r) => seconds(r.waited_s), num: true, by: (r) => r.waited_s },
    { title: "age", hint: "since it came; of those that ended, from then to the end", value: (r) => seconds(r.age_s), num: true, low: true, by: (r) => r.age_s },
    { title: "prompt tokens", hint: "estimated until it ends", value: (r) => count(r.prompt_tokens), num: true, low: true, by: (r) => r.prompt_tokens },
    { title: "answered", hint: "tokens so far", value: (r) => count(r.output_tokens), num: true, low: true, by: (r) => r.output_tokens },
    { title: "why", value: (r) => (r.cause ? cause(r.cause) : r.reason ?? (r.endpoint ? `at ${text(r.endpoint, 40)}` : "")) + (r.requeues ? ` (requeued ${r.requeues}×)` : ""), wide: true },
    { title: "", verbs: (r) => [["explain", "Explain"], ...(r.state === "waiting" ? [["bump", "Bump"]] : []), ...(["waiting", "running", "streaming"].includes(r.state) ? [["cancel", "Cancel"]] : [])] },
  ], { key: (r) => r.id, limit: 20, empty: "None." }),
  batches: new Table($("batches"), [
    { title: "batch", value: (b) => text(b.id, 40), name: true },
    { title: "tenant", value: (b) => text(b.tenant, 40), name: true },
    { title: "status", value: (b) => b.status },
    { title: "done", value: (b) => `${count(b.completed)} of ${count(b.total)}`, num: true, part: (b) => (b.completed + b.failed) / b.total },
    { title: "failed", value: (b) => count(b.failed), num: true, low: true },
    { title: "per s", hint: "all batches of the tenant together", value: (b) => b.per_s.toFixed(1), num: true, low: true },
    { title: "done in", hint: "at the present pace", value: (b) => (b.estimated_end == null ? "–" : seconds(Math.max(0, b.estimated_end - state.at))), num: true },
    { title: "window", hint: "what is left of it", value: (b) => (b.misses_window ? `${seconds(Math.max(0, b.deadline - state.at))}, will be missed` : seconds(Math.max(0, b.deadline - state.at))), num: true, tone: (b) => (b.misses_window ? "bad" : "") },
  ], { key: (b) => b.id, limit: 12, empty: "None." }),
  failures: new Table($("failures"), [
    { title: "requests", value: (f) => count(f.count), num: true, by: (f) => f.count },
    { title: "whose", value: (f) => text(f.tenant || "unknown", 40), name: true },
    { title: "what became of them", value: (f) => `${f.what} (${f.reason})`, wide: true, tone: (f) => (["broken", "failed"].includes(f.kind) ? "bad" : "") },
    { title: "at", value: (f) => text(f.endpoint, 40), name: true },
  ], { key: (f) => `${f.kind} ${f.reason} ${f.endpoint} ${f.tenant}`, limit: 8, empty: "Nothing failed in the last minute." }),
  events: new Table($("events"), [
    { title: "at", value: (e) => new Date(e.at * 1000).toLocaleTimeString("en-GB"), num: false },
    { title: "kind", value: (e) => e.kind, low: true },
    { title: "what", value: (e) => text(e.text, 320), wide: true },
  ], { key: (e) => e.serial, limit: 12, empty: "Nothing happened yet." }),
};

const amount = (value) => (value > 0 && value < 10 ? String(Math.round(value * 10) / 10) : count(value));
const drawn = $("curves");
const curve = (label, lines, format, more = {}) => new Curve(drawn, label, lines, format, { ...more, means: MEANS[label] });
const charts = [
  curve("waiting", { waiting: "" }, amount),
  curve("oldest wait", { oldest_s: "" }, seconds),
  curve("running", { running: "", slots: "slots" }, amount),
  curve("first token", { first_token_p50_s: "p50", first_token_p99_s: "p99" }, seconds),
  curve("sent to engines / s", { sent_per_s: "" }, amount),
  curve("tokens / s", { tokens_per_s: "" }, amount),
  curve("fullest KV memory", { kv_max: "" }, percent, { top: 1 }),
  curve("refused / s", { refused_per_s: "" }, amount, { bad: true }),
  curve("waited in vain / s", { evicted_per_s: "" }, amount, { bad: true }),
  curve("broken streams / s", { broken_per_s: "" }, amount, { bad: true }),
  curve("failed / s", { failed_per_s: "" }, amount, { bad: true }),
  curve("tried again / s", { retried_per_s: "" }, amount, { bad: true }),
];
legend($("legend"));
const lines = charts.flatMap((chart) => chart.lines);
let range = Number(localStorage.getItem("penstock-range")) || RANGES["10 min"];
let pointed = null; // how far into the curves the pointer is, 0 to 1

function guaranteed(band) {
  if (band.min_share) return `${percent(band.min_share)} while it has work`;
  const above = state.bands.slice(0, state.bands.findIndex((b) => b.name === band.name));
  return band.waiting && above.some((b) => b.waiting) ? "nothing: waits behind higher bands, by design" : "nothing";
}

// How many of a tenant's requests were refused and so on: whoever is hurt is marked, not only who waits.
const wrong = (tenant) => FAILED.map(([kind, said]) => [tenant.went_wrong[kind] ?? 0, said]).filter(([number]) => number);

function stateOf(endpoint) {
  const state = endpoint.state === "draining" && !endpoint.leases ? "▲ drained" : STATES[endpoint.state] ?? endpoint.state;
  const since = endpoint.state === "up" || endpoint.state_s == null ? "" : `, ${seconds(endpoint.state_s)}`;
  return state + since + (endpoint.role === "both" ? "" : `, ${endpoint.role} only`);
}

function within(tenant) {
  if (tenant.is_alone) return "alone";
  const got = percent(tenant.share);
  const refused = tenant.went_wrong.refused || tenant.went_wrong.evicted;
  // Who has less than is fair and yet hardly waits does not ask for more.
  const content = tenant.fair_share == null || (tenant.share < tenant.fair_share && tenant.oldest_wait_s < 1);
  if (content) return refused ? got : `${got}, gets all it asks for`;
  return `${got}, fair ${percent(tenant.fair_share)}`;
}

function said(endpoint) {
  if (endpoint.observed_s_ago == null) return "nothing yet";
  if (endpoint.gauges !== "believed") return endpoint.gauges.replace("_", " ");
  return `${count(endpoint.engine_running)} run, ${count(endpoint.engine_waiting)} queue, ${seconds(endpoint.observed_s_ago)} ago`;
}

function stopVerbs(model) {
  if (state.paused.includes("*") || state.drained.includes("*")) return []; // all of them: the buttons above take that back
  const stopped = state.paused.includes(model) || state.drained.includes(model);
  return stopped ? [["model-resume", "Resume"]] : [["model-pause", "Pause"], ["model-drain", "Drain"]];
}

function tenantVerbs(tenant) {
  const pauses = state.paused_tenants.includes(tenant.tenant) ? ["tenant-resume", "Resume"] : ["tenant-pause", "Pause"];
  return [pauses, ["tenant-limit", "Limit"], ["tenant-cancel", "Cancel"]];
}

function put(node, value) { if (node.textContent !== value) node.textContent = value; }

function numbers(entries) {
  const list = $("numbers");
  entries.forEach(([name, value], at) => {
    let pair = list.children[at];
    if (!pair) {
      pair = list.appendChild(document.createElement("div"));
      pair.append(document.createElement("dt"), document.createElement("dd"));
    }
    put(pair.firstChild, name);
    if (MEANS[name]) pair.title = MEANS[name];
    put(pair.lastChild, value);
  });
}

// What stands between backticks is what somebody types.
function coded(node, value) {
  if (node.said === value) return;
  node.said = value;
  node.replaceChildren(...value.split("`").map((part, at) => {
    if (at % 2 === 0) return part;
    const code = document.createElement("code");
    code.textContent = part;
    return code;
  }));
}

const matches = (...fields) => !filter || fields.some((field) => String(field ?? "").toLowerCase().includes(filter));

// Who carries the bytes, where it is not this process alone.
const carried = (edges) => (edges?.length
  ? ` · ${edges.length} workers: ${edges.map((e) => (e.up_s === null ? `${text(e.name)} away`
    : `${text(e.name)} ${count(e.requests)} at ${(e.cpu * 100).toFixed(0)} % CPU`)).join(", ")}` : "");

// Who decides, where several gateways share one queue.
const decided = (share) => (share
  ? ` · ${share.role === "leads" || share.role === "alone" ? text(share.name) : text(share.decider ?? "nobody")} decides${share.role === "alone" ? " alone" : ""} for ${seconds(share.since_s)}, ${share.gateways} gateways` : "");

function show() {
  const s = state;
  const began = performance.now();
  drawCurves(); // first, while the layout is clean: it asks for sizes
  put($("facts"), `${s.version} · settings ${s.settings.slice(0, 8)} · up ${seconds(s.up_s)} · loop lag ${(s.loop_lag_s * 1000).toFixed(1)} ms${decided(s.share)}${carried(s.edges)}`);
  const said = text(s.headline, 900);
  put($("lead"), said.slice(0, s.lead.length));
  put($("rest"), said.slice(s.lead.length));
  coded($("advice"), s.advice ? `→ ${text(s.advice, 400)}` : "");
  $("headline").title = s.queueing ? `Queueing: ${text(s.queueing.why, 600)}` : "";
  put($("tone"), TONES[s.tone] ?? s.tone);
  $("tone").className = s.tone;
  $("stops").querySelector("[data-verb=resume]").classList.toggle("wanted", s.paused.length + s.drained.length > 0);
  document.title = s.waiting ? `${s.waiting} wait – Penstock` : "Penstock";
  numbers([
    ["waiting", count(s.waiting)], ["running", count(s.running)], ["slots taken", `${count(s.slots_taken)} of ${count(s.slots)}`],
    ["oldest wait", s.waiting ? seconds(s.now.oldest_s) : "–"], ["sent to engines / s", (s.now.sent_per_s ?? 0).toFixed(1)],
    ["tokens / s", count(s.now.tokens_per_s ?? 0)],
    ["first token", s.lately.first_token_p50_s == null ? "–" : `p50 ${seconds(s.lately.first_token_p50_s)}, p99 ${seconds(s.lately.first_token_p99_s)}`],
    ["last minute", `${count(s.lately.ended)} requests ended, of them ${FAILED.map(([kind, said]) => `${count(s.lately[kind])} ${said}`).join(", ")}; ${count(s.lately.retried)} tried again`],
  ]);
  tables.failures.update(s.lately.rows.filter((f) => matches(f.tenant, f.endpoint, f.what, f.reason)), filter ? 0 : s.lately.rows_more);
  tables.models.update(s.models.filter((m) => matches(m.name, m.cause)), filter ? 0 : s.models_more);
  tables.bands.update(s.bands);
  tables.tenants.update(s.tenants.filter((t) => matches(t.tenant, t.band)), filter ? 0 : s.tenants_more);
  tables.endpoints.update(s.endpoints.filter((e) => matches(e.name, e.state, e.closed)), filter ? 0 : s.endpoints_more);
  showRequests();
  $("batches").hidden = !s.batches?.length;
  tables.batches.update((s.batches ?? []).filter((b) => matches(b.id, b.tenant, b.status)));
  tables.events.update(s.events.filter((e) => matches(e.text, e.kind)));
  window.penstockFrame = { at: s.at, ms: performance.now() - began, count: (window.penstockFrame?.count ?? 0) + 1 };
}

function showRequests() {
  const { requests, waiting, running } = state;
  const chosen = tab ?? (requests.waiting.length ? "waiting" : requests.running.length ? "running" : "ended");
  const totals = { waiting, running, ended: null };
  for (const name of ["waiting", "running", "ended"]) {
    let button = $("tabs").querySelector(`[data-tab="${name}"]`);
    if (!button) {
      button = $("tabs").appendChild(document.createElement("button"));
      button.dataset.tab = name;
      button.addEventListener("click", () => { tab = name; showRequests(); });
    }
    put(button, totals[name] == null ? "last ended" : `${name} ${count(totals[name])}`);
    button.setAttribute("aria-pressed", String(name === chosen));
  }
  eldest = requests.waiting.reduce((most, r) => (r.waited_s > (most?.waited_s ?? -1) ? r : most), null);
  put($("order"), ORDERS[chosen]);
  const rows = requests[chosen].filter((r) => matches(r.id, r.tenant, r.model, r.band, r.cause, r.reason, r.endpoint));
  const at = rows.indexOf(eldest);
  const last = tables.requests.limit - 1;
  if (at > last) rows.splice(last, 0, ...rows.splice(at, 1)); // it is what people ask for
  const total = totals[chosen];
  tables.requests.update(rows, total == null || filter ? 0 : Math.max(0, total - requests[chosen].length));
}

function drawCurves() {
  const style = getComputedStyle(document.documentElement);
  const [first, second, bad, line, dim, ink] = ["--blue", "--orange", "--red", "--line", "--dim", "--ink"].map((name) => style.getPropertyValue(name));
  let span = 0;
  for (const chart of charts) span = chart.draw(state.at, { first, second, bad, line, dim, ink }, range, pointed) || span;
  put($("span"), span && span < range * 0.99 ? `since the start, ${seconds(state.up_s)} ago` : "");
}

for (const [label, length] of Object.entries(RANGES)) {
  const button = $("ranges").appendChild(document.createElement("button"));
  button.textContent = label;
  button.setAttribute("aria-pressed", String(length === range));
  button.addEventListener("click", () => {
    range = length;
    localStorage.setItem("penstock-range", String(length));
    for (const other of $("ranges").children) other.setAttribute("aria-pressed", String(other === button));
    if (state) drawCurves();
  });
}

function point(at) {
  pointed = at;
  if (state) drawCurves();
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

// --- the connection -------------------------------------------------------------------------------------------

function headers(more = {}) {
  return token ? { ...more, authorization: `Bearer ${token}` } : more;
}

// Without a token set the gateway shows itself to this machine, on loopback; to change something takes its own token.
// Buttons that change something are there only for those who may (`body.writes`).
function access(asked) {
  $("login").hidden = !token && !asked;
  $("open").hidden = Boolean(token) || document.body.classList.contains("locked");
}

// Who may not look is told so, and shown nothing else, also nothing of what was shown before.
function lock() {
  state = null;
  put($("lead"), "…");
  put($("rest"), "");
  document.body.classList.remove("writes");
  document.body.classList.add("locked");
}

function linked(on, label) {
  put($("link"), label);
  $("link").className = on ? "pill" : "pill off";
  document.body.classList.toggle("stale", !on && state !== null);
}

function notice(message) {
  put($("notice"), message);
  $("notice").hidden = !message;
}

async function message(answer) {
  try { return (await answer.json()).error.message; } catch { return `answered ${answer.status}`; }
}

async function listen() {
  const allowed = await fetch("access", { headers: headers(), cache: "no-store", signal: stop.signal });
  const writes = allowed.ok && (await allowed.json()).writes;
  const answer = await fetch("events", { headers: headers(), cache: "no-store", signal: stop.signal });
  if (!answer.ok) {
    const said = await message(answer);
    const error = new Error(said);
    error.denied = [401, 403].includes(answer.status);
    throw error;
  }
  const history = await fetch("history", { headers: headers(), cache: "no-store" });
  if (history.ok) {
    const { coarse_s, coarse, fine } = await history.json();
    const now = Date.now() / 1000;
    loadCurves = (at) => { for (const line of lines) line.load(coarse[line.name], coarse_s, fine[line.name], at ?? now); };
  }
  linked(true, "live");
  document.body.classList.toggle("writes", writes);
  document.body.classList.remove("locked");
  access(!writes);
  notice("");
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    rest += value;
    const frames = rest.split("\n\n");
    rest = frames.pop();
    const last = frames.map((frame) => frame.split("\n").find((line) => line.startsWith("data: "))).filter(Boolean).pop();
    if (last) take(JSON.parse(last.slice(6)));
  }
}

let loadCurves = null;
let stop = new AbortController();

function take(frame) {
  state = frame;
  if (loadCurves) { loadCurves(frame.at); loadCurves = null; }
  for (const line of lines) if (line.name in frame.now) line.add(frame.at, frame.now[line.name]);
  if (!document.hidden) show();
}

const pause = (ms) => new Promise((resolve) => {
  const timer = setTimeout(resolve, ms);
  stop.signal.addEventListener("abort", () => { clearTimeout(timer); resolve(); }, { once: true });
});

async function forever() {
  let wait = 500;
  for (;;) {
    try {
      await listen();
      wait = 500;
      linked(false, "reconnecting");
    } catch (error) {
      if (error.denied) {
        lock();
        linked(false, "no access");
        access(true);
        notice(error.message);
        wait = 5000;
      } else if (error.name !== "AbortError") {
        linked(false, "reconnecting");
        wait = Math.min(wait * 1.5, 5000);
      }
    }
    await pause(wait);
    if (stop.signal.aborted) { stop = new AbortController(); wait = 500; }
  }
}

// --- verbs ----------------------------------------------------------------------------------------------------

async function act(method, path, body) {
  const answer = await fetch(path, { method, headers: headers({ "content-type": "application/json" }), body: body && JSON.stringify(body) }).catch(() => null);
  notice(answer === null ? "Penstock could not be reached." : answer.ok ? "" : await message(answer));
  if (answer?.status === 401) {
    access(true);
    $("token").focus();
  }
  return answer?.ok ? answer.json() : null;
}

function ask(question, value) {
  const input = $("ask-value");
  put($("ask-text"), question);
  input.hidden = value === undefined;
  input.value = value ?? "";
  put($("ask-yes"), value === undefined ? "Yes" : "Set");
  const dialog = $("ask");
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.onclose = () => resolve(dialog.returnValue !== "yes" ? null : value === undefined ? true : input.value.trim());
    dialog.returnValue = "no";
  });
}

async function explain(id) {
  const told = await act("GET", `requests/${encodeURIComponent(id)}`);
  if (!told) return;
  put($("explain-title"), `Request ${text(id, 140)}`);
  $("explain-story").replaceChildren(...told.story.map((line) => {
    const item = document.createElement("li");
    item.textContent = text(line, 2000);
    return item;
  }));
  const waited = told.explanation.waits.reduce((sum, part) => sum + part.seconds, 0) || 1;
  $("explain-bars").replaceChildren(...told.explanation.waits.map((part) => {
    const bar = document.createElement("div");
    bar.textContent = `${part.cause} ${seconds(part.seconds)}`;
    bar.style.setProperty("--part", `${Math.round((100 * part.seconds) / waited)}%`);
    return bar;
  }));
  if (!$("explain").open) $("explain").showModal();
}

const tenantOf = (key) => key.slice(key.indexOf(" ") + 1); // a band's name has no space

const VERBS = {
  explain: (id) => explain(id),
  bump: (id) => act("POST", `requests/${encodeURIComponent(id)}/bump`),
  cancel: async (id) => (await ask(`Cancel request ${text(id)}?`)) && act("POST", `requests/${encodeURIComponent(id)}/cancel`),
  pause: async () => (await ask("Pause everything? Nothing more is sent; what comes waits.")) && act("POST", "pause", {}),
  drain: async () => (await ask("Drain everything? New requests are refused; what waits is served.")) && act("POST", "drain", {}),
  resume: () => act("POST", "resume", {}),
  reload: async () => (await ask("Read the settings again? Bad ones change nothing.")) && act("POST", "reload", {}),
  "model-pause": async (model) => (await ask(`Pause ${text(model)}?`)) && act("POST", "pause", { model }),
  "model-drain": async (model) => (await ask(`Drain ${text(model)}? New requests for it are refused.`)) && act("POST", "drain", { model }),
  "model-resume": (model) => act("POST", "resume", { model }),
  "tenant-pause": async (key) => {
    const name = tenantOf(key);
    if (await ask(`Pause tenant ${text(name)}? Nothing more of its requests is sent; what comes waits, what runs goes on.`)) await act("POST", `tenants/${encodeURIComponent(name)}/pause`, {});
  },
  "tenant-resume": (key) => act("POST", `tenants/${encodeURIComponent(tenantOf(key))}/resume`, {}),
  "tenant-limit": async (key) => {
    const name = tenantOf(key);
    const told = await act("GET", `tenants/${encodeURIComponent(name)}`);
    if (!told) return;
    const now = told.limits.running?.value;
    const running = await ask(`How many requests of tenant ${text(name)} may run at a time? A number, or none; empty: as the settings say.`, now == null ? "" : String(now));
    if (running === null) return;
    if (running === "") await act("DELETE", `tenants/${encodeURIComponent(name)}/limit`);
    else await act("POST", `tenants/${encodeURIComponent(name)}/limit`, { running: running === "none" ? null : running });
  },
  "tenant-cancel": async (key) => {
    const name = tenantOf(key);
    if (!(await ask(`Cancel all waiting requests of tenant ${text(name)}? Their callers are refused; what runs goes on.`))) return;
    let left = 1;
    while (left > 0) left = (await act("POST", `tenants/${encodeURIComponent(name)}/cancel`, {}))?.left ?? 0;
  },
  "endpoint-drain": async (name) => (await ask(`Drain ${text(name)}? It is sent nothing more; what runs there ends.`)) && act("POST", `endpoints/${encodeURIComponent(name)}/drain`),
  "endpoint-resume": (name) => act("POST", `endpoints/${encodeURIComponent(name)}/resume`),
  "endpoint-remove": async (name) => (await ask(`Remove ${text(name)}? What runs there may end.`)) && act("DELETE", `endpoints/${encodeURIComponent(name)}`),
  "endpoint-slots": async (name) => {
    const now = state.endpoints.find((e) => e.name === name);
    const slots = await ask(`Slots of ${text(name)} (a number, or auto)`, now ? String(now.slots_auto ? "auto" : now.slots) : "");
    if (slots) await act("POST", `endpoints/${encodeURIComponent(name)}/slots`, { slots: slots === "auto" ? slots : Number(slots) });
  },
};

document.addEventListener("click", (event) => {
  const button = event.target.closest("button[data-verb]");
  if (button) VERBS[button.dataset.verb](button.closest("tr")?.dataset.key);
});
$("find").addEventListener("submit", (event) => {
  event.preventDefault();
  if ($("find-id").value.trim()) explain($("find-id").value.trim());
});
$("add").addEventListener("submit", async (event) => {
  event.preventDefault();
  if (await act("POST", "endpoints", { url: $("add-url").value.trim() })) $("add-url").value = "";
});
$("login").addEventListener("submit", (event) => event.preventDefault());
$("token").addEventListener("change", () => {
  token = $("token").value.trim();
  sessionStorage.setItem("penstock-token", token);
  stop.abort();
});
$("filter").addEventListener("input", () => {
  filter = $("filter").value.trim().toLowerCase();
  if (state) show();
});
document.addEventListener("keydown", (event) => {
  if (event.key === "/" && !/INPUT|TEXTAREA/.test(event.target.tagName)) {
    event.preventDefault();
    $("filter").focus();
  }
});
document.addEventListener("visibilitychange", () => { if (!document.hidden && state) show(); });
window.addEventListener("resize", () => { if (state) drawCurves(); });

const THEMES = ["", "light", "dark"];
function theme(name) {
  if (name) document.documentElement.dataset.theme = name;
  else delete document.documentElement.dataset.theme;
  localStorage.setItem("penstock-theme", name);
  if (state) drawCurves();
}
$("theme").addEventListener("click", () => theme(THEMES[(THEMES.indexOf(localStorage.getItem("penstock-theme") ?? "") + 1) % 3]));
theme(localStorage.getItem("penstock-theme") ?? "");
$("token").value = token;
forever();
