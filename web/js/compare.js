// Results of benchmarks side by side: a table, and the percentiles of each latency.

import { h } from "./dom.js";
import { millis, number } from "./format.js";
import { lines, plot } from "./plot.js";
import { describe, distributions, rows } from "./results.js";

// nines spreads the tail: 0, 50, 90, 99 and 99.9 are at even distances.
const nines = (p) => -Math.log10(1 - Math.min(p, 99.99) / 100);
const marks = [0, 50, 90, 99, 99.9];
const markAt = new Map(marks.map((p) => [nines(p), p]));

// compare shows results in an element. remove(i), if given, is called to take one away.
export function compare(element, results, remove) {
  element.replaceChildren();
  if (results.length === 0) return;
  const plots = h("div", { class: "plots" });
  element.append(
    legend(results, remove),
    h("h2", {}, "Percentiles"),
    plots,
    h("h2", {}, "Figures"),
    table(results),
  );
  for (const { title, curves } of distributions(results)) {
    const ps = [...new Set(curves.flat().map(([p]) => p))].sort((a, b) => a - b);
    const p = plot({
      title,
      names: results.map((r) => r.name),
      show: millis,
      points: true,
      height: 220,
      splits: [...markAt.keys()].slice(1),
      range: [0, nines(99.9) * 1.02],
      xName: "percentile",
      label: (x) =>
        x === 0
          ? "min"
          : `p${markAt.get(x) ?? number(Math.round((100 - 100 * 10 ** -x) * 100) / 100)}`,
    });
    plots.append(p.figure);
    p.set([
      ps.map(nines),
      ...curves.map((c) => {
        const at = new Map(c);
        return ps.map((x) => at.get(x) ?? null);
      }),
    ]);
  }
  if (plots.children.length === 0)
    plots.append(h("p", { class: "hint" }, "These results have no percentiles."));
}

function legend(results, remove) {
  return h(
    "ul",
    { class: "files" },
    results.map((r, i) => {
      const mark = h("span", { class: "mark", "aria-hidden": "true" });
      mark.style.setProperty("--mark", `var(${lines[i % lines.length]})`);
      return h(
        "li",
        { class: "card" },
        mark,
        h("div", {}, h("b", {}, r.name), h("p", { class: "hint" }, describe(r))),
        remove &&
          h(
            "button",
            { type: "button", "aria-label": `Remove ${r.name}`, onclick: () => remove(i) },
            "Remove",
          ),
      );
    }),
  );
}

// table has a row for each figure and a column for each result. The best value is bold; the others
// are compared with the first column.
function table(results) {
  const head = h(
    "tr",
    {},
    h("th", { scope: "col" }, "Figure"),
    results.map((r) => h("th", { scope: "col" }, r.name)),
  );
  const body = rows(results).map(({ label, values, show, better }) => {
    const numbers = values.filter((v) => v !== null);
    const most = Math.max(...numbers.map(Math.abs));
    const best =
      better === 0 || numbers.length < 2
        ? null
        : better > 0
          ? Math.max(...numbers)
          : Math.min(...numbers);
    return h(
      "tr",
      {},
      h("th", { scope: "row" }, label),
      values.map((v, i) => {
        if (v === null) return h("td", {}, "–");
        const ratio = i > 0 && values[0] ? v / values[0] : null;
        const bar = h("span", { class: "bar", "aria-hidden": "true" });
        bar.style.setProperty("--share", most ? `${(Math.abs(v) / most) * 100}%` : "0");
        bar.style.setProperty("--mark", `var(${lines[i % lines.length]})`);
        return h(
          "td",
          {},
          h("span", { class: v === best ? "best" : "" }, show(v)),
          ratio === null ? null : h("span", { class: "ratio" }, ` × ${ratio.toFixed(2)}`),
          bar,
        );
      }),
    );
  });
  const element = h(
    "div",
    { class: "wide-table card", tabindex: "0", role: "region", "aria-label": "Figures" },
    h(
      "table",
      {},
      h(
        "caption",
        {},
        "Bars compare the values of a row; bold is the best; × is against the first file.",
      ),
      h("thead", {}, head),
      h("tbody", {}, body),
    ),
  );
  element.style.setProperty("--columns", String(results.length));
  return element;
}
