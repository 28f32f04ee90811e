// What somebody does here: buttons with a verb, with a question first where something is taken away.

import { access, headers, message, notice } from "./link.js";
import { $, put, seen } from "./seen.js";
import { seconds, text, whole } from "./tables.js";

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
  "tenant-limit": async (key) => {
    const name = tenantOf(key);
    const told = await act("GET", `tenants/${encodeURIComponent(name)}`);
    if (!told) return;
    const now = told.limits.running?.value;
    const running = await ask(`How many requests of tenant ${text(name)} may run concurrently? A number, or none; empty: by the settings.`, now == null ? "" : String(now));
    if (running === null) return;
    if (running === "") await act("DELETE", `tenants/${encodeURIComponent(name)}/limit`);
    else await act("POST", `tenants/${encodeURIComponent(name)}/limit`, { running: running === "none" ? null : running });
  },
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
