// What an operator's act is made of: a form, a question before it, the call, and what came of it.

import { access, headers, message, notice } from "./link.js";
import { $, put } from "./seen.js";

export async function act(method, path, body) {
  const answer = await fetch(path, { method, headers: headers({ "content-type": "application/json" }), body: body && JSON.stringify(body) }).catch(() => null);
  const said = answer === null ? "Penstock could not be reached." : answer.ok ? "" : await message(answer);
  notice(said);
  if (said) $("notice").scrollIntoView({ block: "nearest" });
  if (answer?.status === 401) {
    access(true);
    $("token").focus();
  }
  return answer?.ok ? answer.json() : null;
}

function shown(dialog, done) {
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.onclose = () => resolve(done(dialog.returnValue));
    dialog.returnValue = "no";
  });
}

export function ask(question, value) {
  const input = $("ask-value");
  put($("ask-text"), question);
  input.hidden = value === undefined;
  input.value = value ?? "";
  put($("ask-yes"), value === undefined ? "Yes" : "Set");
  return shown($("ask"), (said) => (said !== "yes" ? null : value === undefined ? true : input.value.trim()));
}

// A field: {name, label, value, hint, choices, type, needed}. Returns what stands in the fields, by name; "reset" if that was
// chosen; null if nothing was.
export function fill(title, about, fields, { yes, reset }) {
  put($("form-title"), title);
  put($("form-about"), about);
  put($("form-yes"), yes);
  put($("form-reset"), reset ?? "");
  $("form-reset").hidden = !reset;
  $("form-fields").replaceChildren(...fields.map(({ name, label, value = "", hint = "", choices, type = "text", needed }) => {
    const line = document.createElement("label");
    const input = document.createElement("input");
    input.name = name;
    input.type = type;
    input.required = Boolean(needed);
    input.autocomplete = "off";
    if (type === "checkbox") input.checked = Boolean(value);
    else input.value = value;
    if (hint) input.placeholder = hint;
    line.append(label, input);
    if (choices) {
      const list = line.appendChild(document.createElement("datalist"));
      list.id = `choices-${name}`;
      list.append(...choices.map((choice) => new Option(choice)));
      input.setAttribute("list", list.id);
    }
    return line;
  }));
  return shown($("form"), (said) => {
    if (said !== "yes") return said === "reset" ? said : null;
    const inputs = [...$("form-fields").querySelectorAll("input")];
    return Object.fromEntries(inputs.map((input) => [input.name, input.type === "checkbox" ? input.checked : input.value.trim()]));
  });
}

// A secret that is shown once: it leaves the page when the dialog is closed.
export async function showOnce(about, secret) {
  put($("once-about"), about);
  put($("once-key"), secret);
  put($("once-copy"), "Copy");
  await shown($("once"), () => null);
  put($("once-key"), "");
}

$("once-copy").addEventListener("click", async () => {
  getSelection().selectAllChildren($("once-key")); // a page without TLS has no clipboard of its own
  const copied = await navigator.clipboard?.writeText($("once-key").textContent).then(() => true, () => false);
  put($("once-copy"), copied ? "Copied" : "Selected: Ctrl-C");
});
$("form-cancel").addEventListener("click", () => $("form").close("no"));
$("form-reset").addEventListener("click", () => $("form").close("reset"));
