// Chat: conversations with the served models.

import { ask } from "./answer.js";
import { request } from "./api.js";
import { chats } from "./chats.js";
import * as talk from "./conversation.js";
import { h, setText } from "./dom.js";
import { answerView, toolView, userView } from "./message.js";
import { settings } from "./settings.js";

export function chat(section, about) {
  let c = talk.create(); // the conversation that is shown
  let running = null; // the AbortController of the answer under way
  let views = new Map(); // the views of its messages, by id
  let info = { models: [], chat: true };

  const set = settings();
  const list = chats({ open, fresh, shown: () => c });
  // What a message may do to its conversation.
  const at = {
    versions: (node) => talk.versions(c, node),
    again: (node) => answer(node.parent),
    body: bodyOf,
    branch,
    edit,
    follow,
    results,
    turn,
  };
  const log = h("div", { class: "log", role: "log", "aria-label": "Conversation", tabindex: "0" });
  const text = h("textarea", {
    id: "chat-text",
    rows: "1",
    dir: "auto",
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
  const newest = h(
    "button",
    { type: "button", class: "newest", hidden: true, onclick: () => follow(true) },
    "↓ Newest",
  );
  const wrong = h("p", { class: "wrong", role: "alert", hidden: true });
  const side = h(
    "aside",
    { class: "side card", id: "chat-side", "aria-label": "Conversations and settings" },
    h("button", { type: "button", class: "close", onclick: () => fold(true) }, "Close"),
    list.element,
    set.element,
  );
  const unfold = h(
    "button",
    {
      type: "button",
      class: "unfold",
      "aria-expanded": "false",
      "aria-controls": "chat-side",
      onclick: () => fold(false),
    },
    "Chats",
  );
  const form = h(
    "form",
    { class: "composer card", onsubmit: submitted },
    h("label", { for: "chat-text", class: "hidden" }, "Message"),
    text,
    wrong,
    h(
      "div",
      { class: "row" },
      unfold,
      h("label", { for: "chat-model", class: "hidden" }, "Model"),
      set.model,
      h(
        "p",
        { class: "hint", id: "chat-hint" },
        "Enter sends, Shift+Enter starts a line, Esc stops",
      ),
      stop,
      send,
    ),
  );
  section.append(
    h("h1", { class: "hidden" }, "Chat"),
    side,
    h("div", { class: "talk" }, log, newest, form),
  );

  addEventListener("keydown", (e) => {
    if (e.key !== "Escape") return;
    if (running) running.abort();
    else fold(true);
  });
  document.addEventListener("back", learn);
  about.then(
    (a) => {
      info = a;
      set.choose(a.models);
      if (c.head === null) welcome();
      learn();
    },
    () => {},
  );
  list.draw();
  welcome();

  // learn asks which models there are: adapters come and go while the server runs.
  async function learn() {
    try {
      const { data } = await (await request("v1/models")).json();
      if (data.length) set.choose(data.map((m) => m.id));
    } catch {
      // Those that the page began with remain.
    }
  }

  // fold hides or shows the side on narrow windows, over the conversation; wide ones always show
  // it.
  function fold(away) {
    side.classList.toggle("open", !away);
    unfold.setAttribute("aria-expanded", String(!away));
    if (!away) side.querySelector(".close").focus();
  }

  // focus readies the text for typing; on a touch screen that would bring up the keyboard.
  function focus() {
    if (!matchMedia("(pointer: coarse)").matches) text.focus({ preventScroll: true });
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
        h("h2", {}, model ? `Ask ${model}` : "Ask the model"),
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
          examples.map((e) => h("button", { type: "button", onclick: () => say(e) }, e)),
        ),
      ),
    );
    newest.hidden = true;
  }

  function pressed(e) {
    if (e.key !== "Enter" || e.shiftKey || e.isComposing) return;
    e.preventDefault();
    form.requestSubmit();
  }

  function submitted(e) {
    e.preventDefault();
    const question = text.value.trim();
    if (!running && question !== "" && say(question)) text.value = "";
  }

  function complain(why) {
    wrong.hidden = why === "";
    setText(wrong, why);
  }

  // fresh shows a new conversation, open one that is kept.
  function fresh() {
    change(talk.create());
    focus();
  }

  function open(id) {
    if (running && id === c.id) return fold(true); // what is kept is behind what is shown
    const kept = talk.load(id);
    if (!kept) return list.draw(); // another tab has deleted it
    for (const n of Object.values(kept.nodes)) {
      if (n.role === "assistant") n.finish ??= "stopped"; // the page was closed meanwhile
    }
    change(kept);
  }

  function change(to) {
    running?.abort();
    c = to;
    views = new Map();
    complain("");
    list.draw();
    draw();
    fold(true);
  }

  // keep stores a conversation, and says it if the browser does not.
  function keep(what = c) {
    const why = talk.save(what);
    if (what === c) complain(why);
    list.draw();
  }

  function viewOf(node) {
    if (!views.has(node.id)) {
      const view = { user: userView, tool: toolView, assistant: answerView }[node.role];
      views.set(node.id, view(node, at));
    }
    return views.get(node.id);
  }

  // draw shows the path; what is shown already stays as it is.
  function draw(toEnd = true) {
    const path = talk.path(c);
    if (path.length === 0) return welcome();
    const top = log.scrollTop;
    const shown = path.map(viewOf);
    log.replaceChildren(...shown.map(({ article }) => article));
    for (const { refresh } of shown) refresh();
    log.scrollTop = top;
    follow(toEnd);
  }

  // say asks a question after what is shown; it returns whether it could.
  function say(question) {
    running?.abort();
    return answer(c.head, { role: "user", content: question });
  }

  function edit(node, question) {
    answer(node.parent, { role: "user", content: question });
  }

  function results(node, given) {
    const list = node.calls.map(({ id, name }, i) => ({
      role: "tool",
      content: given[i],
      call: id,
      name,
    }));
    answer(node.id, ...list);
  }

  function branch(node) {
    const copy = talk.branch(c, node);
    keep(copy);
    change(copy);
    focus();
  }

  function turn(node, by) {
    const list = talk.versions(c, node);
    talk.show(c, list[list.indexOf(node) + by]);
    keep();
    draw(false);
  }

  // bodyOf is the request that a node answers.
  function bodyOf(node) {
    const { system, ...params } = node.request;
    const said = talk.messages(talk.path(c, node.parent));
    const b = {
      ...params,
      stream: true,
      stream_options: { include_usage: true },
      return_metrics: true,
    };
    if (info.chat) b.messages = system ? [{ role: "system", content: system }, ...said] : said;
    else b.prompt = (system ? [system] : []).concat(said.map((m) => m.content)).join("\n");
    return b;
  }

  // answer adds messages after a node and has the model answer them. It returns false, with nothing
  // added, if the settings make no request.
  function answer(parent, ...said) {
    let params;
    try {
      params = { ...set.params(info.chat, info.max_logprobs), system: set.system() };
    } catch (err) {
      complain(err.message);
      return false;
    }
    running?.abort();
    complain("");
    for (const message of said) parent = talk.add(c, parent, message).id;
    const node = talk.add(c, parent, {
      role: "assistant",
      content: "",
      model: params.model,
      request: params,
    });
    draw();
    keep();
    stream(c, node, viewOf(node));
    return true;
  }

  async function stream(of, node, view) {
    const abort = (running = new AbortController());
    busy(true);
    try {
      await ask(bodyOf(node), node, abort.signal, view.add);
      node.finish ??= "stop";
    } catch (err) {
      node.finish = abort.signal.aborted ? "stopped" : "error";
      if (!abort.signal.aborted) node.error = err.message;
    }
    if (running === abort) {
      running = null;
      busy(false);
    }
    view.end();
    keep(of);
  }

  function busy(on) {
    stop.hidden = !on;
    send.hidden = on;
    log.setAttribute("aria-busy", String(on));
  }

  // follow keeps the end in sight, unless the reader has scrolled away from it.
  let stuck = true;
  let top = 0;
  function follow(anew = false) {
    stuck ||= anew;
    if (stuck) log.scrollTop = log.scrollHeight;
    else newest.hidden = false;
    if (stuck) newest.hidden = true;
  }
  log.addEventListener("scroll", () => {
    const away = log.scrollHeight - log.scrollTop - log.clientHeight;
    // Text that came since is no reason to stop following: only going up is.
    if (away < 48) stuck = true;
    else if (log.scrollTop < top) stuck = false;
    top = log.scrollTop;
    newest.hidden = stuck;
  });
  new ResizeObserver(() => follow()).observe(log);
  addEventListener("pagehide", () => {
    if (!running) return;
    keep();
    running.abort(); // the server is no reason for what ends now
  });

  return { show: focus };
}
