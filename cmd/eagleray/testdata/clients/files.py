"""OpenAI's own client against a server's files and batches: python files.py URL"""

import json
import sys
import time

import openai

client = openai.OpenAI(base_url=sys.argv[1] + "/v1", api_key="sk-test", max_retries=0)


def rows(n, **extra):
    return "".join(
        json.dumps(
            {
                "custom_id": f"row-{i}",
                "method": "POST",
                "url": "/v1/chat/completions",
                "body": {
                    "model": "go-std-tiny",
                    "messages": [{"role": "user", "content": f"What does strings.Index do? {i}"}],
                    "max_tokens": 8,
                    **extra,
                },
            }
        )
        + "\n"
        for i in range(n)
    ).encode()


def refused(status, call, *args, **kwargs):
    try:
        call(*args, **kwargs)
    except openai.APIStatusError as e:
        assert e.status_code == status, e
        return e
    raise AssertionError("it succeeded")


def run(content, endpoint="/v1/chat/completions", **kwargs):
    f = client.files.create(file=("in.jsonl", content), purpose="batch")
    b = client.batches.create(
        input_file_id=f.id, endpoint=endpoint, completion_window="24h", **kwargs
    )
    assert b.status == "validating" and b.input_file_id == f.id, b
    for _ in range(3000):
        b = client.batches.retrieve(b.id)
        if b.status in ("completed", "failed", "cancelled", "expired"):
            return b
        time.sleep(0.01)
    raise AssertionError(b)


# Files.
content = rows(3)
f = client.files.create(
    file=("../../etc/in.jsonl", content),
    purpose="batch",
    expires_after={"anchor": "created_at", "seconds": 3600},
)
assert f.bytes == len(content) and f.purpose == "batch" and f.status == "processed", f
assert f.expires_at == f.created_at + 3600, f
assert client.files.retrieve(f.id) == f
assert client.files.content(f.id).read() == content
user = client.files.create(file=("a.txt", b"x"), purpose="user_data")
assert [o.id for o in client.files.list()] == [user.id, f.id]
assert [o.id for o in client.files.list(limit=1)] == [user.id, f.id]  # it pages by itself
assert [o.id for o in client.files.list(order="asc", purpose="batch")] == [f.id]
assert client.files.delete(user.id).deleted
assert refused(404, client.files.retrieve, user.id).param == "id"
refused(404, client.files.content, user.id)
refused(404, client.files.delete, user.id)
assert refused(400, client.files.create, file=("a", b"x"), purpose="fine-tune").param == "purpose"

# A batch with good rows and one that fails.
bad = json.dumps(
    {"custom_id": "bad", "method": "POST", "url": "/v1/chat/completions", "body": {"messages": 5}}
).encode()
b = run(rows(3) + b"\n" + bad, metadata={"for": "tests"})
assert b.status == "completed" and b.metadata == {"for": "tests"} and b.errors is None, b
assert b.request_counts.total == 4, b
assert b.request_counts.completed == 3 and b.request_counts.failed == 1, b
assert b.in_progress_at and b.finalizing_at and b.completed_at and b.expires_at, b
assert b.usage.output_tokens == 24 and b.usage.total_tokens > 24, b.usage
out = [json.loads(line) for line in client.files.content(b.output_file_id).text.splitlines()]
assert sorted(o["custom_id"] for o in out) == ["row-0", "row-1", "row-2"], out
assert all(o["response"]["status_code"] == 200 and o["error"] is None for o in out), out
assert all(o["response"]["body"]["choices"][0]["message"]["content"] for o in out), out
[err] = [json.loads(line) for line in client.files.content(b.error_file_id).text.splitlines()]
assert err["custom_id"] == "bad" and err["response"]["status_code"] == 400, err
assert err["response"]["body"]["error"]["param"] == "messages", err

# One whose rows are wrong: none is asked.
b = run(rows(1) + rows(1) + b"nonsense\n", endpoint="/v1/chat/completions")
assert b.status == "failed" and b.failed_at and not b.output_file_id, b
assert [(e.code, e.line) for e in b.errors.data] == [
    ("duplicate_custom_id", 2),
    ("invalid_json_line", 3),
], b.errors
b = run(rows(1), endpoint="/v1/completions")
assert b.status == "failed" and b.errors.data[0].code == "url_mismatch", b

# One that is cancelled.
f = client.files.create(file=("in.jsonl", rows(2000)), purpose="batch")
b = client.batches.create(
    input_file_id=f.id, endpoint="/v1/chat/completions", completion_window="24h"
)
assert client.files.delete(f.id).deleted  # the batch has a picture of it
assert client.batches.cancel(b.id).status in ("cancelling", "cancelled")
while (b := client.batches.retrieve(b.id)).status != "cancelled":
    assert b.status == "cancelling", b
    time.sleep(0.01)
assert b.cancelling_at and b.cancelled_at, b
refused(400, client.batches.cancel, b.id)
assert client.batches.list(limit=1).data[0].id == b.id
assert len(list(client.batches.list(limit=2))) == 4

# What no batch can be.
good = {"endpoint": "/v1/chat/completions", "completion_window": "24h"}
refused(404, client.batches.retrieve, "batch_none")
refused(404, client.batches.create, input_file_id="file-none", **good)
f = client.files.create(file=("in.jsonl", rows(1)), purpose="user_data")
assert refused(400, client.batches.create, input_file_id=f.id, **good).param == "input_file_id"
f = client.files.create(file=("in.jsonl", rows(1)), purpose="batch")
for change in (
    {"endpoint": "/v1/none"},
    {"completion_window": "1h"},
    {"metadata": {str(i): "x" for i in range(17)}},
    {"output_expires_after": {"anchor": "created_at", "seconds": 5}},
):
    e = refused(400, client.batches.create, input_file_id=f.id, **{**good, **change})
    assert e.param.split(".")[0] == next(iter(change)), e
print("ok")
