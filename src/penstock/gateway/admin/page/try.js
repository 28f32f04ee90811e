// Whose request went where? The last thousand requests by words, one request's story, and a test request as a tenant.

import { act, ask, fill } from "./acts.js";
import { $, put, seen } from "./seen.js";
import { count, seconds, text } from "./tables.js";

// `told`: {explanation, story}, and of a test request its id, status and text.
function tell(title, told, first = []) {
  put($("explain-title"), title);
  $("explain-story").replaceChildren(...[...first, ...told.story].map((line) => {
    const item = document.createElement("li");
    item.textContent = text(line, 2000);
    return item;
  }));
  const waits = told.explanation?.waits ?? [];
  const waited = waits.reduce((sum, part) => sum + part.seconds, 0) || 1;
  $("explain-bars").replaceChildren(...waits.map((part) => {
    const bar = document.createElement("div");
    bar.textContent = `${part.cause} ${seconds(part.seconds)}`;
    bar.style.setProperty("--part", `${Math.round((100 * part.seconds) / waited)}%`);
    return bar;
  }));
  $("explain-again").dataset.key = told.explanation?.id ?? "";
  $("explain-again").hidden = !told.explanation || told.explanation.ended_s != null;
  if (!$("explain").open) $("explain").showModal();
}

export async function explain(id) {
  const told = await act("GET", `requests/${encodeURIComponent(id)}`);
  if (told) tell(`Request ${text(id, 140)}`, told);
}

export async function tryAs(tenant = "") {
  const { configured, tenants, models } = seen.frame;
  const names = [...new Set([...configured.map((t) => t.tenant), ...tenants.map((t) => t.tenant)])];
  const said = await fill("Send a test request", "A short chat request, by the limits, weight and default band of the tenant. Its use is the tenant's.", [
    { name: "tenant", label: "as tenant", value: tenant, needed: true, choices: names },
    { name: "model", label: "model", value: models.length === 1 ? models[0].name : "", needed: true, choices: models.map((m) => m.name) },
    { name: "prompt", label: "prompt", value: "Say hello." },
    { name: "max_tokens", label: "longest answer, in tokens", value: "16", type: "number" },
  ], { yes: "Send…" });
  if (!said || !(await ask(`Send a test request to ${text(said.model)} as tenant ${text(said.tenant)}? It counts as one of theirs.`))) return;
  put($("explain-title"), "Under way…");
  $("explain-again").hidden = true;
  for (const part of ["explain-story", "explain-bars"]) $(part).replaceChildren();
  $("explain").showModal();
  const told = await act("POST", "try", { ...said, prompt: said.prompt || undefined, max_tokens: Number(said.max_tokens) || undefined });
  if (!told) { $("explain").close(); return; }
  const first = told.status === null ? "Not answered yet: this is the story so far."
    : told.status < 400 ? `Answered with ${told.status}: “${told.text.trim()}”` : `Refused with ${told.status} (${told.reason ?? "by the engine"}): ${told.text}`;
  tell(`Test request ${text(told.id)} as tenant ${text(told.tenant)}`, told, [first]);
}

// --- the search ------------------------------------------------------------------------------------------------------

export const found = { rows: null, note: "" }; // rows: null, nothing was searched

export function search(show) {
  $("search").addEventListener("submit", async (event) => {
    event.preventDefault();
    const words = $("search-words").value.trim();
    const told = await act("GET", `requests?find=${encodeURIComponent(words)}`);
    if (!told) return;
    found.rows = told.requests;
    found.total = told.found;
    found.note = `${count(told.found)} of ${count(told.searched)} requests at ${new Date().toLocaleTimeString("en-GB")}, newest first${told.found > told.requests.length ? `; ${told.requests.length} shown: add a word` : ""}.`;
    seen.tab = "found";
    show();
  });
}
