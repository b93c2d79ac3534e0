// An answer as it streams: text, reasoning, tool calls and what they took.

import { events, request } from "./api.js";
import { count, millis, number } from "./format.js";

// ask sends a request and writes the answer into a node as it comes; on(scored) is called after
// each piece, with its tokens and their log-probabilities where they were asked for. It throws what
// went wrong; what has come by then is in the node.
export async function ask(body, node, signal, on) {
  const began = performance.now();
  const cost = (node.cost = {});
  let first = 0;
  let pieces = 0;
  const answer = await request(body.messages ? "v1/chat/completions" : "v1/completions", {
    method: "POST",
    body,
    signal,
  });
  for await (const { data } of events(answer)) {
    if (data === "[DONE]") return;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new Error(chunk.error.message);
    if (chunk.usage) {
      cost.tokens = chunk.usage.completion_tokens;
      cost.prompt = chunk.usage.prompt_tokens;
    }
    if (chunk.metrics) cost.server = chunk.metrics;
    const choice = chunk.choices?.[0];
    if (!choice) continue;
    node.finish = choice.finish_reason ?? node.finish;
    const scored = choice.logprobs?.content ?? [];
    if (!take(choice, node) && scored.length === 0) continue;
    const now = performance.now();
    first ||= now;
    pieces += Math.max(scored.length, 1);
    cost.first = first - began;
    cost.after = now - first;
    cost.pieces = pieces;
    on(scored);
  }
  throw new Error("the answer broke off before its end");
}

// take adds what a choice of a chunk brings; it says whether there was anything.
function take(choice, node) {
  const delta = choice.delta ?? { content: choice.text };
  const reasoning = delta.reasoning ?? delta.reasoning_content;
  if (delta.content) node.content += delta.content;
  if (reasoning) node.reasoning = (node.reasoning ?? "") + reasoning;
  for (const c of delta.tool_calls ?? []) {
    node.calls ??= [];
    const call = (node.calls[c.index ?? 0] ??= { id: "", name: "", args: "" });
    call.id = c.id ?? call.id;
    call.name += c.function?.name ?? "";
    call.args += c.function?.arguments ?? "";
  }
  return Boolean(delta.content || reasoning || delta.tool_calls?.length);
}

// costText is what an answer took: tokens, tokens per second after the first, time to the first; of
// the prompt its tokens, those that the cache had, and how fast the others were computed. Rates are
// the server's own; an answer without them has the one that this page saw.
export function costText({ cost = {}, finish }) {
  if (!cost.first) return finish ? `no token · ${finish}` : "waiting for the first token";
  const n = cost.tokens ?? cost.pieces;
  const parts = [`${count(n)} ${n === 1 ? "token" : "tokens"}`];
  const server = cost.server ?? {};
  const seen = n > 1 && cost.after > 0 ? (n - 1) / (cost.after / 1000) : null;
  const rate = server.decode_tokens_per_second ?? seen;
  if (rate) parts.push(`${number(rate)} tokens/s`);
  parts.push(`TTFT ${millis(cost.first)}`);
  if (cost.prompt) {
    const about = [];
    if (server.cached_tokens) about.push(`${count(server.cached_tokens)} cached`);
    const fast = server.prefill_tokens_per_second;
    if (fast) about.push(`${number(fast)} tokens/s`);
    parts.push(`prompt ${count(cost.prompt)}${about.length ? ` (${about.join(", ")})` : ""}`);
  }
  if (finish) parts.push(finish);
  return parts.join(" · ");
}
