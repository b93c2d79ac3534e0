// The events of the engine as a time line, the newest first.

import { h } from "./dom.js";
import { clock } from "./format.js";

const keep = 300;

export function timeline() {
  const list = h("ol", {
    class: "timeline card",
    tabindex: "0",
    "aria-label": "Events, the newest first",
  });
  const none = h("li", { class: "hint" }, "nothing has happened yet");
  const shown = new Map(); // by id: an event that comes again takes the place of the first
  list.append(none);

  return {
    element: list,
    clear() {
      shown.clear();
      list.replaceChildren(none);
    },
    add(events) {
      for (const e of events ?? []) {
        none.remove();
        const item = h(
          "li",
          { class: e.level.toLowerCase() },
          h("time", { datetime: new Date(e.at).toISOString() }, clock(e.at)),
          h("span", {}, h("b", {}, e.message), e.detail ? ` ${e.detail}` : ""),
        );
        if (shown.has(e.id)) shown.get(e.id).replaceWith(item);
        else list.prepend(item);
        shown.set(e.id, item);
      }
      while (shown.size > keep) {
        const [id, item] = shown.entries().next().value;
        item.remove();
        shown.delete(id);
      }
    },
  };
}
