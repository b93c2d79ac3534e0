// One message of a conversation as it is shown.

import { costText } from "./answer.js";
import { codeBlock, markdownView } from "./markdown.js";
import { h, setText } from "./dom.js";
import { plural } from "./format.js";
import { copy, curl, python } from "./snippets.js";
import { tokenView } from "./tokens.js";

const button = (label, onclick, props = {}) =>
  h("button", { type: "button", onclick, ...props }, label);

// userView is what was asked. at has edit(node, text), branch(node) and turn(node, by).
export function userView(node, at) {
  const words = h("div", { class: "text", dir: "auto" }, node.content);
  const tools = h("p", { class: "row tools" });
  const turns = turner(node, at);
  const article = h(
    "article",
    { class: "message user" },
    h("h2", { class: "who" }, "You"),
    words,
    tools,
  );
  const copied = button("Copy", (e) => copy(e.target, node.content));
  tools.append(turns.element, button("Edit", edit), copied);

  function edit() {
    const text = h("textarea", { rows: "3", dir: "auto", "aria-label": "Edit your message" });
    text.value = node.content;
    const end = () => {
      form.replaceWith(words);
      tools.hidden = false;
    };
    const send = () => {
      if (!text.value.trim()) return;
      end();
      at.edit(node, text.value.trim());
    };
    const form = h(
      "div",
      { class: "edit" },
      text,
      h("p", { class: "row" }, button("Send", send, { class: "primary" }), button("Cancel", end)),
    );
    text.addEventListener("keydown", (e) => {
      if (e.key === "Escape") end();
      else if (e.key === "Enter" && !e.shiftKey && !e.isComposing) send();
      else return;
      e.preventDefault();
      e.stopPropagation();
    });
    words.replaceWith(form);
    tools.hidden = true;
    text.focus();
  }

  return { article, refresh: turns.refresh };
}

// toolView is what a tool gave back.
export function toolView(node) {
  const article = h(
    "article",
    { class: "message tool" },
    h("h2", { class: "who" }, `Result of ${node.name || "the tool"}`),
    codeBlock(node.content),
  );
  return { article, refresh() {} };
}

// answerView is what the model said. at has again(node), branch(node), turn(node, by),
// results(node, texts) and body(node), the request that it answers.
export function answerView(node, at) {
  const article = h("article", { class: "message answer" });
  const words = h("div", { class: "text" });
  const note = h("p", { class: "cost" });
  const tools = h("p", { class: "row tools", hidden: true });
  const wrong = h("p", { class: "wrong", role: "alert", hidden: true });
  const calls = h("div", { class: "calls" });
  const thoughts = h("div", { class: "text" });
  const folded = h("summary", {});
  const reasoning = h("details", { class: "reasoning", hidden: true }, folded, thoughts);
  article.append(
    h("h2", { class: "who" }, node.model ?? "Model"),
    reasoning,
    words,
    calls,
    wrong,
    note,
    tools,
  );
  const turns = turner(node, at);
  const said = markdownView(words);
  const thought = markdownView(thoughts);
  const tokens = node.request?.logprobs && !node.finish ? tokenView(words) : null;
  let drawing = false;

  // draw shows what has come, once for each frame.
  function draw() {
    drawing = false;
    if (!tokens) said.set(node.content);
    reasoning.hidden = !node.reasoning;
    if (node.reasoning) {
      const under = !node.finish && !node.content && !node.calls;
      setText(folded, under ? "Reasoning …" : "Reasoning");
      if (reasoning.open) thought.set(node.reasoning);
    }
    showCalls();
    setText(note, costText(node));
    at.follow();
  }
  reasoning.addEventListener("toggle", draw);

  let called = ""; // what is shown of the calls
  function showCalls() {
    const now = JSON.stringify(node.calls ?? []);
    if (now === called) return;
    called = now;
    calls.replaceChildren(
      ...(node.calls ?? []).map((c) =>
        h(
          "section",
          { class: "call", "aria-label": `Call of ${c.name}` },
          h("h3", {}, "calls ", h("code", {}, c.name)),
          codeBlock(pretty(c.args), "json"),
        ),
      ),
    );
  }

  // results asks for what the tools give, once the calls are complete.
  function results() {
    if (!node.calls?.length) return;
    const inputs = node.calls.map((c) =>
      h("textarea", { rows: "2", "aria-label": `Result of ${c.name}`, placeholder: "its result" }),
    );
    const form = h(
      "div",
      { class: "results" },
      node.calls.map((c, i) => h("label", {}, `Result of ${c.name}`, inputs[i])),
      h(
        "p",
        { class: "row" },
        button(`Send ${plural(node.calls.length, "result")}`, () => {
          form.remove();
          at.results(node, inputs.map((i) => i.value));
        }),
      ),
    );
    calls.append(form);
  }

  function end() {
    tokens?.end(node.content);
    draw();
    if (node.error) {
      wrong.hidden = false;
      setText(wrong, node.error);
    }
    results();
    turns.refresh();
    const tool = (label, what) => button(label, (e) => copy(e.target, what()));
    tools.replaceChildren(
      turns.element,
      button(node.error ? "Try again" : "Regenerate", () => at.again(node), { class: "again" }),
      button("Branch", () => at.branch(node), {
        title: "go on in a new conversation from here",
      }),
      tool("Copy", () => node.content),
      tool("Copy as curl", () => curl(at.body(node))),
      tool("Copy as Python", () => python(at.body(node))),
    );
    tools.hidden = false;
  }

  if (node.finish) end();
  else draw();
  return {
    article,
    refresh: turns.refresh,
    end,
    // add shows more of the answer; scored are its tokens, where they were asked for.
    add(scored) {
      tokens?.add(scored);
      if (drawing) return;
      drawing = true;
      // A page that is not in sight has no frames.
      if (document.hidden) draw();
      else requestAnimationFrame(draw);
    },
  };
}

// turner goes through the versions of a message; it is hidden where there is one.
function turner(node, at) {
  const where = h("span", {});
  const back = button("‹", () => at.turn(node, -1), { "aria-label": "Version before" });
  const on = button("›", () => at.turn(node, 1), { "aria-label": "Version after" });
  const element = h("span", { class: "turner", hidden: true }, back, where, on);
  const refresh = () => {
    const list = at.versions(node);
    const i = list.indexOf(node);
    element.hidden = list.length < 2;
    setText(where, `${i + 1} of ${list.length}`);
    back.disabled = i === 0;
    on.disabled = i === list.length - 1;
  };
  return { element, refresh };
}

// pretty is JSON over several lines; arguments that are still coming are none yet.
function pretty(args) {
  try {
    return JSON.stringify(JSON.parse(args), null, 2);
  } catch {
    return args;
  }
}
