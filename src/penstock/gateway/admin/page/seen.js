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

// What stands between backticks is what somebody types.
export function coded(node, value) {
  if (node.said === value) return;
  node.said = value;
  node.replaceChildren(...value.split("`").map((part, at) => {
    if (at % 2 === 0) return part;
    const code = document.createElement("code");
    code.textContent = part;
    return code;
  }));
}
