// Keys: who has which, and issuing, limiting and revoking one. A section for those who may change something; it is asked for
// twice a minute and after each change. A key itself is only in the answer that issues it.

import { act, ask, fill, showOnce } from "./acts.js";
import { headers } from "./link.js";
import { $, matches, seen } from "./seen.js";
import { Table, count, text } from "./tables.js";
import { LIMITS, limited, limitFields } from "./words.js";

const EVERY_MS = 30_000;
const section = $("keys");
const MARKS = { good: "", expired: "▲ expired", "without tenant": "▲ its tenant is not in the settings" };
const until = (k) => (k.expires_at ? new Date(k.expires_at * 1000).toISOString().slice(0, 16).replace("T", " ") + " UTC" : "");
let asked = -EVERY_MS;
let rows = [];
let issues = false; // whether keys are issued here

const table = new Table(section, [
  { title: "key", name: true, value: (k) => text(k.name, 40) },
  { title: "tenant", name: true, tenant: true, value: (k) => text(k.tenant, 40) },
  { title: "from", value: (k) => (k.source === "file" ? "settings" : "issued here") },
  { title: "state", value: (k) => MARKS[k.state] ?? k.state, tone: (k) => (k.state === "good" ? "" : "busy") },
  { title: "models", name: true, value: (k) => text(k.models.join(" ") || "all", 80) },
  { title: "longest prompt", num: true, low: true, value: (k) => (k.max_prompt_tokens == null ? "" : count(k.max_prompt_tokens)) },
  { title: "longest answer", num: true, low: true, value: (k) => (k.max_output_tokens == null ? "" : count(k.max_output_tokens)) },
  { title: "its own limits", wide: true, value: (k) => limited(k.limits) },
  { title: "until", value: until },
  { title: "", verbs: (k) => (k.source === "file" ? [] : [["key-limit", "Limit…"], ["key-revoke", "Revoke…"]]) },
], { key: (k) => k.name, limit: 12, empty: "There are no keys." });

export async function showKeys(again = false) {
  const may = document.body.classList.contains("writes");
  section.hidden = !may || !(rows.length || issues);
  if (section.hidden === false) table.update(rows.filter((k) => matches(k.name, k.tenant)));
  if (!may || document.hidden || (!again && performance.now() - asked < EVERY_MS)) return;
  asked = performance.now();
  const answer = await fetch("keys", { headers: headers(), cache: "no-store" }).catch(() => null);
  if (!answer?.ok) return; // the pill in the header says that the gateway is away
  const told = await answer.json();
  ({ keys: rows, makes_keys: issues } = told);
  section.hidden = !(rows.length || issues);
  $("key-new").disabled = !issues;
  $("key-new").title = issues ? "" : "Needs identity.made_keys and a store";
  table.update(rows.filter((k) => matches(k.name, k.tenant)), told.more);
}

const NUMBERS = ["max_prompt_tokens", "max_output_tokens"];

export async function issue(tenant = "") {
  const said = await fill("Issue a key", "It is shown once; only its hash is kept. Fields that stay empty bound nothing.", [
    { name: "tenant", label: "tenant", value: tenant, needed: true, choices: seen.frame.configured.map((t) => t.tenant) },
    { name: "name", label: "name of the key", hint: "ci", needed: true },
    { name: "models", label: "models", hint: "all; otherwise names, with * as wildcard", choices: seen.frame.models.map((m) => m.name) },
    { name: "max_prompt_tokens", label: "longest prompt, in tokens" },
    { name: "max_output_tokens", label: "longest answer, in tokens" },
    { name: "expires", label: "good until", hint: "90d, or 2027-01-31" },
    ...limitFields({}),
  ], { yes: "Issue…" });
  if (!said) return;
  const limits = Object.fromEntries(LIMITS.map(([name]) => [name, said[name]]).filter(([, most]) => most));
  const body = { tenant: said.tenant, name: said.name };
  if (said.models) body.models = said.models.split(/[\s,]+/).filter(Boolean);
  for (const name of [...NUMBERS, "expires"]) if (said[name]) body[name] = said[name];
  if (Object.keys(limits).length) body.limits = limits;
  const bounds = [body.models && `models ${body.models.join(" ")}`, body.max_prompt_tokens && `prompts of ${body.max_prompt_tokens} tokens`,
    body.max_output_tokens && `answers of ${body.max_output_tokens} tokens`, body.limits && limited(limits), body.expires && `until ${body.expires}`];
  const may = bounds.filter(Boolean).join(", ") || "all that the tenant may";
  if (!(await ask(`Issue the key ${text(said.name)} for tenant ${text(said.tenant)}? It may: ${text(may, 300)}.`))) return;
  const made = await act("POST", "keys", body);
  if (!made) return;
  showKeys(true);
  await showOnce(`The key ${text(made.name)} of tenant ${text(made.tenant)} works now. It is not shown again.`, made.key);
}

export async function limitKey(name) {
  const key = rows.find((k) => k.name === name);
  if (!key) return;
  const said = await fill(`Limits of the key ${text(name)}`, `Of its own, within those of tenant ${text(key.tenant)}. An empty field: no such limit.`, limitFields(key.limits), { yes: "Set…" });
  if (!said) return;
  const changed = LIMITS.map(([limit]) => limit).filter((limit) => said[limit] !== String(key.limits[limit] ?? ""));
  if (!changed.length) return;
  const changes = changed.map((limit) => `${limit} ${key.limits[limit] ?? "none"} → ${said[limit] || "none"}`).join(", ");
  if (!(await ask(`Limit the key ${text(name)} of tenant ${text(key.tenant)}: ${text(changes, 300)}?`))) return;
  await act("POST", `keys/${encodeURIComponent(name)}/limit`, Object.fromEntries(changed.map((limit) => [limit, said[limit] || null])));
  showKeys(true);
}

export async function revoke(name) {
  const tenant = rows.find((k) => k.name === name)?.tenant ?? "";
  if (!(await ask(`Revoke the key ${text(name)} of tenant ${text(tenant)}? Its next request gets 401; requests under way go on.`))) return;
  await act("DELETE", `keys/${encodeURIComponent(name)}`);
  showKeys(true);
}
