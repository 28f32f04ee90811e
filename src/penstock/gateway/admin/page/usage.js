// Who used what in the last 24 hours and by month: a section of its own, which asks the ledger twice a minute. Hidden
// without a ledger, of which each frame tells.

import { headers } from "./link.js";
import { Table, count, money, seconds, text } from "./tables.js";

const EVERY_MS = 30_000;
const section = document.createElement("section");
section.id = "usage";
section.hidden = true;
const heading = document.createElement("h2");
heading.textContent = "Used";
const about = document.createElement("span");
about.className = "dim";
about.textContent = "last 24 hours by the hour, most tokens first; more: penstock usage";
section.append(heading, " ", about);
document.querySelector("main").append(section);

const estimated = {
  title: "estimated", num: true, low: true, value: (u) => count(u.estimated_tokens), hint: "tokens that no engine reported, as those of answers that broke off",
};
const table = new Table(section, [
  { title: "tenant", name: true, tenant: true, value: (u) => text(u.tenant) },
  { title: "model", name: true, value: (u) => text(u.model || "none") },
  { title: "requests", num: true, value: (u) => count(u.requests) },
  { title: "not answered", num: true, low: true, value: (u) => count(u.requests - u.answered), hint: "refused, failed or hung up" },
  { title: "prompt", num: true, value: (u) => count(u.prompt_tokens), hint: "tokens, as engines reported" },
  { title: "of these cached", num: true, low: true, value: (u) => count(u.cached_tokens) },
  { title: "completion", num: true, value: (u) => count(u.completion_tokens), hint: "tokens, as engines reported" },
  estimated,
  { title: "at engines", num: true, low: true, value: (u) => seconds(u.lease_s) },
  { title: "in the queue", num: true, low: true, value: (u) => seconds(u.wait_s) },
  { title: "cost", num: true, value: (u) => money(u.cost), hint: "at usage.prices" },
], { key: (u) => `${u.tenant}\n${u.model}`, limit: 12, empty: "Nothing was used." });

const byMonth = document.createElement("h3");
byMonth.textContent = "By month";
section.append(byMonth);
const months = new Table(section, [
  { title: "month", name: true, value: (u) => text(u.month) },
  { title: "tenant", name: true, value: (u) => text(u.tenant) },
  { title: "requests", num: true, value: (u) => count(u.requests) },
  { title: "prompt", num: true, value: (u) => count(u.prompt_tokens), hint: "tokens, as engines reported" },
  { title: "of these cached", num: true, low: true, value: (u) => count(u.cached_tokens) },
  { title: "completion", num: true, value: (u) => count(u.completion_tokens), hint: "tokens, as engines reported" },
  estimated,
  { title: "cost", num: true, value: (u) => money(u.cost), hint: "at usage.prices" },
], { key: (u) => `${u.month}\n${u.tenant}`, limit: 12, empty: "Nothing was used." });

let asked = -EVERY_MS;

// `kept`: whether there is a ledger.
export async function showUsage(kept) {
  if (!kept) section.hidden = true;
  if (!kept || document.hidden || performance.now() - asked < EVERY_MS) return;
  asked = performance.now();
  try {
    const [day, year] = await Promise.all(["from=24h&by=tenant,model", "by=month,tenant"].map(
      (query) => fetch(`usage?${query}`, { headers: headers(), cache: "no-store" })));
    section.hidden = !day.ok;
    if (day.ok) table.update((await day.json()).rows);
    if (year.ok) months.update((await year.json()).rows.sort((a, b) => (a.month < b.month ? 1 : a.month > b.month ? -1 : 0)));
  } catch { /* the pill in the header says that the gateway is away */ }
}
