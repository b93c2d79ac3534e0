// Chat: a conversation with the served model, its fields of sampling, and what each answer cost.

import { events, request } from "./api.js";
import { h, setText } from "./dom.js";
import { count, millis, number } from "./format.js";
import { copy, curl, python } from "./snippets.js";
import { tokenView } from "./tokens.js";

// Fields of a request, empty for the model's own default.
const fields = [
  { name: "temperature", label: "Temperature", min: 0, step: 0.1 },
  { name: "max_tokens", label: "Max tokens", min: 1, step: 1 },
  { name: "top_p", label: "Top p", min: 0, max: 1, step: 0.05 },
  { name: "top_k", label: "Top k", min: 0, step: 1 },
  { name: "min_p", label: "Min p", min: 0, max: 1, step: 0.05 },
  { name: "seed", label: "Seed", step: 1 },
  { name: "presence_penalty", label: "Presence penalty", min: -2, max: 2, step: 0.1 },
  { name: "frequency_penalty", label: "Frequency penalty", min: -2, max: 2, step: 0.1 },
  { name: "repetition_penalty", label: "Repetition penalty", min: 0, step: 0.05 },
];

export function chat(section, about) {
  const messages = []; // {role, content}, as the API has them, without the system prompt
  let running = null; // the AbortController of the answer under way
  let last = null; // the newest answer

  const inputs = {};
  const settings = h(
    "details",
    { class: "card settings" },
    h("summary", {}, "Settings"),
    h(
      "div",
      { class: "fields" },
      field("system", h("textarea", { rows: "3", placeholder: "none" }), "System prompt", "wide"),
      fields.map((f) =>
        field(
          f.name,
          h("input", {
            type: "number",
            inputmode: "decimal",
            placeholder: "default",
            min: f.min?.toString(),
            max: f.max?.toString(),
            step: f.step.toString(),
          }),
          f.label,
        ),
      ),
      field(
        "stop",
        h("textarea", { rows: "2", placeholder: "one on each line" }),
        "Stop strings",
        "wide",
      ),
      h(
        "label",
        { class: "check wide" },
        (inputs.colours = h("input", { type: "checkbox", id: "chat-colours" })),
        "Colour tokens by probability",
      ),
    ),
  );
  const log = h("div", { class: "log", role: "log", "aria-label": "Conversation", tabindex: "0" });
  const text = h("textarea", {
    id: "chat-text",
    rows: "2",
    placeholder: "Ask the model",
    "aria-describedby": "chat-hint",
    onkeydown: pressed,
  });
  const send = h("button", { type: "submit", class: "primary" }, "Send");
  const stop = h(
    "button",
    { type: "button", onclick: () => running?.abort(), hidden: true },
    "Stop",
  );
  const clear = h("button", { type: "button", onclick: reset }, "New chat");
  const form = h(
    "form",
    { class: "composer card", onsubmit: submitted },
    h("label", { for: "chat-text", class: "hidden" }, "Message"),
    text,
    h(
      "div",
      { class: "row" },
      h(
        "p",
        { class: "hint", id: "chat-hint" },
        "Enter sends, Shift+Enter starts a line, Esc stops",
      ),
      clear,
      stop,
      send,
    ),
  );
  section.append(settings, h("div", { class: "talk" }, log, form));
  const wide = matchMedia("(min-width: 60rem)");
  const fold = () => (settings.open = wide.matches);
  wide.addEventListener("change", fold);
  fold();
  addEventListener("keydown", (e) => {
    if (e.key === "Escape" && running) running.abort();
  });
  let info = { models: [], chat: true };
  about.then(
    (a) => {
      info = a;
      if (messages.length === 0) welcome();
    },
    () => {},
  );
  welcome();

  function field(name, input, label, kind = "") {
    input.id = `chat-${name}`;
    inputs[name] = input;
    return h("div", { class: `field ${kind}` }, h("label", { for: input.id }, label), input);
  }

  function welcome() {
    const model = info.models[0];
    const examples =
      model === "go-std-tiny"
        ? ["What does strings.Index do?", "What does os.Open do?", "What does sync.WaitGroup do?"]
        : ["Write a haiku about the sea.", "What is the capital of France?"];
    log.replaceChildren(
      h(
        "div",
        { class: "welcome" },
        h("h1", {}, model ? `Ask ${model}` : "Ask the model"),
        h(
          "p",
          {},
          info.chat
            ? "Each answer shows its time to first token and its tokens per second, " +
                "and can be copied as a request."
            : "This model has no chat template: what you write is completed as plain text.",
        ),
        h(
          "p",
          { class: "row examples" },
          examples.map((e) => h("button", { type: "button", onclick: () => ask(e) }, e)),
        ),
      ),
    );
  }

  function pressed(e) {
    if (e.key !== "Enter" || e.shiftKey || e.isComposing) return;
    e.preventDefault();
    form.requestSubmit();
  }

  function submitted(e) {
    e.preventDefault();
    const question = text.value.trim();
    if (running || question === "") return;
    text.value = "";
    ask(question);
  }

  function ask(question) {
    if (running) return;
    if (messages.length === 0) log.replaceChildren();
    messages.push({ role: "user", content: question });
    log.append(
      h(
        "article",
        { class: "message user" },
        h("h2", { class: "who" }, "You"),
        h("div", { class: "text" }, question),
      ),
    );
    answer();
  }

  function reset() {
    running?.abort();
    messages.length = 0;
    last = null;
    welcome();
    text.focus();
  }

  function regenerate() {
    if (running || !last) return;
    if (messages.at(-1)?.role === "assistant") messages.pop();
    last.remove();
    answer();
  }

  // body is the request for the next answer.
  function body() {
    const b = { model: info.models[0], stream: true, stream_options: { include_usage: true } };
    const system = inputs.system.value.trim();
    if (info.chat) {
      b.messages = system ? [{ role: "system", content: system }, ...messages] : [...messages];
    } else {
      b.prompt = (system ? [system] : []).concat(messages.map((m) => m.content)).join("\n");
    }
    for (const f of fields) {
      const v = inputs[f.name].value;
      if (v !== "") b[f.name] = Number(v);
    }
    const stops = inputs.stop.value.split("\n").filter((s) => s !== "");
    if (stops.length) b.stop = stops;
    if (inputs.colours.checked && info.chat) {
      b.logprobs = true;
      b.top_logprobs = Math.min(5, info.max_logprobs ?? 5);
    }
    return b;
  }

  async function answer() {
    const asked = body();
    const view = answerView(asked);
    if (last) last.querySelector(".again")?.remove();
    last = view.article;
    log.append(view.article);
    const abort = (running = new AbortController());
    busy(true);
    const cost = { began: performance.now(), first: 0, last: 0, pieces: 0 };
    let content = "",
      usage = null,
      finish = null;
    try {
      const path = info.chat ? "v1/chat/completions" : "v1/completions";
      const response = await request(path, { method: "POST", body: asked, signal: abort.signal });
      for await (const { data } of events(response)) {
        if (data === "[DONE]") break;
        const chunk = JSON.parse(data);
        if (chunk.error) throw new Error(chunk.error.message);
        usage = chunk.usage ?? usage;
        const choice = chunk.choices?.[0];
        if (!choice) continue;
        finish = choice.finish_reason ?? finish;
        const piece = choice.delta?.content ?? choice.text ?? "";
        const scored = choice.logprobs?.content ?? [];
        if (piece === "" && scored.length === 0) continue;
        cost.last = performance.now();
        cost.first ||= cost.last;
        cost.pieces += Math.max(scored.length, 1);
        content += piece;
        view.add(piece, scored);
        view.cost(cost, usage, null);
        follow();
      }
    } catch (err) {
      finish = abort.signal.aborted ? "stopped" : "error";
      if (!abort.signal.aborted) view.fail(err.message);
    }
    if (running === abort) {
      running = null;
      busy(false);
    }
    if (view.article.isConnected && content !== "") messages.push({ role: "assistant", content });
    view.end(content, cost, usage, finish);
    follow();
  }

  function busy(on) {
    stop.hidden = !on;
    send.hidden = on;
    log.setAttribute("aria-busy", String(on));
  }

  // follow keeps the end in sight, unless the reader has scrolled away from it.
  function follow() {
    if (log.scrollHeight - log.scrollTop - log.clientHeight < 160) log.scrollTop = log.scrollHeight;
  }

  function answerView(asked) {
    const words = h("div", { class: "text" });
    const note = h("p", { class: "cost" }, "waiting for the first token");
    const tools = h("p", { class: "row tools", hidden: true });
    const tokens = asked.logprobs ? tokenView(words) : null;
    const article = h(
      "article",
      { class: "message answer" },
      h("h2", { class: "who" }, asked.model ?? "Model"),
      words,
      note,
      tools,
    );
    return {
      article,
      add: (piece, scored) => (tokens ? tokens.add(scored) : words.append(piece)),
      cost: (c, usage, finish) => setText(note, costText(c, usage, finish)),
      fail: (message) =>
        article.insertBefore(h("p", { class: "wrong", role: "alert" }, message), note),
      end(content, c, usage, finish) {
        tokens?.end(content);
        setText(note, costText(c, usage, finish));
        const tool = (label, what) =>
          h("button", { type: "button", onclick: (e) => copy(e.target, what()) }, label);
        tools.append(
          h("button", { type: "button", class: "again", onclick: regenerate }, "Regenerate"),
          tool("Copy", () => content),
          tool("Copy as curl", () => curl(asked)),
          tool("Copy as Python", () => python(asked)),
        );
        tools.hidden = false;
      },
    };
  }

  return { show: () => text.focus({ preventScroll: true }) };
}

// costText is what an answer took: tokens, tokens per second after the first, time to the first.
function costText(c, usage, finish) {
  if (c.first === 0) return finish ? `no token · ${finish}` : "waiting for the first token";
  const n = usage?.completion_tokens ?? c.pieces;
  const parts = [`${count(n)} ${n === 1 ? "token" : "tokens"}`];
  const seconds = (c.last - c.first) / 1000;
  if (n > 1 && seconds > 0) parts.push(`${number((n - 1) / seconds)} tokens/s`);
  parts.push(`TTFT ${millis(c.first - c.began)}`);
  if (usage) parts.push(`prompt ${count(usage.prompt_tokens)}`);
  if (finish) parts.push(finish);
  return parts.join(" · ");
}
