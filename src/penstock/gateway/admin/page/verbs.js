// What somebody does here: buttons with a verb, with a question first where something is taken away.

import { act, ask, fill } from "./acts.js";
import { issue, limitKey, revoke } from "./keys.js";
import { $, seen } from "./seen.js";
import { SESSION_VERBS } from "./sessions.js";
import { text } from "./tables.js";
import { explain, tryAs } from "./try.js";
import { LIMITS, limitFields } from "./words.js";

const tenantOf = (key) => key.slice(key.indexOf(" ") + 1); // a band's name has no space

// A tenant's weight and limits, beside those of the settings.
async function steer(name) {
  const path = `tenants/${encodeURIComponent(name)}`;
  const now = await act("GET", path);
  if (!now) return;
  const values = Object.fromEntries(Object.entries(now.limits).map(([limit, its]) => [limit, its.value ?? ""]));
  const settings = (limit) => { const its = now.limits[limit]; return its?.by === "operator" ? `no limit (settings: ${its.settings ?? "none"})` : "no limit"; };
  const said = await fill(`Weight and limits of tenant ${text(name)}`, "They hold beside the settings until they are taken back; a restart ends them. An empty field: no such limit.", [
    { name: "weight", label: "weight, relative to other tenants", value: now.weight ?? "", hint: "1" },
    ...limitFields(values, settings),
    { name: "until_reload", label: "only until the next reload", type: "checkbox" },
  ], { yes: "Set…", reset: "As in the settings…" });
  if (!said) return;
  if (said === "reset") {
    if (!(await ask(`Take back all that operators set for tenant ${text(name)}? Its weight and limits are those of the settings again.`))) return;
    for (const what of ["limit", "weight"]) if (!(await act("DELETE", `${path}/${what}`))) return;
    return;
  }
  const { until_reload } = said;
  const limits = LIMITS.map(([limit]) => limit).filter((limit) => said[limit] !== String(values[limit] ?? ""));
  const weighs = said.weight && said.weight !== String(now.weight ?? "");
  if (!limits.length && !weighs) return;
  const changes = [...(weighs ? [`weight ${now.weight ?? 1} → ${said.weight}`] : []), ...limits.map((limit) => `${limit} ${values[limit] || "none"} → ${said[limit] || "none"}`)];
  if (!(await ask(`Set for tenant ${text(name)}: ${text(changes.join(", "), 300)}${until_reload ? ", until the next reload" : ""}?`))) return;
  if (weighs && !(await act("POST", `${path}/weight`, { weight: said.weight, until_reload }))) return;
  if (limits.length) await act("POST", `${path}/limit`, { ...Object.fromEntries(limits.map((limit) => [limit, said[limit] || null])), until_reload });
}

