// What was guessed of the requests that ended last: a bar for each step, drafts that were right
// below, those that were wrong above.

import { h } from "./dom.js";
import { clock, percent, plural } from "./format.js";

const keep = 12;

export function guessView() {
  const list = h("ul", {});
  const right = h("span", { class: "right" }, "right");
  const wrong = h("span", { class: "wrong" }, "wrong");
  const element = h(
    "section",
    { class: "guesses", "aria-label": "Guessed tokens", hidden: true },
    h("h2", {}, "Guessed tokens"),
    h(
      "p",
      { class: "what" },
      "of the requests that ended last, step by step: ",
      right,
      " and ",
      wrong,
    ),
    list,
  );

  function row(g) {
    const pairs = Uint8Array.from(atob(g.steps), (c) => c.charCodeAt(0));
    const steps = [];
    for (let i = 0; i < pairs.length; i += 2) {
      const right = Math.min(pairs[i], Math.max(0, pairs[i + 1] - 1));
      steps.push({ right, wrong: pairs[i] - right });
    }
    const sum = (of) => steps.reduce((n, s) => n + of(s), 0);
    const taken = sum((s) => s.right);
    const drafts = taken + sum((s) => s.wrong);
    const says =
      `${plural(g.tokens, "token")}, ${plural(steps.length, "step")}, ` +
      `${taken} of ${plural(drafts, "draft")} right (${percent(taken / drafts)})`;
    const high = Math.max(1, ...steps.map((s) => s.right + s.wrong));
    const canvas = h("canvas", {
      role: "img",
      width: 4 * steps.length,
      height: 4 * high,
      "aria-label": `Guesses of a request: ${says}`,
    });
    const item = h(
      "li",
      {},
      h("time", { datetime: new Date(g.at).toISOString() }, clock(g.at)),
      canvas,
      h("span", { class: "what" }, says),
    );
    return {
      item,
      draw() {
        const paint = canvas.getContext("2d");
        const bars = (of, colour) => {
          paint.fillStyle = colour;
          steps.forEach((s, i) => {
            const [from, n] = of(s);
            paint.fillRect(4 * i, 4 * (high - from - n), 3, 4 * n);
          });
        };
        bars((s) => [0, s.right], getComputedStyle(right).color);
        bars((s) => [s.right, s.wrong], getComputedStyle(wrong).color);
      },
    };
  }

  return {
    element,
    begin() {
      element.hidden = true;
      list.replaceChildren();
    },
    add(guesses) {
      for (const g of guesses ?? []) {
        const shown = row(g);
        list.prepend(shown.item);
        element.hidden = false;
        shown.draw();
      }
      while (list.children.length > keep) list.lastChild.remove();
    },
  };
}
