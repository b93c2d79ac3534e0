"""The Messages API through Anthropic's client and its stream helpers. Usage: messages.py URL."""

import sys

import anthropic

QUESTION = [{"role": "user", "content": "What does os.Open do?"}]
ANSWER = "Open opens the named file for reading."
TOOL = {
    "name": "weather",
    "input_schema": {
        "type": "object",
        "properties": {"on": {"type": "boolean"}},
        "required": ["on"],
        "additionalProperties": False,
    },
}

client = anthropic.Anthropic(base_url=sys.argv[1], api_key="none", max_retries=0)
ask = {"model": "go-std-tiny", "max_tokens": 60, "extra_body": {"temperature": 0}}


def check(ok, *what):
    if not ok:
        raise SystemExit(f"wrong: {what}")


timed = {**ask, "extra_body": {"temperature": 0, "return_metrics": True}}
whole = client.messages.create(messages=QUESTION, **timed)
check(whole.metrics["decode_tokens_per_second"] > 0, whole)
check(whole.content[0].text == ANSWER and whole.stop_reason == "end_turn", whole)
check(whole._request_id.startswith("req_"), whole)
with client.messages.stream(messages=QUESTION, **ask) as stream:
    text = "".join(stream.text_stream)
    final = stream.get_final_message()
check(text == ANSWER and final.content[0].text == ANSWER, text, final)
check(final.usage.output_tokens == whole.usage.output_tokens, final, whole)
count = client.messages.count_tokens(model=ask["model"], messages=QUESTION)
usage = whole.usage
check(count.input_tokens == usage.input_tokens + usage.cache_read_input_tokens, count)

call = client.messages.create(messages=QUESTION, tools=[TOOL], tool_choice={"type": "any"}, **ask)
block = call.content[-1]
check(call.stop_reason == "tool_use" and isinstance(block.input["on"], bool), call)
with client.messages.stream(
    messages=QUESTION, tools=[TOOL], tool_choice={"type": "any"}, **ask
) as stream:
    check(stream.get_final_message().content[-1].input == block.input)
told = client.messages.create(
    messages=QUESTION
    + [
        {"role": "assistant", "content": call.content},
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": block.id, "content": "sunny"}],
        },
    ],
    tools=[TOOL],
    tool_choice={"type": "none"},
    **ask,
)
check(told.stop_reason in ("end_turn", "max_tokens"), told)
stopped = client.messages.create(messages=QUESTION, stop_sequences=["named"], **ask)
check(stopped.stop_reason == "stop_sequence", stopped)
check(stopped.stop_sequence == "named", stopped)
[model] = client.models.list()
check(model.id == ask["model"] and model.type == "model" and model.display_name, model)
check(model.created_at.year > 2000 and model.max_input_tokens > 60, model)
check(client.models.retrieve(model.id) == model, model)
for call in (
    lambda: client.messages.create(messages=QUESTION, **{**ask, "model": "none"}),
    lambda: client.models.retrieve("none"),
    lambda: client.get("/v1/none", cast_to=object),
):
    try:
        raise SystemExit(f"what is not there is answered: {call()}")
    except anthropic.NotFoundError as error:
        check(error.request_id.startswith("req_") and error.type == "not_found_error", error)
print("all is well")
