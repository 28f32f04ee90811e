// A tenant has one colour everywhere on the page: in its bar, over time, and before its name in every table. The name always
// stands beside it. Six tenants have one, those with bars or curves; where it is free a name always gets the same one, so that
// two screens agree.

export const SHADES = 6; // --t0 … --t5 in page.css, then grey
export const REST = "";
const shades = new Map(); // by tenant: kept for as long as it is among the first ones

const start = (name) => [...name].reduce((sum, letter) => (sum * 31 + letter.codePointAt(0)) % 9973, 0) % SHADES;

// Of a tenant that is drawn: it gets one that is free.
export function shade(name) {
  if (name === REST) return SHADES;
  if (!shades.has(name)) {
    const taken = new Set(shades.values());
    const free = [...Array(SHADES).keys()].map((step) => (start(name) + step) % SHADES).find((number) => !taken.has(number));
    if (free === undefined) return SHADES;
    shades.set(name, free);
  }
  return shades.get(name);
}

// Of a tenant that is named; "": it has none.
export const shadeOf = (name) => String(shades.get(name) ?? "");

// Colours of tenants that neither the bars nor the samples have are free again.
export function forget(names) {
  for (const name of [...shades.keys()]) if (!names.has(name)) shades.delete(name);
}
