// Agents' sessions: who holds the engines' KV memory, and who waits for it. The sums come with each frame, the sessions are
// asked for every few seconds. Hidden while there are none.

import { act, ask } from "./acts.js";
import { headers } from "./link.js";
import { $, matches, put, seen } from "./seen.js";
import { shadeOf } from "./shades.js";
import { Table, count, percent, seconds, text } from "./tables.js";

const EVERY_MS = 5_000;
const NAMED_MAX = 3; // tenants beside a bar
const section = $("sessions");
let asked = -EVERY_MS;
let rows = [];
let more = 0;

function state(s) {
  if (s.stopped) return "◆ paused by an operator";
  return s.state === "waiting" ? `▲ waiting for ${seconds(s.waits_s)}, expected ${seconds(s.expected_s)}` : s.state;
}

function verbs(s) {
  const pauses = s.stopped ? ["session-resume", "Resume"] : ["session-pause", "Pause…"];
  return s.state === "waiting" && !s.stopped ? [["session-prefer", "Let in next"], pauses] : [pauses];
}

const table = new Table(section, [
  { title: "session", value: (s) => text(s.session, 40), name: true },
  { title: "tenant", value: (s) => text(s.tenant, 40), name: true, tenant: true },
  { title: "state", value: state, by: (s) => s.waits_s ?? -1, tone: (s) => (s.stopped ? "hand" : s.state === "waiting" ? "busy" : "") },
  { title: "at", hint: "or where it was last", value: (s) => text(s.endpoint ?? (s.origin ? `last at ${s.origin}` : ""), 40), name: true, low: true },
  { title: "turns", value: (s) => count(s.turns), num: true, by: (s) => s.turns },
  { title: "tokens", hint: "its context, and those of its sub-agents under way", value: (s) => count(s.tokens), num: true, by: (s) => s.tokens },
  { title: "", verbs },
], { key: (s) => `${s.tenant}\n${s.session}`, limit: 8, empty: "None." });

function bar() {
  const item = document.createElement("li");
  for (const name of ["name", "bar", "said"]) item.appendChild(document.createElement("span")).className = name;
  item.children[0].dir = "auto";
  return item;
}

// An endpoint's memory, a piece for each tenant.
function fill(item, m) {
  const [name, pieces, said] = item.children;
  const held = Object.entries(m.tenants).sort((one, other) => other[1] - one[1]);
  put(name, text(m.endpoint, 60));
  while (pieces.children.length < held.length) pieces.append(document.createElement("i"));
  while (pieces.children.length > held.length) pieces.lastChild.remove();
  held.forEach(([tenant, tokens], at) => {
    const piece = pieces.children[at];
    const title = `${text(tenant, 60)}: ${count(tokens)} tokens`;
    if (piece.title !== title) piece.title = title;
    piece.dataset.shade = shadeOf(text(tenant, 60));
    piece.style.setProperty("--part", `${(100 * tokens) / Math.max(m.usable_tokens, m.held_tokens, 1)}%`);
  });
  const whose = held.slice(0, NAMED_MAX).map(([tenant, tokens]) => `${text(tenant, 20)} ${percent(tokens / (m.held_tokens || 1))}`);
  put(said, [`${count(m.held_tokens)} of ${count(m.usable_tokens)} tokens, ${m.sessions} session${m.sessions === 1 ? "" : "s"}`, ...whose].join(" · "));
}

export async function showSessions(all) {
  section.hidden = !all;
  if (!all) return;
  const price = all.waiting ? ` · the bound of ${seconds(all.wait_s)} on waits costs ${percent(all.price)} of prefill` : "";
  put($("sessions-said"), `${count(all.resident)} hold KV memory, of them ${count(all.idle)} idle · ${count(all.waiting)} wait${price}`);
  const list = $("memory");
  const shown = all.memory.filter((m) => matches(m.endpoint));
  while (list.children.length < shown.length) list.append(bar());
  while (list.children.length > shown.length) list.lastChild.remove();
  shown.forEach((m, at) => fill(list.children[at], m));
  if (!document.hidden && performance.now() - asked >= EVERY_MS) await look();
  table.update(rows.filter((s) => matches(s.session, s.tenant, s.state, s.endpoint)), seen.filter ? 0 : more);
}

async function look() {
  asked = performance.now();
  const answer = await fetch("sessions", { headers: headers(), cache: "no-store" }).catch(() => null);
  if (!answer?.ok) return; // the pill in the header says that the gateway is away
  const told = await answer.json();
  rows = told.sessions;
  more = Math.max(0, told.sums.resident + told.sums.waiting - rows.length);
}

async function change(key, verb, question) {
  const [tenant, name] = key.split("\n");
  if (question && !(await ask(`${question} session ${text(name)} of tenant ${text(tenant)}? A turn under way ends; then its turns wait, and its memory is others'.`))) return;
  await act("POST", `sessions/${encodeURIComponent(tenant)}/${encodeURIComponent(name)}/${verb}`);
  asked = -EVERY_MS;
}

export const SESSION_VERBS = {
  "session-pause": (key) => change(key, "pause", "Pause"),
  "session-resume": (key) => change(key, "resume"),
  "session-prefer": (key) => change(key, "prefer"),
};
