"""Tool calls and parsed answers through openai-python and its stream helpers.

Usage: tools.py URL. Every call must be valid, and streamed as it is not streamed.
"""

import enum
import json
import sys

import jsonschema
import openai
import pydantic

MODEL = "go-std-tiny"
client = openai.OpenAI(base_url=sys.argv[1] + "/v1", api_key="none", max_retries=0)
messages = [{"role": "user", "content": "What is the weather?"}]
schemas = {
    "get_weather": {
        "type": "object",
        "properties": {
            "city": {"type": "string", "enum": ["Paris", "Rome"]},
            "days": {"type": "integer", "minimum": 0, "maximum": 30},
        },
        "required": ["city", "days"],
        "additionalProperties": False,
    },
    "note": {
        "type": "object",
        "properties": {
            "on": {"type": "boolean"},
            "tags": {"type": "array", "items": {"type": "string", "maxLength": 5}, "maxItems": 3},
        },
        "required": ["on", "tags"],
        "additionalProperties": False,
    },
}
tools = [
    {"type": "function", "function": {"name": name, "parameters": schema}}
    for name, schema in schemas.items()
]


class Color(str, enum.Enum):
    red = "red"
    blue = "blue"


class Thing(pydantic.BaseModel):
    color: Color
    count: int
    ok: bool


def calls(message):
    return [(c.function.name, c.function.arguments) for c in message.tool_calls]


def check_calls(choice, seed):
    request = dict(
        model=MODEL,
        messages=messages,
        tools=tools,
        tool_choice=choice,
        parallel_tool_calls=False,
        seed=seed,
        max_tokens=400,
    )
    full = client.chat.completions.create(**request).choices[0]
    assert full.message.content is None, full
    if full.finish_reason == "length":
        return 0
    assert full.finish_reason == ("tool_calls" if choice == "required" else "stop"), full
    [(name, arguments)] = calls(full.message)
    jsonschema.validate(json.loads(arguments), schemas[name])
    if choice != "required":
        assert name == choice["function"]["name"], full
    with client.chat.completions.stream(**request) as stream:
        kinds = [event.type for event in stream]
        last = stream.get_final_completion().choices[0]
    assert calls(last.message) == calls(full.message), (last, full)
    assert last.finish_reason == full.finish_reason
    assert "tool_calls.function.arguments.done" in kinds, kinds
    return 1


def check_parse(seed):
    request = dict(model=MODEL, messages=messages, response_format=Thing, seed=seed, max_tokens=200)
    parsed = client.chat.completions.parse(**request).choices[0].message.parsed
    assert isinstance(parsed, Thing)
    with client.chat.completions.stream(**request) as stream:
        for _ in stream:
            pass
        assert stream.get_final_completion().choices[0].message.parsed == parsed
    tool = openai.pydantic_function_tool(Thing)
    answer = client.chat.completions.parse(
        model=MODEL,
        messages=messages,
        tools=[tool],
        tool_choice="required",
        parallel_tool_calls=False,
        seed=seed,
        max_tokens=300,
    )
    assert isinstance(answer.choices[0].message.tool_calls[0].function.parsed_arguments, Thing)


def check_history():
    history = [
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "id": "call_1",
                    "type": "function",
                    "function": {"name": "note", "arguments": '{"on": true}'},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": "done"},
    ]
    client.chat.completions.create(
        model=MODEL, messages=messages + history, tools=tools, tool_choice="none", max_tokens=5
    )


named = [{"type": "function", "function": {"name": name}} for name in schemas]
ended = sum(check_calls(choice, seed) for seed in range(5) for choice in ["required"] + named)
assert ended > 10, ended
for seed in range(3):
    check_parse(seed)
check_history()
print(f"{ended} calls")
