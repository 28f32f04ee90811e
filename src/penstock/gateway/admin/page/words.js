// Words and marks of the page. Marks stand beside colours: ● well, ▲ passing, ■ a fault, ◆ by an
// operator.

import { CAUSES, STATES } from "./catalogue.js";
import { seen } from "./seen.js";
import { percent, seconds, whole } from "./tables.js";

// In words: the codes stand in the API, in metrics and in `penstock explain`.
export const cause = (word, why) => (word ? whole(why ?? CAUSES[word] ?? word) : "");

// Kinds of failures in a frame.
export const WRONG = ["refused", "evicted", "broken", "failed"];
export const TONES = { ok: "● ok", busy: "▲ busy", bad: "■ attention", hand: "◆ stopped" };
export const ORDERS = {
  waiting: "Highest band first, oldest first in a band; between tenants turns decide. A group opens; a heading sorts.",
  running: "First sent first. A heading sorts.",
  ended: "Latest first. A heading sorts.",
};

// Limits of tenants and keys, by their names in the settings, and what they bound.
export const LIMITS = [
  ["running", "requests at engines at a time"], ["queued", "requests waiting"], ["queued_bytes", "bytes of waiting requests"],
  ["queued_tokens", "prompt tokens of waiting requests"], ["requests_per_minute", "requests a minute"], ["tokens_per_minute", "tokens a minute"],
  ["tokens_per_day", "tokens a day"],
];
export const limited = (limits) => Object.entries(limits).map(([name, most]) => `${name} ${Number.isFinite(+most) ? (+most).toLocaleString("en") : most}`).join(", ");
export const limitFields = (limits, hint = () => "no limit") => LIMITS.map(([name, label]) => ({ name, label, value: limits[name] ?? "", hint: hint(name) }));
const MARKS = { ok: "●", busy: "▲", bad: "■", hand: "◆" };

// How bad a state is, as a class of the style sheet.
export const toneOf = (state) => STATES[state];
export const badness = (state) => (state === "up" ? "" : STATES[state]);

// How bad it is that endpoints of a model are away: as bad as the worst of them.
export function awayTone(model) {
  if (model.up >= model.endpoints) return "";
  const states = seen.frame.endpoints.filter((e) => e.models == null || e.models.includes(model.name)).map((e) => badness(e.state));
  return ["bad", "busy", "hand"].find((tone) => states.includes(tone)) ?? "bad";
}

// A tenant's failures of the last minute, by kind.
export const wrong = (tenant) => WRONG.map((kind) => [tenant.went_wrong[kind] ?? 0, kind]).filter(([number]) => number);

export function guaranteed(band) {
  if (band.min_share) return `${percent(band.min_share)} while it has work`;
  const { bands } = seen.frame;
  const above = bands.slice(0, bands.findIndex((b) => b.name === band.name));
  return band.waiting && above.some((b) => b.waiting) ? "nothing: waits behind higher bands, by design" : "nothing";
}

export function stateOf(endpoint) {
  const word = endpoint.state === "draining" && !endpoint.leases ? "drained" : endpoint.state.replace("_", " ");
  const since = endpoint.state === "up" || endpoint.state_s == null ? "" : `, ${seconds(endpoint.state_s)}`;
  return `${MARKS[STATES[endpoint.state]]} ${word}${since}` + (endpoint.role === "both" ? "" : `, ${endpoint.role} only`);
}
