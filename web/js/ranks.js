// Ranks as boxes, by node.

import { h, setText } from "./dom.js";
import { bytes, count, millis, number } from "./format.js";

export function rankView() {
  const element = h("div", { class: "nodes" });
  let devices = [];
  let boxes = [];
  let shape = "";

  function build(ranks) {
    const nodes = Map.groupBy ? Map.groupBy(ranks, (r) => r.node) : group(ranks);
    boxes = [];
    element.replaceChildren(...[...nodes].map(([node, list]) =>
      h("section", { class: "node", "aria-label": `Node ${node || "this host"}` },
        h("h3", {}, node || "this host"),
        h("ul", {}, list.map((r) => (boxes[r.rank] = box(r)).element)))));
  }

  function box(r) {
    const d = devices.find((d) => d.rank === r.rank);
    const phase = h("p", { class: "phase" });
    const parts = {};
    const part = (name, label) => [h("dt", {}, label), (parts[name] = h("dd", {}))];
    const element = h("li", { class: "card rank" },
      h("h4", {}, `rank ${r.rank}`), phase,
      h("dl", {}, part("pid", "pid"), part("process", "process"), part("step", "step"), part("depth", "queue depth"),
        r.link ? [part("trip", "round trip"), part("link", "sent, received")] : null,
        part("device", "device"), part("threads", "threads"), part("weights", "weights")));
    setText(parts.device, d?.kind ?? "–");
    setText(parts.threads, d ? count(d.threads) : "–");
    setText(parts.weights, d ? bytes(d.weight_bytes) : "–");
    return {
      element,
      set(r) {
        element.dataset.phase = r.stalled ? "stalled" : r.phase.split(/[ ,]/)[0];
        setText(phase, r.stalled ? `stalled ${number(Math.round(r.still_seconds))} s in ${r.phase}` : r.phase + (r.call ? ` ${r.call}` : ""));
        setText(parts.pid, String(r.pid));
        setText(parts.process, r.process || "–");
        setText(parts.step, count(r.step));
        setText(parts.depth, count(r.depth));
        if (!r.link || !parts.trip) return;
        setText(parts.trip, millis(r.link.round_trip_ms));
        setText(parts.link, `${bytes(r.link.sent_bytes)}, ${bytes(r.link.received_bytes)}` +
          (r.link.resumes ? `, ${r.link.resumes} resumed` : ""));
      },
    };
  }

  return {
    element,
    begin: (list) => {
      devices = list;
      shape = "";
    },
    set(ranks) {
      const now = ranks.map((r) => `${r.rank} ${r.node} ${Boolean(r.link)}`).join("\n");
      if (now !== shape) build(ranks);
      shape = now;
      for (const r of ranks) boxes[r.rank].set(r);
    },
  };
}

// group is Map.groupBy for browsers from before 2024.
function group(ranks) {
  const nodes = new Map();
  for (const r of ranks) nodes.set(r.node, [...(nodes.get(r.node) ?? []), r]);
  return nodes;
}
