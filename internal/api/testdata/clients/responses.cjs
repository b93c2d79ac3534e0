// The Responses API through openai-node and its stream helper. Usage: node responses.cjs URL, with
// openai in NODE_PATH.
const assert = require("node:assert");
const { OpenAI } = require("openai");

const client = new OpenAI({ baseURL: process.argv[2] + "/v1", apiKey: "none", maxRetries: 0 });
const ask = { model: "go-std-tiny", temperature: 0, input: "What does os.Open do?" };
const answer = "Open opens the named file for reading.";

async function main() {
  const first = await client.responses.create(ask);
  assert.equal(first.output_text, answer);
  const stream = client.responses.stream(ask);
  let text = "";
  stream.on("response.output_text.delta", (event) => { text += event.delta; assert.equal(event.snapshot, text); });
  assert.equal((await stream.finalResponse()).output_text, answer);
  assert.equal(text, answer);
  const tools = [{ type: "function", name: "f", strict: true, parameters: {
    type: "object", properties: { on: { type: "boolean" } }, required: ["on"], additionalProperties: false } }];
  const calls = client.responses.stream({ ...ask, tools, tool_choice: "required" });
  let last = "";
  calls.on("response.function_call_arguments.delta", (event) => { last = event.snapshot; });
  const call = (await calls.finalResponse()).output.at(-1);
  assert.equal(call.arguments, last);
  assert.equal(typeof JSON.parse(last).on, "boolean");
  const second = await client.responses.create({ ...ask, input: "And os.Create?", previous_response_id: first.id });
  assert.equal((await client.responses.retrieve(second.id)).output_text, second.output_text);
  const job = await client.responses.create({ ...ask, background: true, stream: true });
  let id = "";
  for await (const event of job) if (event.type === "response.created") id = event.response.id;
  const again = client.responses.stream({ response_id: id, starting_after: null });
  assert.equal((await again.finalResponse()).output_text, answer);
  await client.responses.delete(first.id);
  await assert.rejects(client.responses.retrieve(first.id), (error) => error.status === 404);
  console.log("all is well");
}

main().catch((error) => { console.error(error); process.exit(1); });
