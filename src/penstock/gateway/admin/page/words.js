// What the gateway's words are called on the page. Marks say what colours say: ● well, ▲ passing, ■ a fault, ◆ an
// operator's word.

import { seen } from "./seen.js";
import { percent, seconds, whole } from "./tables.js";

export const CAUSES = {
  no_backend: "no endpoint for the model is alive", warming: "endpoints have not told yet what they serve",
  unproven: "it has yet to show that it is an engine", ejected: "taken out after failures", held: "it refuses requests as too many", returning: "it just came back and is tried out first", stuck: "it has shown no movement for long", slots_full: "all slots are taken",
  engine_queue: "enough waits inside the engine", prefill_full: "enough prompt tokens are being computed",
  kv_full: "too little KV memory is free below the ceiling", pace: "it is slower per token than allowed", shunned: "it just refused this request",
  class_share: "the last slots and memory are kept for tenants under their share", tenant_paused: "an operator paused the tenant", tenant_cap: "the tenant runs as many as it may",
  affinity: "held for the endpoint that has its cache or session", no_decider: "it is not known which gateway decides, so nothing is sent", paused: "an operator stopped it",
  turn: "higher bands or tenants that got less go first",
};
export const cause = (word, why) => (word ? whole(`${word}: ${why ?? CAUSES[word] ?? ""}`) : "");

// What became of a request that went wrong: the name of its number in a frame, and its word.
export const WRONG = [["refused", "refused"], ["evicted", "evicted"], ["broken", "broken off"], ["failed", "unanswered"]];
export const TONES = { ok: "● ok", busy: "▲ busy", bad: "■ attention", hand: "◆ stopped" };
export const ORDERS = {
  waiting: "Highest band first, in each band who came first; between tenants turns decide. A heading sorts.",
  running: "Who was sent first. A heading sorts.",
  ended: "The last one first. A heading sorts.",
};
const STATES = { up: "● up", down: "■ down", loading: "▲ loading", sleeping: "▲ sleeping", stopping: "▲ stopping", hung: "■ hung", refused_key: "■ key refused", unproven: "■ no engine", stuck: "■ stuck", silent: "■ silent", ejected: "■ ejected", held: "▲ held", draining: "◆ draining" };
const FAULTS = ["down", "hung", "refused_key", "unproven", "stuck", "silent", "ejected"];

// How bad a state is, as a class of the style sheet.
export const badness = (state) => (state === "up" ? "" : FAULTS.includes(state) ? "bad" : state === "draining" ? "hand" : "busy");

// How bad it is that endpoints of a model are away: as bad as the worst of them.
export function awayTone(model) {
  if (model.up >= model.endpoints) return "";
  const states = seen.frame.endpoints.filter((e) => e.models == null || e.models.includes(model.name)).map((e) => badness(e.state));
  return ["bad", "busy", "hand"].find((tone) => states.includes(tone)) ?? "bad";
}

// How many of a tenant's requests were refused and so on: whoever is hurt is marked, not only who waits.
export const wrong = (tenant) => WRONG.map(([kind, said]) => [tenant.went_wrong[kind] ?? 0, said]).filter(([number]) => number);

export function guaranteed(band) {
  if (band.min_share) return `${percent(band.min_share)} while it has work`;
  const { bands } = seen.frame;
  const above = bands.slice(0, bands.findIndex((b) => b.name === band.name));
  return band.waiting && above.some((b) => b.waiting) ? "nothing: waits behind higher bands, by design" : "nothing";
}

export function stateOf(endpoint) {
  const said = endpoint.state === "draining" && !endpoint.leases ? "◆ drained" : STATES[endpoint.state] ?? endpoint.state;
  const since = endpoint.state === "up" || endpoint.state_s == null ? "" : `, ${seconds(endpoint.state_s)}`;
  return said + since + (endpoint.role === "both" ? "" : `, ${endpoint.role} only`);
}
