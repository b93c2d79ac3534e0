// The load of experts: a strip for each layer, an expert the darker the more tokens it was sent.

import { h, setText } from "./dom.js";
import { number, percent } from "./format.js";

export function expertView() {
  const list = h("ul", {});
  const element = h(
    "section",
    { class: "experts", "aria-label": "Experts", hidden: true },
    h("h2", {}, "Experts"),
    h("p", { class: "what" }, "tokens of each expert in the last minutes, layer by layer"),
    list,
  );
  let strips = [];

  function strip(layer) {
    const canvas = h("canvas", { role: "img", height: 1 });
    const text = h("span", { class: "what" });
    const element = h("li", {}, h("span", {}, `layer ${layer.layer}`), canvas, text);
    return {
      element,
      set(l) {
        const heat = Uint8Array.from(atob(l.heat), (c) => c.charCodeAt(0));
        const says =
          `balancedness ${number(l.balancedness)}, ` +
          `expert ${l.hottest} has ${percent(l.share)}`;
        setText(text, says);
        canvas.setAttribute("aria-label", `Load of ${heat.length} experts: ${says}`);
        canvas.width = heat.length; // which clears it
        const paint = canvas.getContext("2d");
        paint.fillStyle = getComputedStyle(canvas).color;
        heat.forEach((v, expert) => {
          paint.globalAlpha = v / 255;
          paint.fillRect(expert, 0, 1, 1);
        });
      },
    };
  }

  return {
    element,
    begin() {
      element.hidden = true;
      strips = [];
      list.replaceChildren();
    },
    set(layers) {
      if (layers.length !== strips.length) {
        strips = layers.map(strip);
        list.replaceChildren(...strips.map((s) => s.element));
      }
      layers.forEach((l, i) => strips[i].set(l));
      element.hidden = !layers.length;
    },
  };
}
