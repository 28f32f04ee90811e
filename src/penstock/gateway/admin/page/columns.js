// The tables: which columns each has, and what stands in them.

import { REASONS } from "./catalogue.js";
import { MEANS } from "./legend.js";
import { $, seen } from "./seen.js";
import { Table, count, percent, seconds, text, whole } from "./tables.js";
import { awayTone, badness, cause, guaranteed, stateOf, wrong } from "./words.js";

const oldestOf = (group) => group.rows.reduce((most, r) => (r.age_s > most.age_s ? r : most)).id;
const oldest = (row) => (row.waiting ? seconds(row.oldest_wait_s) : "");

function said(endpoint) {
  if (endpoint.observed_s_ago == null) return "nothing yet";
  if (endpoint.gauges !== "believed") return endpoint.gauges.replace("_", " ");
  return `${count(endpoint.engine_running)} run, ${count(endpoint.engine_waiting)} queue, ${seconds(endpoint.observed_s_ago)}\u00a0ago`;
}

function stopVerbs(model) {
  if (seen.frame.paused.includes("*") || seen.frame.drained.includes("*")) return []; // all of them: the buttons above take that back
  const stopped = seen.frame.paused.includes(model) || seen.frame.drained.includes(model);
  return stopped ? [["model-resume", "Resume"]] : [["model-pause", "Pause"], ["model-drain", "Drain"]];
}

function tenantVerbs(tenant) {
  const pauses = seen.frame.paused_tenants.includes(tenant.tenant) ? ["tenant-resume", "Resume"] : ["tenant-pause", "Pause"];
  return [pauses, ["tenant-steer", "Weight and limits…"], ["tenant-key", "Issue a key…"], ["tenant-try", "Test request…"], ["tenant-cancel", "Cancel its requests…"]];
}

