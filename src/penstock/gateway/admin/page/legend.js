// Meanings of the page's words: as titles under the pointer, and all together behind one button.

export const MEANS = {
  "waiting here": "queued requests, not yet sent to an engine, and their bound, queue.max_requests",
  "waiting inside engines": "requests queued inside the engines, as they report; Penstock cannot reorder them, so it should be a few per engine",
  running: "requests at an engine until the end of the answer; the dashed line: slots",
  "slots taken": "a slot is room for one request at an engine: how many Penstock sends it at a time",
  "oldest wait": "the wait of the oldest queued request",
  "first token, streams of all": "from the whole request to the first byte of its answer, of the streams of the last ten seconds: half took at most p50, 99 of 100 at most p99 (dashed)",
  "first token of a tenant": "the same of its streams that ended in the last minute. The number above is the worst of tenants within their share: one over it has requests waiting although it got its fair part, and waits by its own doing",
  "sent to engines / s": "requests that left the queue for an engine",
  "tokens / s": "tokens of prompts and answers, over the last ten seconds. Of answers that stream they count as they come, in steps of some dozens; of others when they end",
  "fullest KV memory": "of the engine with the fullest KV cache, as it reports",
  "went wrong / s": "shown once something did. Refused on arrival: a full queue, a limit, a wrong key. Evicted from the queue: timed out, past the deadline, or displaced by a higher band. Broken: the engine cut the answer off. Failed: sent and not answered. Retried: sent again, callers only notice a longer wait",
  "last minute": "requests that ended in the last minute: all, and those without an answer",
  "share of tokens": "of all tokens (by price) of the last minute",
  "guaranteed": "the least share of a band with work (min_share). Without one a lower band waits until higher ones have nothing to send, by design",
  "went wrong": "requests refused, evicted, broken or failed in the last minute; the table also has retried ones",
};

// All of them, in the order in which they stand on the page.
export function legend(parent) {
  const list = parent.appendChild(document.createElement("dl"));
  for (const [word, means] of Object.entries(MEANS)) {
    const pair = list.appendChild(document.createElement("div"));
    pair.append(document.createElement("dt"), document.createElement("dd"));
    pair.firstChild.textContent = word;
    pair.lastChild.textContent = means;
  }
}
