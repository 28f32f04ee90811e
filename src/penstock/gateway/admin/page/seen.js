// What all parts of the page know: the last frame, and what somebody looks for in it.

export const seen = {
  frame: null,
  filter: "",
  tab: null, // of the requests: null, the first that has some
  eldest: null, // of the requests that wait, the one that has waited longest
};

export const $ = (id) => document.getElementById(id);

export const put = (node, value) => { if (node.textContent !== value) node.textContent = value; };

export const matches = (...fields) => !seen.filter || fields.some((field) => String(field ?? "").toLowerCase().includes(seen.filter));
