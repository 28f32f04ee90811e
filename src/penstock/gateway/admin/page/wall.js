// Does what is shown still hold? A clock, the age of the last frame, and the state `lost` if none comes any more: a page that
// cannot hear the gateway says so in red, and since when. And what only a screen on a wall has: endpoints as tiles.

import { $, put, seen } from "./seen.js";
import { seconds, text } from "./tables.js";
import { stateOf, toneOf } from "./words.js";

const LOST_MS = 5000; // five frames: more than a busy machine or a reconnect takes
const TILES_MAX = 24;
const opened = performance.now();
let heard = null; // when the last frame came, and by which clock on the wall
let spoken = false;

const time = (at) => at.toLocaleTimeString("en-GB");
export const isWall = () => document.body.classList.contains("wall");

// A frame came.
export function heardOf() {
  heard = { ms: performance.now(), at: new Date() };
  document.body.classList.remove("lost");
  spoken = false;
  tick();
}

function tick() {
  const now = new Date();
  put($("clock"), time(now));
  const age = (performance.now() - (heard?.ms ?? opened)) / 1000;
  put($("age"), heard ? `as of ${age < 1.5 ? "now" : `${seconds(Math.floor(age))} ago`}` : "");
  if (document.body.classList.contains("locked") || age * 1000 < LOST_MS) return;
  document.body.classList.add("lost");
  const since = heard ? `since ${time(heard.at)}` : "yet";
  put($("verdict"), "Is something wrong? Nobody knows.");
  put($("tone"), "■ lost");
  $("tone").className = "bad";
  put($("lead"), `No word from the gateway ${since}.`);
  put($("rest"), heard ? ` What stands below is ${seconds(Math.floor(age))} old.` : "");
  $("advice").said = null;
  put($("advice"), "→ See whether it runs (penstock status on its machine, its log), and whether this screen reaches it.");
  document.title = "lost – Penstock";
  if (!spoken) put($("spoken"), `No word from the gateway ${since}.`);
  spoken = true;
}

setInterval(tick, 1000);
put($("site"), location.host);

export function showTiles() {
  if (!isWall()) return;
  const list = $("tiles").querySelector("ul");
  const { endpoints, endpoints_more: more } = seen.frame;
  const shown = endpoints.slice(0, TILES_MAX);
  const rest = endpoints.length - shown.length + more;
  while (list.children.length < shown.length + (rest ? 1 : 0)) {
    const tile = list.appendChild(document.createElement("li"));
    for (const name of ["name", "state", "slots", "bar"]) tile.appendChild(document.createElement("span")).className = name;
    tile.lastChild.append(document.createElement("i"));
  }
  while (list.children.length > shown.length + (rest ? 1 : 0)) list.lastChild.remove();
  shown.forEach((endpoint, at) => {
    const tile = list.children[at];
    const [name, state, slots, bar] = tile.children;
    tile.className = toneOf(endpoint.state);
    put(name, text(endpoint.name, 40));
    put(state, stateOf(endpoint));
    put(slots, `${endpoint.leases} / ${endpoint.slots}`);
    const part = `${Math.min(100, Math.round((100 * endpoint.leases) / (endpoint.slots || 1)))}%`;
    if (bar.style.getPropertyValue("--part") !== part) bar.style.setProperty("--part", part);
  });
  if (rest) {
    const tile = list.lastChild;
    tile.className = "";
    [...tile.children].forEach((node, at) => put(node, at ? "" : `and ${rest} more`));
  }
}
