// Ranks as boxes, by engine and node.

import { h, setText } from "./dom.js";
import { bytes, count, millis, number } from "./format.js";

export function rankView() {
  const element = h("div", { class: "nodes" });
  let devices = [];
  let first = 0; // the number of the first engine
  let boxes = [];
  let headings = []; // those of each engine
  let shape = "";

  function build(ranks, engines) {
    const places = new Map();
    for (const r of ranks) {
      const key = `${r.engine} ${r.node}`;
      places.set(key, [...(places.get(key) ?? []), r]);
    }
    boxes = [];
    headings = engines.map(() => []);
    element.replaceChildren(
      ...[...places.values()].map((list) => {
        const { engine, node } = list[0];
        const heading = h("h3", {});
        heading.dataset.place = node || "this host";
        headings[engine - first]?.push(heading);
        const ul = h(
          "ul",
          {},
          list.map((r) => (boxes[ranks.indexOf(r)] = box(r)).element),
        );
        const kind = engines.length > 1 ? `Engine ${engine}, node` : "Node";
        return h(
          "section",
          {
            class: "node",
            "aria-label": `${kind} ${node || "this host"}`,
          },
          heading,
          ul,
        );
      }),
    );
  }

  function box(r) {
    const d = devices.find((d) => d.engine === r.engine && d.rank === r.rank);
    const phase = h("p", { class: "phase" });
    const parts = {};
    const part = (name, label) => [h("dt", {}, label), (parts[name] = h("dd", {}))];
    const element = h(
      "li",
      { class: "card rank" },
      h("h4", {}, `rank ${r.rank}`),
      phase,
      h(
        "dl",
        {},
        part("pid", "pid"),
        part("process", "process"),
        part("step", "step"),
        part("depth", "queue depth"),
        part("cpus", "CPU"),
        part("memory", "memory"),
        r.link ? [part("trip", "round trip"), part("link", "sent, received")] : null,
        part("device", "device"),
        part("threads", "threads"),
        part("weights", "weights"),
      ),
    );
    setText(parts.device, d?.kind ?? "–");
    setText(parts.threads, d ? count(d.threads) : "–");
    setText(parts.weights, d ? bytes(d.weight_bytes) : "–");
    return {
      element,
      set(r) {
        element.dataset.phase = r.stalled ? "stalled" : r.phase.split(/[ ,]/)[0];
        setText(
          phase,
          r.stalled
            ? `stalled ${number(Math.round(r.still_seconds))} s in ${r.phase}`
            : r.phase + (r.call ? ` ${r.call}` : ""),
        );
        setText(parts.pid, String(r.pid));
        setText(parts.process, r.process || "–");
        setText(parts.step, count(r.step));
        setText(parts.depth, count(r.depth));
        setText(parts.cpus, r.memory_bytes ? `${number(r.cpus)} cores` : "–");
        setText(parts.memory, r.memory_bytes ? bytes(r.memory_bytes) : "–");
        if (!r.link || !parts.trip) return;
        setText(parts.trip, millis(r.link.round_trip_ms));
        setText(
          parts.link,
          `${bytes(r.link.sent_bytes)}, ${bytes(r.link.received_bytes)}` +
            (r.link.resumes ? `, ${r.link.resumes} resumed` : ""),
        );
      },
    };
  }

  return {
    element,
    begin: (list, number) => {
      devices = list;
      first = number;
      shape = "";
    },
    // engines says of each why it does not serve, "" for those that do.
    set(ranks, engines) {
      const now = ranks.map((r) => `${r.engine} ${r.rank} ${r.node} ${Boolean(r.link)}`).join("\n");
      if (now !== shape) build(ranks, engines);
      shape = now;
      engines.forEach((why, i) =>
        headings[i].forEach((at) => {
          at.className = why ? "failed" : "";
          setText(
            at,
            engines.length > 1
              ? `engine ${first + i}, ${at.dataset.place}${why ? `: ${why}` : ""}`
              : at.dataset.place,
          );
        }),
      );
      ranks.forEach((r, i) => boxes[i].set(r));
    },
  };
}
