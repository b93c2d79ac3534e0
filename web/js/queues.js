// The requests of each engine, or of each place of one that has several, where there are several.

import { h, setText } from "./dom.js";
import { count, percent } from "./format.js";

const columns = ["engine", "running", "waiting", "KV blocks"];

export function queueView() {
  const rows = h("tbody", {});
  let first = 0; // the number of the first engine
  const element = h(
    "table",
    { class: "queues", hidden: true },
    h("thead", {}, h("tr", {}, columns.map((name) => h("th", { scope: "col" }, name)))),
    rows,
  );
  return {
    element,
    begin: (number) => (first = number),
    set(queues) {
      element.hidden = queues.length < 2;
      if (rows.children.length !== queues.length)
        rows.replaceChildren(
          ...queues.map((_, i) =>
            h(
              "tr",
              {},
              h("th", { scope: "row" }, count(first + i)),
              columns.slice(1).map(() => h("td", {})),
            ),
          ),
        );
      queues.forEach((q, i) => {
        const cells = rows.children[i].children;
        setText(cells[1], count(q.running));
        setText(cells[2], count(q.waiting));
        setText(cells[3], percent(q.cache_usage));
      });
    },
  };
}
