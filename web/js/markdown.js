// Markdown as elements: marked's lexer says what is what, and elements are made of its tokens. No
// HTML is made from strings, so what a model writes as HTML is shown as it is written.

import { lexer } from "../marked/marked.esm.js";
import { h } from "./dom.js";
import { copy } from "./snippets.js";

const options = { gfm: true, breaks: true };
const longest = 500_000; // characters; a longer text is shown as it is

// markdownView shows a text that grows in an element. Blocks that have not changed stay as they
// are, so that a selection within them does too.
export function markdownView(element) {
  let shown = []; // the source of each block

  return {
    set(text) {
      const tokens = parsed(text);
      element.classList.toggle("plain", tokens === null);
      if (tokens === null) {
        shown = [];
        element.textContent = text;
        return;
      }
      if (shown.length === 0) element.replaceChildren();
      const list = tokens.filter(({ type }) => type !== "space" && type !== "def");
      let same = 0;
      while (same < shown.length && shown[same] === list[same]?.raw) same++;
      while (element.children.length > same) element.lastChild.remove();
      const added = list.slice(same).map(block);
      for (const e of added) e.dir = "auto"; // that of its first letter
      element.append(...added);
      shown = list.map(({ raw }) => raw);
    },
  };
}

// parsed is null for a text that is not worth, or not possible, to parse: brackets can be nested
// deeper than the stack.
function parsed(text) {
  if (text.length > longest) return null;
  try {
    return lexer(text, options);
  } catch {
    return null;
  }
}

const blocks = (tokens) =>
  tokens.filter(({ type }) => type !== "space" && type !== "def").map(block);

function block(t) {
  switch (t.type) {
    case "heading": // below the names of who speaks
      return h(`h${Math.min(t.depth + 2, 6)}`, {}, inline(t.tokens));
    case "code":
      return codeBlock(t.text, t.lang);
    case "hr":
      return h("hr");
    case "blockquote":
      return h("blockquote", {}, blocks(t.tokens));
    case "list":
      return h(
        t.ordered ? "ol" : "ul",
        { start: t.ordered && t.start !== 1 ? String(t.start) : null },
        t.items.map((item) => h("li", {}, parts(item.tokens))),
      );
    case "table":
      return table(t);
    case "html":
      return h("p", {}, t.text);
    default:
      return h("p", {}, inline(t.tokens ?? [t]));
  }
}

// parts are what a list item holds: text without a paragraph of its own, and blocks.
const parts = (tokens) =>
  tokens
    .filter(({ type }) => type !== "space" && type !== "def")
    .map((t) =>
      t.type === "checkbox" ? inline([t]) : t.type === "text" ? inline(t.tokens ?? [t]) : block(t),
    );

function table(t) {
  const row = (cells, tag) =>
    h(
      "tr",
      {},
      cells.map((c) => h(tag, { class: c.align && `to-${c.align}` }, inline(c.tokens))),
    );
  return h(
    "div",
    { class: "scroll", tabindex: "0", role: "group", "aria-label": "Table" },
    h(
      "table",
      {},
      h("thead", {}, row(t.header, "th")),
      h(
        "tbody",
        {},
        t.rows.map((r) => row(r, "td")),
      ),
    ),
  );
}

// codeBlock is a text in a fixed font, with its language and a button that copies it.
export function codeBlock(text, lang = "") {
  const name = lang.trim().split(/\s/)[0];
  return h(
    "div",
    { class: "code" },
    h(
      "div",
      { class: "bar-top" },
      h("span", {}, name || "text"),
      h("button", { type: "button", onclick: (e) => copy(e.target, text) }, "Copy"),
    ),
    h("pre", { tabindex: "0" }, h("code", {}, text)),
  );
}

function inline(tokens) {
  return tokens.map((t) => {
    switch (t.type) {
      case "strong":
      case "em":
      case "del":
        return h(t.type, {}, inline(t.tokens));
      case "codespan":
        return h("code", {}, t.text);
      case "br":
        return h("br");
      case "checkbox":
        return t.checked ? "☑ " : "☐ ";
      case "link":
        return link(t.href, t.title, inline(t.tokens));
      case "image": // the policy loads none from elsewhere, and neither should a model choose to
        return link(t.href, t.title, [`image: ${t.text || t.href}`]);
      case "text":
        return t.tokens ? inline(t.tokens) : entities(t.text);
      default:
        return t.text ?? t.raw;
    }
  }).flat();
}

// link leads elsewhere in a window of its own; anything but the web and mail is text.
function link(href, title, content) {
  if (!/^(https?:\/\/|mailto:)/i.test(href)) return content;
  return [
    h("a", { href, title, target: "_blank", rel: "noopener noreferrer nofollow" }, content),
  ];
}

const named = { amp: "&", lt: "<", gt: ">", quot: '"', apos: "'", nbsp: "\u00a0" };

// entities are the characters that HTML has names for; those that a model is likely to write.
const entities = (text) =>
  text.replace(/&(?:#(\d{1,6})|(amp|lt|gt|quot|apos|nbsp));/g, (_, code, name) =>
    code ? String.fromCodePoint(Number(code)) : named[name],
  );
