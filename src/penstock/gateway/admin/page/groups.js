// Requests by tenant and cause: one row for all that share both, which opens into its requests. The numbers of waiting
// and running requests are exact if the tenant's listed requests have one cause; else a group counts what is listed.

import { $, matches, seen } from "./seen.js";

const opened = new Set();
const causeOf = (r) => r.cause ?? r.reason ?? r.endpoint ?? "";

export function grouped(state, rows) {
  const groups = new Map();
  for (const row of rows) {
    const key = `${row.band} ${row.tenant}\n${causeOf(row)}\n${row.state}`;
    let group = groups.get(key);
    if (!group) groups.set(key, (group = { ...row, group: key, state: row.state, rows: [], waited_s: 0, age_s: 0, prompt_tokens: 0, output_tokens: 0, requeues: 0 }));
    group.rows.push(row);
    for (const most of ["waited_s", "age_s"]) group[most] = Math.max(group[most], row[most]);
    for (const sum of ["prompt_tokens", "output_tokens", "requeues"]) group[sum] += row[sum];
  }
  const list = [...groups.values()];
  for (const group of list) {
    const same = list.filter((other) => other.tenant === group.tenant && other.band === group.band);
    const tenant = seen.frame.tenants.find((t) => t.tenant === group.tenant && t.band === group.band);
    const exact = state === "waiting" && same.length === 1 ? tenant?.waiting : null;
    group.count = Math.max(exact ?? 0, group.rows.length);
    if (state === "waiting" && same.length === 1 && tenant) group.waited_s = Math.max(group.waited_s, tenant.oldest_wait_s);
    if (group.count > group.rows.length) group.prompt_tokens = group.output_tokens = null; // sums of some would mislead
    group.open = opened.has(group.group);
  }
  return list.flatMap((group) => (group.rows.length === 1 && group.count === 1 ? group.rows : group.open ? [group, ...group.rows] : [group]));
}

export const matching = (rows) => rows.filter((r) => matches(r.id, r.tenant, r.model, r.band, r.cause, r.reason, r.endpoint));

export function toggle(key) {
  if (!opened.delete(key)) opened.add(key);
  if (opened.size > 200) opened.clear();
}

export function openGroups(show) {
  $("listed").addEventListener("click", (event) => {
    const button = event.target.closest("button[data-group]");
    if (!button) return;
    toggle(button.dataset.group);
    show();
  });
}
