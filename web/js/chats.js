// The list of conversations that this browser keeps, and what can be done with the one shown.

import { asMarkdown, remove, save, summaries } from "./conversation.js";
import { h } from "./dom.js";
import { download } from "./download.js";

// chats makes the list. at has open(id), fresh() and shown(), the conversation that is shown.
export function chats(at) {
  const list = h("ul", {});
  const note = h("p", { class: "hint" });
  const element = h(
    "nav",
    { class: "chats", "aria-label": "Conversations" },
    h("button", { type: "button", class: "new", onclick: () => at.fresh() }, "New chat"),
    list,
    note,
  );
  let renaming = false;

  // draw shows the list, but for a name that is being written: its end does.
  function draw() {
    if (!renaming) fill();
  }

  function fill() {
    const now = at.shown();
    const kept = summaries();
    list.replaceChildren(...kept.map((c) => (c.id === now.id ? current(now) : other(c))));
    note.textContent = kept.length ? "Kept by this browser only." : "Conversations appear here.";
  }

  const other = (c) =>
    h(
      "li",
      {},
      h("button", { type: "button", class: "open", onclick: () => at.open(c.id) }, named(c)),
    );

  function current(c) {
    const tool = (label, does) => h("button", { type: "button", onclick: does }, label);
    const name = renaming
      ? rename(c)
      : h(
          "button",
          { type: "button", class: "open", "aria-current": "true", onclick: () => at.open(c.id) },
          named(c),
        );
    return h(
      "li",
      { class: "current" },
      name,
      h(
        "p",
        { class: "row tools" },
        tool("Rename", () => {
          renaming = true;
          fill();
          list.querySelector("input").select();
        }),
        tool("Export", () => download(`${fileOf(c)}.md`, "text/markdown", asMarkdown(c))),
        tool("JSON", () =>
          download(`${fileOf(c)}.json`, "application/json", JSON.stringify(c, null, 2)),
        ),
        tool("Delete", () => {
          if (!confirm(`Delete “${named(c)}” from this browser?`)) return;
          remove(c);
          at.fresh();
        }),
      ),
    );
  }

  function rename(c) {
    const input = h("input", { type: "text", value: named(c), "aria-label": "Name" });
    const end = (keep) => {
      if (!renaming) return; // leaving the field follows Enter
      renaming = false;
      if (keep && input.value.trim()) {
        c.title = input.value.trim();
        save(c);
      }
      draw();
    };
    input.addEventListener("blur", () => end(true));
    input.addEventListener("keydown", (e) => {
      if (e.key === "Enter") end(true);
      else if (e.key === "Escape") end(false);
      else return;
      e.stopPropagation();
    });
    return input;
  }

  addEventListener("storage", draw); // another tab has changed something
  return { element, draw };
}

const named = (c) => c.title || "Untitled";

const fileOf = (c) => named(c).replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-|-$/g, "") || "chat";
