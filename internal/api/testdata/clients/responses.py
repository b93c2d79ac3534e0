"""The Responses API through openai-python and its stream helpers. Usage: responses.py URL."""

import json
import sys
import time

import openai
import pydantic

MODEL = "go-std-tiny"
QUESTION = "What does os.Open do?"
ANSWER = "Open opens the named file for reading."
TOOL = {
    "type": "function",
    "name": "weather",
    "parameters": {
        "type": "object",
        "properties": {"on": {"type": "boolean"}},
        "required": ["on"],
        "additionalProperties": False,
    },
}


class Switch(pydantic.BaseModel):
    on: bool


client = openai.OpenAI(base_url=sys.argv[1] + "/v1", api_key="none", max_retries=0)
ask = {"model": MODEL, "temperature": 0}


def check(ok, *what):
    if not ok:
        raise SystemExit(f"wrong: {what}")


first = client.responses.create(input=QUESTION, **ask)
check(first.output_text == ANSWER and first.status == "completed", first)
with client.responses.stream(input=QUESTION, top_logprobs=2, **ask) as stream:
    kinds = [event.type for event in stream]
    final = stream.get_final_response()
check(final.output_text == ANSWER and kinds[-1] == "response.completed", kinds, final)
check(len(final.output[0].content[0].logprobs[0].top_logprobs) == 2, final)

second = client.responses.create(input="And os.Create?", previous_response_id=first.id, **ask)
check(second.usage.input_tokens > first.usage.input_tokens, second)
check(client.responses.retrieve(second.id).output_text == second.output_text, second)
items = client.responses.input_items.list(second.id)
check([i.content[0].text for i in items] == ["And os.Create?"], items)

parsed = client.responses.parse(input="On?", text_format=Switch, **ask)
check(isinstance(parsed.output_parsed, Switch), parsed)
with client.responses.stream(input="On?", text_format=Switch, **ask) as stream:
    stream.until_done()
    check(stream.get_final_response().output_parsed == parsed.output_parsed)

called = client.responses.create(input="On?", tools=[TOOL], tool_choice="required", **ask)
call = called.output[-1]
check(call.type == "function_call" and call.name == "weather", called)
check(isinstance(json.loads(call.arguments)["on"], bool), called)
with client.responses.stream(input="On?", tools=[TOOL], tool_choice="required", **ask) as stream:
    stream.until_done()
    check(stream.get_final_response().output[-1].arguments == call.arguments)
told = client.responses.create(
    previous_response_id=called.id,
    input=[{"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}],
    **ask,
)
check(told.status in ("completed", "incomplete"), told)

job = client.responses.create(input=QUESTION, background=True, **ask)
check(job.status == "queued", job)
while job.status in ("queued", "in_progress"):
    time.sleep(0.01)
    job = client.responses.retrieve(job.id)
check(job.output_text == ANSWER, job)
cut, events = None, []
for event in client.responses.create(input=QUESTION, background=True, stream=True, **ask):
    if event.type == "response.created":
        cut = event.response.id
    events.append((event.type, event.sequence_number))
again = client.responses.retrieve(cut, stream=True, starting_after=3)
check([(e.type, e.sequence_number) for e in again] == events[4:], events)

talk = client.conversations.create(
    metadata={"topic": "files"}, items=[{"role": "developer", "content": "Be brief."}]
)
check(talk.id.startswith("conv_") and talk.metadata == {"topic": "files"}, talk)
count = client.responses.input_tokens.count(input=QUESTION, model=MODEL, conversation=talk.id)
heard = client.responses.create(input=QUESTION, conversation=talk.id, **ask)
check(heard.conversation.id == talk.id, heard)
check(heard.usage.input_tokens == count.input_tokens > first.usage.input_tokens, count, heard)
with client.responses.stream(input="And os.Create?", conversation=talk.id, **ask) as stream:
    stream.until_done()
    check(stream.get_final_response().usage.input_tokens > count.input_tokens)
items = client.conversations.items
said = [item.content[0].text for item in items.list(talk.id, order="asc", limit=2)]
check(said[:3] == ["Be brief.", QUESTION, heard.output_text] and len(said) == 5, said)
extra = items.create(talk.id, items=[{"role": "user", "content": "x"}]).data[0]
check(items.retrieve(extra.id, conversation_id=talk.id) == extra, extra)
check(items.delete(extra.id, conversation_id=talk.id).id == talk.id)
check(client.conversations.update(talk.id, metadata={"a": "b"}).metadata == {"a": "b"})
check(client.conversations.retrieve(talk.id).metadata == {"a": "b"})
long = [{"role": "user", "content": QUESTION * 50}] * 20 + [{"role": "user", "content": QUESTION}]
try:
    client.responses.create(input=long, **ask)
    raise SystemExit("a conversation that is too long is answered")
except openai.BadRequestError as error:
    check(error.code == "context_length_exceeded", error)
check(client.responses.create(input=long, truncation="auto", **ask).truncation == "auto")
try:
    client.responses.create(input="x", conversation=talk.id, previous_response_id=second.id, **ask)
    raise SystemExit("a conversation and a response are gone on with")
except openai.BadRequestError as error:
    check(error.code == "mutually_exclusive_parameters", error)
check(client.conversations.delete(talk.id).deleted)
try:
    client.conversations.retrieve(talk.id)
    raise SystemExit("a deleted conversation is there")
except openai.NotFoundError as error:
    check(talk.id in error.message, error)

client.responses.delete(first.id)
for wrong in ({"previous_response_id": second.id}, {"previous_response_id": "resp_x"}):
    try:
        client.responses.create(input="x", **wrong, **ask)
        raise SystemExit(f"{wrong} is answered")
    except openai.NotFoundError as error:
        check(error.param == "previous_response_id", error)
try:
    client.responses.create(input="x", tools=[{"type": "file_search"}], **ask)
    raise SystemExit("a hosted tool is answered")
except openai.BadRequestError as error:
    check("file_search" in error.message, error)
try:
    client.responses.create(input="x", tools=[{"type": "custom", "name": "shell"}], **ask)
    raise SystemExit("a custom tool is answered")
except openai.BadRequestError as error:
    check("custom tool" in error.message, error)
print("all is well")
