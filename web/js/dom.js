// Elements without HTML strings: text is always text.

// h makes an element. Properties that begin with "on" are listeners, "class" and "data" are what
// they are in HTML; children are nodes, strings, lists of them, or nothing.
export function h(tag, props = {}, ...children) {
  const e = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) e.addEventListener(name.slice(2), value);
    else if (name === "data") Object.assign(e.dataset, value);
    else if (name in e && name !== "list" && typeof value !== "string") e[name] = value;
    else e.setAttribute(name, value);
  }
  e.append(...children.flat(2).filter((c) => c !== undefined && c !== null && c !== false));
  return e;
}

// setText changes a text only if it differs, so that nothing is laid out again for nothing.
export function setText(e, text) {
  if (e.textContent !== text) e.textContent = text;
}
