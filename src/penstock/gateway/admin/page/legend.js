// What the words on the page mean: as a title under the pointer, and all of them together behind one button.

export const MEANS = {
  waiting: "requests that are here and were not yet sent to an engine, and how many may be: queue.max_requests",
  running: "requests that were sent to an engine and whose answers are not over; the dashed line: slots",
  "slots taken": "a slot is room for one request at an engine: how many Penstock sends it at a time",
  "oldest wait": "how long the request has waited that has waited longest",
  "first token": "from the whole request to the first byte of its answer, of the streams of the last ten seconds: half took at most p50, 99 of 100 at most p99 (dashed)",
  "sent to engines / s": "requests that left the queue for an engine",
  "tokens / s": "tokens of prompts and answers, over the last ten seconds. Of answers that stream they count as they come, in steps of some dozens; of others when they end",
  "fullest KV memory": "of the engine whose memory for running requests (the KV cache) is fullest, as it says itself",
  "refused / s": "turned away as they came: a full queue, a limit, a wrong key",
  "evicted / s": "taken out of the queue without having been sent: they waited too long, past their deadline, or were displaced by a higher band",
  "broken streams / s": "answers that had begun and were cut off by the engine",
  "failed / s": "sent to an engine, which gave no answer",
  "retried / s": "failed at an engine and sent once more: callers notice only a longer wait",
  "last minute": "requests that ended in the last minute, answered or not, and what became of the others",
  "share of tokens": "of the tokens (by price) that all got over the last minute",
  "guaranteed": "the least share of a band while it has work (min_share). Without one a lower band waits until higher ones have nothing left to send: that is by design",
  "went wrong": "requests that were refused, evicted, broken or failed in the last minute, whoever caused it; in the table also those that were retried",
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
