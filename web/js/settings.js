// The settings of a chat: the model, the fields of sampling, tools. They are those of the next
// request, whatever the conversation.

import { h } from "./dom.js";

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

const toolsExample = '[{"type": "function", "function": {"name": …, "parameters": …}}]';

// settings makes the panel: {element, model, system(), params(chat, most)}.
export function settings() {
  const inputs = {};
  const field = (name, input, label, kind = "") => {
    input.id = `chat-${name}`;
    inputs[name] = input;
    return h("div", { class: `field ${kind}` }, h("label", { for: input.id }, label), input);
  };
  const element = h(
    "details",
    { class: "settings", open: true },
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
      field(
        "tools",
        h("textarea", { rows: "2", placeholder: toolsExample, spellcheck: "false" }),
        "Tools, as JSON",
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
  const model = h("select", { id: "chat-model" });

  return {
    element,
    model,
    // choose fills the list of models; the one that was chosen stays.
    choose(names) {
      const was = model.value;
      model.replaceChildren(...names.map((n) => h("option", { value: n }, n)));
      if (names.includes(was)) model.value = was;
    },
    system: () => inputs.system.value.trim(),
    // params are the members of a request beside what is said. They throw what is wrong with them.
    params(chat, most) {
      const p = {};
      if (model.value) p.model = model.value;
      for (const f of fields) {
        const v = inputs[f.name].value;
        if (v !== "") p[f.name] = Number(v);
      }
      const stops = inputs.stop.value.split("\n").filter((s) => s !== "");
      if (stops.length) p.stop = stops;
      if (!chat) return p;
      if (inputs.tools.value.trim()) p.tools = toolsOf(inputs.tools.value);
      if (inputs.colours.checked) {
        p.logprobs = true;
        p.top_logprobs = Math.min(5, most ?? 5);
      }
      return p;
    },
  };
}

function toolsOf(text) {
  try {
    const list = JSON.parse(text);
    if (Array.isArray(list)) return list;
  } catch {
    // Said below.
  }
  throw new Error("Tools are not a list in JSON: correct or clear them in the settings.");
}
