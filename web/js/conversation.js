// Conversations: trees of messages, since what is edited or answered again stays beside what it
// was. They are kept by this browser and nowhere else.

const prefix = "eagleray-chat-";

// create makes an empty conversation. nodes are its messages by id, {id, parent, role, content, …},
// parent null for the first; head is the last message of the path that is shown, null for none.
export const create = () => ({
  id: crypto.getRandomValues(new Uint32Array(2)).join("-"),
  title: "",
  changed: Date.now(),
  head: null,
  nodes: {},
});

// add appends a message to a parent, and shows it.
export function add(c, parent, message) {
  const id = String(Object.keys(c.nodes).length);
  const node = { ...message, id, parent, at: Date.now() };
  c.nodes[id] = node;
  c.head = id;
  if (!c.title && node.role === "user") c.title = titleOf(node.content);
  return node;
}

function titleOf(text) {
  const line = text.trim().split("\n")[0];
  return line.length > 60 ? `${line.slice(0, 59)}…` : line;
}

// path are the messages that are shown, or those up to one of them, oldest first.
export function path(c, from = c.head) {
  const list = [];
  for (let id = from; id !== null; id = c.nodes[id].parent) list.unshift(c.nodes[id]);
  return list;
}

const children = (c, parent) => Object.values(c.nodes).filter((n) => n.parent === parent);

// versions are the messages that stand in one's place, itself among them, oldest first.
export const versions = (c, node) => children(c, node.parent);

// show makes the path go through a message, and on with the newest answer to each.
export function show(c, node) {
  let at = node;
  for (let next = node; next; next = children(c, at.id).at(-1)) at = next;
  c.head = at.id;
}

// branch is a conversation of its own with the messages up to one.
export function branch(c, node) {
  const copy = { ...create(), title: `${c.title} (branch)` };
  let parent = null;
  for (const { at, ...message } of path(c, node.id)) {
    parent = add(copy, parent, message).id;
    copy.nodes[parent].at = at;
  }
  return copy;
}

// messages are those of a path as the API takes them. An answer that never came is left out.
export const messages = (list) =>
  list
    .filter((n) => n.role !== "assistant" || n.content || n.calls?.length)
    .map(({ role, content, calls, call }) => ({
      role,
      content: role === "assistant" && calls?.length && !content ? null : content,
      ...(calls?.length ? { tool_calls: calls.map(asCall) } : {}),
      ...(call ? { tool_call_id: call } : {}),
    }));

const asCall = ({ id, name, args }) => ({
  id,
  type: "function",
  function: { name, arguments: args },
});

// asMarkdown is the path that is shown as a text.
export function asMarkdown(c) {
  const who = { user: "You", tool: "Result of a tool" };
  const parts = path(c).map((n) => {
    const calls = (n.calls ?? []).map((f) => fence(`${f.name}(${f.args})`));
    return [`## ${who[n.role] ?? n.model ?? "Model"}`, n.content, ...calls].join("\n\n");
  });
  return `# ${c.title}\n\n${parts.join("\n\n")}\n`;
}

// fence is longer than any in the text.
function fence(text) {
  const marks = "`".repeat(Math.max(3, ...(text.match(/`+/g) ?? []).map((m) => m.length + 1)));
  return `${marks}\n${text}\n${marks}`;
}

// summaries are the conversations that are kept, {id, title, changed}, the newest first.
export function summaries() {
  const list = [];
  try {
    for (const key of Object.keys(localStorage)) {
      const c = key.startsWith(prefix) && parse(localStorage.getItem(key));
      if (c) list.push({ id: c.id, title: c.title, changed: c.changed });
    }
  } catch {
    return []; // storage is refused: conversations last as long as the page
  }
  return list.sort((a, b) => b.changed - a.changed);
}

export function load(id) {
  try {
    return parse(localStorage.getItem(prefix + id));
  } catch {
    return null;
  }
}

function parse(text) {
  try {
    const c = JSON.parse(text);
    return c && typeof c.id === "string" && c.nodes && (c.head === null || c.nodes[c.head])
      ? c
      : null;
  } catch {
    return null; // not ours
  }
}

// save keeps a conversation; it returns why it could not, "" if it could. One that was removed
// stays so, whatever comes of its answer.
export function save(c) {
  if (c.removed) return "";
  c.changed = Date.now();
  try {
    localStorage.setItem(prefix + c.id, JSON.stringify(c));
    return "";
  } catch (err) {
    return err.name === "QuotaExceededError"
      ? "this browser's storage is full: delete or export conversations"
      : "this browser keeps nothing for this page: the conversation lasts as long as the tab";
  }
}

export function remove(c) {
  c.removed = true;
  try {
    localStorage.removeItem(prefix + c.id);
  } catch {
    // There was nothing.
  }
}
