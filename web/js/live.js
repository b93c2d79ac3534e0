// Live: what the engine does now. The feed is open only while this page is in sight.

import { events, request } from "./api.js";
import { h, setText } from "./dom.js";
import { expertView } from "./experts.js";
import { bytes, count, millis, number, percent, plural } from "./format.js";
import { guessView } from "./guesses.js";
import { plot } from "./plot.js";
import { queueView } from "./queues.js";
import { rankView } from "./ranks.js";
import { timeline } from "./timeline.js";

const keepSeconds = 300; // of history in the plots

export function live(section, about) {
  const state = h("p", { class: "state", role: "status" }, "connecting");
  const figures = {};
  const history = [];
  const figure = (name, label) =>
    h("div", { class: "figure" }, h("dt", {}, label), (figures[name] = h("dd", {}, "–")));
  // The way of a request through the engine.
  const stage = (title, what, ...parts) =>
    h(
      "li",
      { class: "card stage" },
      h("h2", {}, title),
      h("p", { class: "what" }, what),
      h("dl", {}, parts),
    );
  const ranks = rankView();
  const queues = queueView();
  const experts = expertView();
  const guesses = guessView();
  const happened = timeline();
  const plots = {
    tokens: plot({
      title: "Throughput",
      unit: "tokens/s, over two seconds",
      names: ["output", "prompt"],
      show: number,
      least: 10,
    }),
    requests: plot({
      title: "Requests",
      names: ["running", "waiting"],
      show: number,
      least: 4,
      whole: true,
    }),
    ttft: plot({
      title: "Time to first token",
      unit: "last minute",
      names: ["mean", "p50", "p95", "p99"],
      show: millis,
      least: 1,
    }),
    tpot: plot({
      title: "Time per output token",
      unit: "last minute",
      names: ["mean", "p50", "p95", "p99"],
      show: millis,
      least: 1,
    }),
    cache: plot({
      title: "KV blocks in use",
      unit: "%",
      names: ["in use", "prefix hits"],
      show: (v) => `${number(v)}`,
      max: 100,
    }),
    steps: plot({
      title: "Steps",
      unit: "mean time, over two seconds",
      names: ["step"],
      show: millis,
      least: 1,
    }),
  };
  section.append(
    h("h1", { class: "hidden" }, "Live"),
    state,
    h(
      "ol",
      { class: "flow", "aria-label": "The way of a request" },
      stage(
        "Requests",
        "wait for a place in a step",
        figure("waiting", "waiting"),
        figure("running", "running"),
      ),
      stage(
        "Scheduler",
        "fills each step, shares KV blocks",
        figure("blocks", "KV blocks"),
        figure("hits", "prefix hits"),
        figure("drafts", "drafts right"),
      ),
      stage(
        "Plans",
        "go to every rank through the queue",
        figure("flight", "in flight"),
        figure("step", "round trip"),
      ),
      stage(
        "Ranks",
        "compute; the output rank samples",
        figure("ranks", "moving"),
        figure("phase", "now"),
      ),
      stage(
        "Tokens",
        "stream back to clients",
        figure("output", "output/s"),
        figure("prompt", "prompt/s"),
      ),
    ),
    h(
      "div",
      { class: "beside" },
      h("section", { "aria-label": "Ranks" }, h("h2", {}, "Ranks"), queues.element, ranks.element),
      h("section", { "aria-label": "Events" }, h("h2", {}, "Events"), happened.element),
    ),
    experts.element,
    guesses.element,
    h("h2", {}, "The last minutes"),
    h(
      "div",
      { class: "plots" },
      Object.values(plots).map((p) => p.figure),
    ),
  );

  let info = null;
  let open = null; // the AbortController of the feed
  let drawn = 0;
  let failure = ""; // the last that was heard of a server that went away

  function show() {
    if (open) return;
    open = new AbortController();
    follow(open);
  }

  function hide() {
    open?.abort();
    open = null;
  }

  async function follow(controller) {
    for (let wait = 500; open === controller; wait = Math.min(wait * 2, 8000)) {
      let refused = "";
      try {
        const answer = await request("window/live", { signal: controller.signal });
        for await (const e of events(answer)) {
          wait = 500;
          if (e.event === "about") begin(JSON.parse(e.data));
          else if (e.event === "past") recall(JSON.parse(e.data) ?? []);
          else if (e.event === "sample") sample(JSON.parse(e.data));
          else if (e.event === "experts") experts.set(JSON.parse(e.data));
        }
      } catch (err) {
        if (controller.signal.aborted) return;
        refused = err.status ? err.message : "";
        if (err.status === 401) {
          // the key was not given: see below
          open = null;
          setState("lost", refused);
          return;
        }
      }
      if (controller.signal.aborted) return;
      setState(
        "lost",
        refused || (failure ? `${failure}. The server is gone` : "no connection, trying again"),
      );
      await new Promise((resolve) => setTimeout(resolve, wait));
    }
  }

  function begin(a) {
    info = a;
    happened.clear();
    ranks.begin(a.devices, a.first_engine);
    queues.begin(a.first_engine);
    experts.begin();
    guesses.begin();
  }

  // recall shows what was before the page was opened, or while the feed was closed.
  function recall(points) {
    const since = history.at(-1)?.at ?? 0;
    for (const s of points) if (s.at > since) keep(s);
    draw();
  }

  // keep adds to what the plots show.
  function keep(s) {
    const hits = s.prefix_queries ? (s.prefix_hits / s.prefix_queries) * 100 : null;
    history.push({ ...s, ranks: null, events: null, hits });
    while (history[0].at < s.at - keepSeconds * 1000) history.shift();
  }

  function setState(kind, text) {
    state.className = `state ${kind}`;
    setText(state, text);
  }

  function sample(s) {
    const stalled = s.ranks.filter((r) => r.stalled);
    failure = s.failure;
    // A stalled engine is not healthy either: which ranks stall says more.
    if (s.failure && !stalled.length) setState("failed", s.failure);
    else if (stalled.length) {
      const names = stalled.map((r) =>
        info.engines > 1 ? `${r.rank} of engine ${r.engine}` : r.rank,
      );
      setState(
        "stalled",
        `${plural(stalled.length, "rank")} stalled: ${names.join(", ")}`,
      );
    } else if (s.running + s.waiting > 0) setState("serving", "serving");
    else setState("idle", "ready, nothing to do");

    const hits = s.prefix_queries ? s.prefix_hits / s.prefix_queries : null;
    setText(figures.waiting, count(s.waiting));
    setText(figures.running, count(s.running));
    setText(figures.blocks, `${count(s.blocks_used)} / ${count(info.blocks * s.queues.length)}`);
    figures.blocks.title = `${percent(s.cache_usage)} of ${bytes(info.cache_bytes)} on each rank`;
    setText(figures.hits, hits === null ? "–" : percent(hits));
    setText(
      figures.drafts,
      s.draft_tokens ? percent(s.accepted_tokens / s.draft_tokens) : "–",
    );
    setText(figures.flight, count(s.in_flight));
    setText(figures.step, s.step_ms ? millis(s.step_ms) : "–");
    const busy = s.ranks.filter((r) => !/^(idle|unknown)/.test(r.phase)).length;
    setText(figures.ranks, `${busy} / ${s.ranks.length}`);
    setText(figures.phase, s.ranks[0]?.phase.split(/[ ,]/)[0] ?? "–");
    setText(figures.output, number(s.output_tokens_per_s));
    setText(figures.prompt, number(s.prompt_tokens_per_s));
    ranks.set(s.ranks, s.engines);
    queues.set(s.queues);
    happened.add(s.events);
    guesses.add(s.guesses);

    keep(s);
    if (s.at - drawn >= 1000) {
      drawn = s.at;
      draw();
    }
  }

  function draw() {
    const xs = history.map((s) => s.at / 1000);
    const each = (...of) => [xs, ...of.map((f) => history.map((s) => f(s) ?? null))];
    plots.tokens.set(
      each(
        (s) => s.output_tokens_per_s,
        (s) => s.prompt_tokens_per_s,
      ),
    );
    plots.requests.set(
      each(
        (s) => s.running,
        (s) => s.waiting,
      ),
    );
    plots.ttft.set(
      each(
        (s) => s.ttft?.mean,
        (s) => s.ttft?.p50,
        (s) => s.ttft?.p95,
        (s) => s.ttft?.p99,
      ),
    );
    plots.tpot.set(
      each(
        (s) => s.tpot?.mean,
        (s) => s.tpot?.p50,
        (s) => s.tpot?.p95,
        (s) => s.tpot?.p99,
      ),
    );
    plots.cache.set(
      each(
        (s) => s.cache_usage * 100,
        (s) => s.hits,
      ),
    );
    plots.steps.set(each((s) => s.step_ms || null));
  }

  about.catch(() => {}); // the feed says it too
  document.addEventListener("key", () => {
    if (!section.hidden) show();
  });
  return { show, hide };
}