const VERBS = {
  ...SESSION_VERBS,
  explain: (id) => explain(id),
  bump: (id) => act("POST", `requests/${encodeURIComponent(id)}/bump`),
  cancel: async (id) => (await ask(`Cancel request ${text(id)}?`)) && act("POST", `requests/${encodeURIComponent(id)}/cancel`),
  pause: async () => (await ask("Pause everything? Nothing more is sent; new requests queue.")) && act("POST", "pause", {}),
  drain: async () => (await ask("Drain everything? New requests are refused; queued ones are served.")) && act("POST", "drain", {}),
  resume: () => act("POST", "resume", {}),
  reload: async () => (await ask("Read the settings again? Invalid ones change nothing.")) && act("POST", "reload", {}),
  "model-pause": async (model) => (await ask(`Pause ${text(model)}?`)) && act("POST", "pause", { model }),
  "model-drain": async (model) => (await ask(`Drain ${text(model)}? New requests for it are refused.`)) && act("POST", "drain", { model }),
  "model-resume": (model) => act("POST", "resume", { model }),
  "tenant-pause": async (key) => {
    const name = tenantOf(key);
    if (await ask(`Pause tenant ${text(name)}? No more of its requests are sent; new ones queue, running ones go on.`)) await act("POST", `tenants/${encodeURIComponent(name)}/pause`, {});
  },
  "tenant-resume": (key) => act("POST", `tenants/${encodeURIComponent(tenantOf(key))}/resume`, {}),
  "tenant-steer": (key) => steer(tenantOf(key)),
  "tenant-try": (key) => tryAs(tenantOf(key)),
  "tenant-key": (key) => issue(tenantOf(key)),
  try: () => tryAs(),
  "key-new": () => issue(),
  "key-limit": limitKey,
  "key-revoke": revoke,
  "tenant-cancel": async (key) => {
    const name = tenantOf(key);
    if (!(await ask(`Cancel all waiting requests of tenant ${text(name)}? Their callers are refused; running ones go on.`))) return;
    let left = 1;
    while (left > 0) left = (await act("POST", `tenants/${encodeURIComponent(name)}/cancel`, {}))?.left ?? 0;
  },
  "endpoint-drain": async (name) => (await ask(`Drain ${text(name)}? It gets no new requests; running ones end.`)) && act("POST", `endpoints/${encodeURIComponent(name)}/drain`),
  "endpoint-resume": (name) => act("POST", `endpoints/${encodeURIComponent(name)}/resume`),
  "endpoint-remove": async (name) => (await ask(`Remove ${text(name)}? Running requests may end.`)) && act("DELETE", `endpoints/${encodeURIComponent(name)}`),
  "endpoint-slots": async (name) => {
    const now = seen.frame.endpoints.find((e) => e.name === name);
    const slots = await ask(`Slots of ${text(name)} (a number, or auto)`, now ? String(now.slots_auto ? "auto" : now.slots) : "");
    if (slots) await act("POST", `endpoints/${encodeURIComponent(name)}/slots`, { slots: slots === "auto" ? slots : Number(slots) });
  },
};

// --- the menu of a row: everything that changes something -------------------------------------------------------------

const menu = $("menu");
let opener = null;

function open(button) {
  opener = button;
  const { key } = button.closest("tr").dataset;
  menu.replaceChildren(...JSON.parse(button.dataset.menu).map(([verb, label]) => {
    const item = document.createElement("button");
    item.dataset.verb = verb;
    item.dataset.key = key;
    item.setAttribute("role", "menuitem");
    item.textContent = label;
    return item;
  }));
  menu.setAttribute("aria-label", button.getAttribute("aria-label"));
  menu.showPopover();
  const box = button.getBoundingClientRect();
  menu.style.top = `${Math.min(box.bottom, innerHeight - menu.offsetHeight - 4)}px`;
  menu.style.left = `${Math.max(4, Math.min(box.left, innerWidth - menu.offsetWidth - 4))}px`;
  menu.firstChild.focus();
}

menu.addEventListener("keydown", (event) => {
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (!step) return;
  event.preventDefault();
  const items = [...menu.children];
  items[(items.indexOf(document.activeElement) + step + items.length) % items.length].focus();
});
menu.addEventListener("toggle", (event) => { if (event.newState === "closed") opener?.focus(); });

document.addEventListener("click", (event) => {
  const more = event.target.closest("button[data-menu]");
  if (more) open(more);
  const button = event.target.closest("button[data-verb]");
  if (!button) return;
  if (button.closest("[popover]")) button.closest("[popover]").hidePopover();
  VERBS[button.dataset.verb](button.dataset.key ?? button.closest("tr")?.dataset.key);
});
$("find").addEventListener("submit", (event) => {
  event.preventDefault();
  if ($("find-id").value.trim()) explain($("find-id").value.trim());
});
$("add").addEventListener("submit", async (event) => {
  event.preventDefault();
  if (await act("POST", "endpoints", { url: $("add-url").value.trim() })) $("add-url").value = "";
});
