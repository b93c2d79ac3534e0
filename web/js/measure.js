// The form that measures this server, as `eagleray bench serve` does it. The server sends the
// requests to itself: a browser has six connections at most.

import { events, request } from "./api.js";
import { h, setText } from "./dom.js";
import { download } from "./download.js";

const fields = [
  { name: "num_prompts", label: "Requests", value: 100, max: 10000 },
  { name: "max_concurrency", label: "At once", value: 16, max: 1024 },
  { name: "random_input_len", label: "Prompt tokens", value: 64 },
  { name: "random_output_len", label: "Output tokens", value: 32 },
];

// measure makes the form, which is there once the server says that it can measure. found(raw) is
// given each result.
export function measure(about, found) {
  const inputs = fields.map((f) =>
    h("input", {
      type: "number",
      id: `measure-${f.name}`,
      min: "1",
      max: f.max?.toString(),
      step: "1",
      required: true,
      value: f.value.toString(),
    }),
  );
  const bar = h("progress", { "aria-label": "Requests answered", hidden: true });
  const said = h("p", { class: "hint", role: "status" });
  const start = h("button", { type: "submit", class: "primary" }, "Measure");
  const stop = h("button", { type: "button", hidden: true, onclick: () => open?.abort() }, "Stop");
  const save = h("button", { type: "button", hidden: true }, "Save the result");
  let open = null; // the AbortController of the measurement

  const form = h(
    "form",
    { class: "card measure", hidden: true, onsubmit: run },
    h("h2", {}, "Measure this server"),
    h(
      "p",
      {},
      "Random prompts, as ",
      h("code", {}, "eagleray bench serve"),
      " sends them; the server asks itself. Other requests are slower meanwhile.",
    ),
    h(
      "div",
      { class: "fields" },
      fields.map((f, i) =>
        h("div", { class: "field" }, h("label", { for: inputs[i].id }, f.label), inputs[i]),
      ),
    ),
    h("p", { class: "row" }, start, stop, save),
    bar,
    said,
  );
  about.then(
    (a) => {
      form.hidden = !a.measures;
      for (const i of inputs) if (!i.max) i.max = (a.max_model_len - 1).toString();
    },
    () => {}, // said at the top
  );

  function running(on) {
    start.disabled = on;
    stop.hidden = bar.hidden = !on;
    bar.removeAttribute("value");
    for (const i of inputs) i.disabled = on;
  }

  async function run(e) {
    e.preventDefault();
    const query = new URLSearchParams(fields.map((f, i) => [f.name, inputs[i].value]));
    open = new AbortController();
    running(true);
    said.className = "hint";
    setText(said, "starting");
    try {
      const answer = await request(`window/measure?${query}`, {
        method: "POST",
        signal: open.signal,
      });
      await follow(answer);
    } catch (err) {
      if (open.signal.aborted) setText(said, "stopped");
      else fail(err.message);
    } finally {
      running(false);
    }
  }

  async function follow(answer) {
    for await (const e of events(answer)) {
      const data = JSON.parse(e.data);
      if (e.event === "error") return fail(data.message);
      if (e.event === "result") {
        setText(said, "");
        save.hidden = false;
        save.onclick = () =>
          download(`eagleray-${data.date}.json`, "application/json", JSON.stringify(data, null, 2));
        return found(data);
      }
      bar.max = data.total;
      bar.value = data.done;
      setText(said, `${data.done} of ${data.total} requests`);
    }
    fail("The server ended before the measurement did.");
  }

  function fail(why) {
    said.className = "wrong";
    setText(said, why);
  }

  return form;
}