export const tables = {
  models: new Table($("models"), [
    { title: "model", value: (m) => text(m.name), name: true },
    { title: "waiting", value: (m) => count(m.waiting), num: true, by: (m) => m.waiting, tone: (m) => (m.waiting ? "busy" : "") },
    { title: "running", value: (m) => count(m.running), num: true },
    { title: "slots taken", hint: "at the endpoints in service for it, by requests for any model", value: (m) => `${count(Math.min(m.taken, m.slots))} of ${count(m.slots)}`, num: true, part: (m) => m.taken / (m.slots || 1) },
    { title: "oldest", value: oldest, num: true, by: (m) => m.oldest_wait_s },
    { title: "waited p50 · p99 (10 s)", hint: "in the queue, of requests sent in the last ten seconds, at most 256; queued ones do not count", value: (m) => (m.wait_p50_s == null ? "–" : `${seconds(m.wait_p50_s)} · ${seconds(m.wait_p99_s)}`), num: true, low: true },
    { title: "endpoints", value: (m) => `${m.up} of ${m.endpoints}`, num: true, tone: awayTone },
    { title: "why they wait", value: (m) => (m.waiting ? cause(m.cause, m.why) : ""), wide: true },
    { title: "", verbs: (m) => stopVerbs(m.name) },
  ], { key: (m) => m.name, limit: 12, empty: "No model is known yet." }),
  bands: new Table($("bands"), [
    { title: "band", value: (b) => text(b.name), name: true },
    { title: "waiting", value: (b) => count(b.waiting), num: true, tone: (b) => (b.waiting ? "busy" : "") },
    { title: "waiting prompt tokens", hint: "of queued prompts, estimated", value: (b) => count(b.tokens), num: true, low: true },
    { title: "oldest", value: oldest, num: true },
    { title: "running", value: (b) => count(b.running), num: true },
    { title: "share of tokens", hint: "of all bands over the last minute, by price", value: (b) => percent(b.share), num: true, part: (b) => b.share, mark: (b) => b.min_share || null },
    { title: "guaranteed", hint: MEANS.guaranteed, value: guaranteed, wide: true, low: true },
  ], { key: (b) => b.name, limit: 8, empty: "" }),
  tenants: new Table($("tenants"), [
    { title: "tenant", value: (t) => text(t.tenant), name: true, tenant: true },
    { title: "band", value: (t) => text(t.band) },
    { title: "waiting", value: (t) => count(t.waiting), num: true, by: (t) => t.waiting, tone: (t) => (t.waiting ? "busy" : "") },
    { title: "oldest", value: oldest, num: true, by: (t) => (t.waiting ? t.oldest_wait_s : -1) },
    { title: "running", value: (t) => count(t.running), num: true, by: (t) => t.running },
    { title: "first token p50 · p99", hint: MEANS["first token of a tenant"], value: (t) => (t.first_token_p50_s == null ? "" : [t.first_token_p50_s, t.first_token_p99_s].filter((value) => value != null).map(seconds).join(" · ")), num: true, by: (t) => t.first_token_p99_s ?? -1, tone: (t) => (t.first_token_p99_s >= 10 && !t.over_share ? "busy" : "") },
    { title: "waited p50 · p99", hint: "in the queue, of all its requests that ended in the last minute", value: (t) => (t.wait_p50_s == null ? "" : `${seconds(t.wait_p50_s)} · ${seconds(t.wait_p99_s)}`), num: true, low: true, by: (t) => t.wait_p99_s ?? -1 },
    { title: "went wrong", hint: MEANS["went wrong"], value: (t) => wrong(t).map(([number, said]) => `${count(number)} ${said}`).join(", "), wide: true, by: (t) => wrong(t).reduce((sum, [number]) => sum + number, 0), tone: (t) => (t.went_wrong.broken || t.went_wrong.failed ? "bad" : "busy") },
    { title: "share of tokens", hint: "of all tenants over the last minute, by price", value: (t) => (t.idle ? "" : percent(t.share_of_all)), num: true, by: (t) => t.share_of_all, part: (t) => t.share_of_all },
    { title: "within its band: got, fair", hint: "of its band over the last minute; fair by weight, among the tenants of the band", value: (t) => whole(t.within), wide: true, low: true },
    { title: "weight", value: (t) => String(t.weight), num: true, low: true, by: (t) => t.weight },
    { title: "left of its limits", value: (t) => whole(t.left), wide: true },
    { title: "", verbs: tenantVerbs },
  ], { key: (t) => `${t.band} ${t.tenant}`, limit: 15, empty: "No requests, and no tenants in the settings." }),
  endpoints: new Table($("endpoints"), [
    { title: "endpoint", value: (e) => text(e.name), name: true },
    { title: "state", value: stateOf, tone: (e) => badness(e.state) },
    { title: "running / slots", hint: "Penstock's requests there now, from dispatch to the last byte", value: (e) => `${e.leases} / ${e.slots}${e.slots_auto ? " auto" : ""}`, num: true, part: (e) => e.leases / (e.slots || 1) },
    { title: "engine reports", hint: "its own gauges and their age, or why they are not trusted; later requests are not in them", value: (e) => said(e), by: (e) => e.engine_waiting ?? -1, tone: (e) => (e.observed_s_ago > 5 ? "busy" : "") },
    { title: "KV used / ceiling", hint: "memory in use, with requests sent since the reading; the line marks the ceiling, admission.max_kv_usage", value: (e) => (e.kv_usage_believed == null ? "–" : `${Math.round(e.kv_usage_believed * 100)} / ${percent(seen.frame.kv_usage_ceiling)}`), num: true, by: (e) => e.kv_usage_believed ?? -1, part: (e) => e.kv_usage_believed ?? 0, mark: (e) => (e.kv_usage_believed == null ? null : seen.frame.kv_usage_ceiling), hot: (e) => e.kv_usage_believed >= seen.frame.kv_usage_ceiling },
    { title: "KV tokens free", hint: "below the ceiling", value: (e) => count(e.kv_tokens_free), num: true, low: true, by: (e) => e.kv_tokens_free ?? -1 },
    { title: "ms / token", value: (e) => (e.time_per_output_token_s ? (e.time_per_output_token_s * 1000).toFixed(1) : "–"), num: true, low: true },
    { title: "why not now", value: (e) => cause(e.closed ?? e.why, e.why), wide: true, low: true },
    { title: "last failure", value: (e) => (e.failure ? `${e.failure}, ${seconds(e.failed_s_ago)}\u00a0ago` : ""), low: true },
    { title: "", verbs: (e) => [e.state === "draining" ? ["endpoint-resume", "Resume"] : ["endpoint-drain", "Drain"], ["endpoint-slots", "Slots"], ["endpoint-remove", "Remove"]] },
  ], { key: (e) => e.name, limit: 8, empty: "No endpoint is configured or discovered." }),
  requests: new Table($("listed"), [
    { title: "requests", hint: "a group opens into its requests", value: (r) => (r.group ? `${count(r.count)} request${r.count === 1 ? "" : "s"}` : text(r.id, 40)), name: true, opens: (r) => r.group },
    { title: "tenant", value: (r) => text(r.tenant, 40), name: true, tenant: true },
    { title: "band", value: (r) => text(r.band), low: true },
    { title: "model", value: (r) => (r.group && r.rows.some((one) => one.model !== r.model) ? "several" : text(r.model, 40)), name: true, low: true },
    { title: "state", value: (r) => (r === seen.eldest || r.rows?.includes(seen.eldest) ? `${r.state}, oldest` : r.state), tone: (r) => (["rejected", "evicted", "failed"].includes(r.state) ? "bad" : "") },
    { title: "waited", hint: "of a group: the longest", value: (r) => seconds(r.waited_s), num: true, by: (r) => r.waited_s },
    { title: "age", hint: "since arrival, or from then to the end; of a group: the longest", value: (r) => seconds(r.age_s), num: true, low: true, by: (r) => r.age_s },
    { title: "prompt tokens", hint: "estimated until it ends", value: (r) => count(r.prompt_tokens), num: true, low: true, by: (r) => r.prompt_tokens },
    { title: "answered", hint: "tokens so far", value: (r) => count(r.output_tokens), num: true, low: true, by: (r) => r.output_tokens },
    { title: "why", value: (r) => (r.cause ? cause(r.cause) : REASONS[r.reason] ?? r.reason ?? (r.endpoint ? `at ${text(r.endpoint, 40)}` : "")) + (r.requeues ? ` (requeued ${r.requeues}×)` : ""), wide: true },
    { title: "", verbs: (r) => r.group ? [["explain", "Explain oldest", oldestOf(r)]] : [["explain", "Explain"], ...(r.state === "waiting" ? [["bump", "Bump"]] : []), ...(["waiting", "running", "streaming"].includes(r.state) ? [["cancel", "Cancel"]] : [])] },
  ], { key: (r) => r.group ?? r.id, limit: 20, empty: "None." }),
  batches: new Table($("batches"), [
    { title: "batch", value: (b) => text(b.id, 40), name: true },
    { title: "tenant", value: (b) => text(b.tenant, 40), name: true, tenant: true },
    { title: "status", value: (b) => b.status },
    { title: "done", value: (b) => `${count(b.completed)} of ${count(b.total)}`, num: true, part: (b) => (b.completed + b.failed) / b.total },
    { title: "failed", value: (b) => count(b.failed), num: true, low: true },
    { title: "per s", hint: "all batches of the tenant together", value: (b) => b.per_s.toFixed(1), num: true, low: true },
    { title: "done in", hint: "at the present rate", value: (b) => (b.estimated_end == null ? "–" : seconds(Math.max(0, b.estimated_end - seen.frame.at))), num: true },
    { title: "window", hint: "the rest of it", value: (b) => (b.misses_window ? `${seconds(Math.max(0, b.deadline - seen.frame.at))}, will be missed` : seconds(Math.max(0, b.deadline - seen.frame.at))), num: true, tone: (b) => (b.misses_window ? "bad" : "") },
  ], { key: (b) => b.id, limit: 12, empty: "None." }),
  failures: new Table($("failures"), [
    { title: "requests", value: (f) => count(f.count), num: true, by: (f) => f.count },
    { title: "whose", value: (f) => text(f.tenant || "unknown", 40), name: true, tenant: true },
    { title: "why", value: (f) => f.what, wide: true, tone: (f) => (["broken", "failed"].includes(f.kind) ? "bad" : "") },
    { title: "at", value: (f) => text(f.endpoint, 40), name: true },
  ], { key: (f) => `${f.kind} ${f.reason} ${f.endpoint} ${f.tenant}`, limit: 8, empty: "Nothing went wrong in the last minute." }),
  events: new Table($("events"), [
    { title: "at", value: (e) => new Date(e.at * 1000).toLocaleTimeString("en-GB"), num: false },
    { title: "kind", value: (e) => e.kind, low: true },
    { title: "what", value: (e) => text(e.text, 320), wide: true },
  ], { key: (e) => e.serial, limit: 12, empty: "Nothing happened yet." }),
};
