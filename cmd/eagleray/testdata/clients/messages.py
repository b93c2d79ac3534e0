"""Anthropic's own client against a server's batches of messages: python messages.py URL"""

import sys
import time

import anthropic

client = anthropic.Anthropic(base_url=sys.argv[1], api_key="none", max_retries=0)
batches = client.messages.batches


def request(name, **change):
    params = {
        "model": "go-std-tiny",
        "max_tokens": 8,
        "messages": [{"role": "user", "content": f"What does strings.Index do? {name}"}],
        **change,
    }
    return {"custom_id": name, "params": params}


def ended(batch):
    for _ in range(3000):
        batch = batches.retrieve(batch.id)
        if batch.processing_status == "ended":
            return batch
        time.sleep(0.01)
    raise AssertionError(batch)


def refused(kind, call, *args, **kwargs):
    try:
        call(*args, **kwargs)
    except kind as e:
        assert e.type and e.request_id.startswith("req_"), e
        return
    raise AssertionError("it succeeded")


rows = [request(f"row-{i}") for i in range(3)] + [request("bad", model="none")]
b = batches.create(requests=rows)
assert b.processing_status == "in_progress" and b.results_url is None, b
assert b.request_counts.processing == 4 and b.expires_at > b.created_at, b
refused(anthropic.BadRequestError, batches.create, requests=rows + rows[:1])
b = ended(b)
n = b.request_counts
assert (n.succeeded, n.errored, n.processing, n.canceled, n.expired) == (3, 1, 0, 0, 0), b
assert b.ended_at and b.results_url.startswith(sys.argv[1]), b
results = {r.custom_id: r.result for r in batches.results(b.id)}
assert sorted(results) == ["bad", "row-0", "row-1", "row-2"], results
for i in range(3):
    message = results[f"row-{i}"].message
    alone = client.messages.create(**rows[i]["params"])
    assert message.content[0].text and message.usage.output_tokens <= 8, message
    assert message.type == "message" and message.role == "assistant", message
    assert message.usage.input_tokens + message.usage.cache_read_input_tokens == (
        alone.usage.input_tokens + alone.usage.cache_read_input_tokens
    ), message
assert results["bad"].type == "errored", results
assert results["bad"].error.error.type == "not_found_error", results

# One that is cancelled.
c = batches.create(requests=[request(f"row-{i}", max_tokens=64) for i in range(500)])
refused(anthropic.BadRequestError, batches.delete, c.id)
assert batches.cancel(c.id).processing_status == "canceling"
c = ended(c)
assert c.cancel_initiated_at and c.request_counts.canceled > 0, c
kinds = [r.result.type for r in batches.results(c.id)]
assert len(kinds) == 500 and kinds.count("canceled") == c.request_counts.canceled, c
assert [x.id for x in batches.list(limit=1)] == [c.id, b.id]  # it pages by itself
assert batches.delete(b.id).type == "message_batch_deleted"
refused(anthropic.NotFoundError, batches.retrieve, b.id)
print("ok")
