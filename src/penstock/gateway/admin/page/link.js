// The connection: frames of /admin/events, again and again, with the token that somebody typed in. The token goes in the
// Authorization header only, so that no other site's page can act here.

import { $, coded, put, seen } from "./seen.js";

// A link for a wall has a token that only reads, behind the `#`: it goes to no server, log or other site. The browser keeps
// it, so that a screen that starts again needs nobody, and the address shows it no more.
const WALL = "penstock-wall-token";

export function takeToken() {
  const given = /^#wall=(.+)$/.exec(location.hash);
  if (!given) return;
  localStorage.setItem(WALL, decodeURIComponent(given[1]));
  history.replaceState(null, "", "#wall");
  token = sessionStorage.getItem("penstock-token") || localStorage.getItem(WALL);
  stop.abort();
}

let token = sessionStorage.getItem("penstock-token") || localStorage.getItem(WALL) || "";
let told = null;

export function headers(more = {}) {
  return token ? { ...more, authorization: `Bearer ${token}` } : more;
}

// Without a token set the gateway shows itself to this machine, on loopback; to change something takes its own token.
// Buttons that change something are there only for those who may (`body.writes`).
export function access(asked) {
  $("login").hidden = !asked;
  $("open").hidden = Boolean(token) || document.body.classList.contains("locked");
}

// Who may not look is told so, and shown nothing else, also nothing of what was shown before.
function lock() {
  seen.frame = null;
  put($("lead"), "…");
  put($("rest"), "");
  put($("who"), "");
  document.body.classList.remove("writes");
  document.body.classList.add("locked");
}

function linked(on, label) {
  put($("link"), label);
  $("link").className = on ? "pill" : "pill off";
  document.body.classList.toggle("stale", !on && seen.frame !== null);
}

export function notice(message) {
  coded($("notice"), message);
  $("notice").hidden = !message;
}

export async function message(answer) {
  try { return (await answer.json()).error.message; } catch { return `answered ${answer.status}`; }
}

async function listen() {
  const allowed = await fetch("access", { headers: headers(), cache: "no-store", signal: stop.signal });
  const { writes = false, name = "" } = allowed.ok ? await allowed.json() : {};
  const answer = await fetch("events", { headers: headers(), cache: "no-store", signal: stop.signal });
  if (!answer.ok) {
    const said = await message(answer);
    const error = new Error(said);
    error.denied = [401, 403].includes(answer.status);
    throw error;
  }
  const history = await fetch("history", { headers: headers(), cache: "no-store" });
  if (history.ok) {
    const past = await history.json();
    loads = (at) => told.curves(past, at);
  }
  linked(true, "live");
  document.body.classList.toggle("writes", writes);
  put($("who"), name ? `as ${name}` : "");
  $("door").hidden = true;
  document.body.classList.remove("locked");
  access(!writes);
  notice("");
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    rest += value;
    const frames = rest.split("\n\n");
    rest = frames.pop();
    const last = frames.map((frame) => frame.split("\n").find((line) => line.startsWith("data: "))).filter(Boolean).pop();
    if (last) take(JSON.parse(last.slice(6)));
  }
}

let loads = null; // the curves' past, with the first frame, which has the gateway's clock
let stop = new AbortController();

function take(frame) {
  seen.frame = frame;
  if (loads) { loads(frame.at); loads = null; }
  told.frame(frame);
}

const pause = (ms) => new Promise((resolve) => {
  const timer = setTimeout(resolve, ms);
  stop.signal.addEventListener("abort", () => { clearTimeout(timer); resolve(); }, { once: true });
});

// Listens for as long as the page is open. `frame` is called with each frame, `curves` with what was before the first.
export async function listenForever(frame, curves) {
  told = { frame, curves };
  $("token").value = token;
  let wait = 500;
  for (;;) {
    try {
      await listen();
      wait = 500;
      linked(false, "reconnecting");
    } catch (error) {
      if (error.denied) {
        lock();
        linked(false, "no access");
        access(true);
        $("door").hidden = false;
        notice(error.message);
        wait = 5000;
      } else if (error.name !== "AbortError") {
        linked(false, "reconnecting");
        wait = Math.min(wait * 1.5, 5000);
      }
    }
    await pause(wait);
    if (stop.signal.aborted) { stop = new AbortController(); wait = 500; }
  }
}

$("login").addEventListener("submit", (event) => event.preventDefault());
$("token").addEventListener("change", () => {
  token = $("token").value.trim();
  sessionStorage.setItem("penstock-token", token);
  stop.abort();
});
