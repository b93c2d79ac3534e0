"""Datasets on the cluster: data.py ADDRESS NODE_IP CASE FOLDER."""

import importlib.machinery
import json
import math
import os
import sys
import time
import types

import ray
import ray.data
from eagleray.data import EngineProcessorConfig, build_processor

address, node_ip, case, folder = sys.argv[1:]
names = ("PYTHONPATH", "EAGLERAY_BINARY")
ray.init(
    address,
    _node_ip_address=node_ip,
    runtime_env={"env_vars": {name: os.environ[name] for name in names}},
)
# The mark is for the test, which looks for what is left of it.
ENGINE = {
    "cpu_threads": 1,
    "kv_cache_memory_bytes": "64M",
    "served_model_name": os.environ.get("EAGLERAY_TEST_MARK"),
}
MESSAGES = [{"role": "user", "content": "What does os.Open do?"}]
GREEDY = {"temperature": 0.0, "max_tokens": 30}
ANSWER = "Open opens the named file for reading."


def answers(rows, preprocess=None, postprocess=None, apart=None, **fields):
    """Return the answers to rows, by their ids."""
    config = EngineProcessorConfig(**{"engine_kwargs": ENGINE, **fields})
    processor = build_processor(config, preprocess, postprocess, postprocess_map_kwargs=apart)
    answered = processor(rows).take_all()
    by_id = {row["id"]: row for row in answered}
    assert len(by_id) == len(answered) == rows.count(), (len(by_id), len(answered))
    return by_id


def kinds():
    """Rows of every kind, in blocks of one row, with one that the engine refuses."""

    def preprocess(row):
        return [
            {"messages": MESSAGES, "sampling_params": GREEDY},
            {"prompt": "func ", "sampling_params": {**GREEDY, "logprobs": 1}},
            {"tokenized_prompt": [1, 2, 3], "sampling_params": {**GREEDY, "ignore_eos": True}},
            {"prompt": "func ", "sampling_params": {"temperature": -3.0}},
            {"prompt": None},
        ][row["id"] % 5]

    rows = ray.data.from_items([{"id": i} for i in range(100)])
    got = answers(rows, preprocess, should_continue_on_error=True)
    for i, row in got.items():
        error, tokens = row["__inference_error__"], row["generated_tokens"]
        assert len(tokens) == row["num_generated_tokens"], row
        assert len(row["prompt_token_ids"]) == row["num_input_tokens"], row
        if i % 5 == 0:
            assert (row["generated_text"], error) == (ANSWER, ""), row
        elif i % 5 == 1:
            assert row["prompt"] == "func " and json.loads(row["logprobs"])["tokens"], row
        elif i % 5 == 2:
            assert list(row["prompt_token_ids"]) == [1, 2, 3] and len(tokens) == 30, row
        elif i % 5 == 3:
            assert "temperature must be at least 0" in error, row
        else:
            assert "neither messages nor" in error, row
    assert got[1]["generated_text"] == got[96]["generated_text"]


def fewer():
    """Rows that fail among those of which postprocess keeps fewer columns, and makes others."""

    def preprocess(row):
        length = -3 if row["id"] % 7 == 3 else 4
        return {"messages": MESSAGES, "sampling_params": {**GREEDY, "max_tokens": length}}

    def postprocess(row):
        tokens = [int(token) for token in row["generated_tokens"]]
        return {"id": row["id"], "answer": row["generated_text"], "tokens": tokens}

    rows = ray.data.from_items([{"id": i, "question": "?"} for i in range(24)])
    for apart in (None, {}):
        got = answers(
            rows, preprocess, postprocess, apart, should_continue_on_error=True, batch_size=4
        )
        for i, row in got.items():
            assert set(row) == {"id", "answer", "tokens", "__inference_error__"}, row
            if i % 7 == 3:
                assert "max_tokens must be at least 1" in row["__inference_error__"], row
                assert row["answer"] is None and row["tokens"] is None, row
            else:
                assert row["__inference_error__"] == "" and len(row["tokens"]) == 4, row
                assert ANSWER.startswith(row["answer"]), row


def embeddings():
    rows = ray.data.from_items([{"id": i, "prompt": f"text {i % 2}"} for i in range(8)])
    got = answers(rows, task_type="embed")
    same = [list(got[i]["embeddings"]) for i in (0, 1, 2)]
    assert same[0] == same[2] != same[1] and len(same[0]) > 8, same


def scores():
    texts = ["a file", "a number", None]
    rows = ray.data.from_items([{"id": i, "text_2": text} for i, text in enumerate(texts)])
    got = answers(
        rows, lambda row: {"text_1": "a file"}, task_type="score", should_continue_on_error=True
    )
    assert abs(got[0]["score"] - 1) < 1e-5 and got[1]["score"] < 0.999, got
    assert "text_2" in got[2]["__inference_error__"] and math.isnan(got[2]["score"]), got


class Bar:
    """What is used of tqdm by Ray, which is not installed."""

    all = []

    def __init__(self, desc, **_):
        self.desc, self.n, self.closed = desc, 0, False
        Bar.all.append(self)

    def set_description(self, desc):
        self.desc = desc

    def update(self, n):
        self.n += n

    def refresh(self):
        pass

    clear = refresh

    def close(self):
        self.closed = True


def shown():
    """A terminal shows the rows and tokens of both engines in one line."""
    from ray.experimental import tqdm_ray

    tqdm_ray.real_tqdm = types.SimpleNamespace(tqdm=Bar)
    sys.modules["tqdm"] = types.ModuleType("tqdm")
    sys.modules["tqdm"].__spec__ = importlib.machinery.ModuleSpec("tqdm", None)
    sys.stderr.isatty = lambda: True
    rows = ray.data.range(40, override_num_blocks=4)
    got = answers(rows, lambda row: {"prompt": "func ", "sampling_params": GREEDY}, concurrency=2)
    tokens = sum(row["num_input_tokens"] + row["num_generated_tokens"] for row in got.values())

    def ended():
        """Return what stands at the ends of our bars: tokens, rows and what is beside them.

        A bar that was closed between two rows has gone on as another one. Nodes of one machine read
        the same logs, so each line may come more than once; 2.35 adds a position to some.
        """
        bars = [bar for bar in Bar.all if "eagleray built-in: " in bar.desc]
        ends = {(bar.n, bar.desc.split("built-in: ")[1].removesuffix(" 0")) for bar in bars}
        rows = sum(int(desc.split(" rows, ")[0]) for _, desc in ends if desc.endswith(" rows/s"))
        return sum(n for n, _ in ends), rows, all(bar.closed for bar in bars)

    until = time.monotonic() + 60
    while ended() != (tokens, 40, True):
        assert time.monotonic() < until, (tokens, [vars(bar) for bar in Bar.all])
        time.sleep(0.05)


def refused():
    """A wrong flag and a wrong row end the job with the engine's line."""
    rows = ray.data.from_items([{"id": 0, "prompt": "a", "sampling_params": {"temperature": -1}}])
    for fields, want in (
        ({"engine_kwargs": {"max_num_seq": 3}}, "--max-num-seq"),
        ({"model_source": os.path.join(folder, "none")}, 'none": no such file or directory'),
        ({}, "temperature must be at least 0"),
    ):
        try:
            answers(rows, **fields)
        except Exception as err:
            assert want in str(err), err
        else:
            raise AssertionError(f"no error with {want}")


def ranks():
    """The ranks of an engine are actors on two nodes, or processes of the actor."""
    rows = ray.data.from_items([{"id": i, "messages": MESSAGES} for i in range(20)])
    for engine, fields in (
        (
            {"distributed_executor_backend": "ray"},
            {"placement_group_config": {"bundle_per_worker": {"GPU": 1}}},
        ),
        ({}, {"placement_group_config": {"bundles": [{"CPU": 1}, {"GPU": 1}]}}),
    ):
        engine = {**ENGINE, **engine, "tensor_parallel_size": 2}
        got = answers(
            rows,
            lambda row: {"sampling_params": GREEDY},
            lambda row: {"id": row["id"], "text": row["generated_text"]},
            engine_kwargs=engine,
            **fields,
        )
        assert all(row["text"] == ANSWER for row in got.values()), got


def kept(count=400):
    """Rows that are answered one after the other, and kept."""
    rows = ray.data.range(count, override_num_blocks=4)
    got = answers(
        rows,
        lambda row: {
            "messages": MESSAGES,
            "sampling_params": {**GREEDY, "max_tokens": 100, "ignore_eos": True},
        },
        lambda row: {"id": row["id"], "count": row["num_generated_tokens"], "pid": os.getpid()},
        engine_kwargs={**ENGINE, "max_num_seqs": 4},
        batch_size=8,
        concurrency=2,
        checkpoint_path=folder,
    )
    assert all(row["count"] == 100 for row in got.values())
    lines = [line for name in os.listdir(folder) for line in open(os.path.join(folder, name))]
    ids = [json.loads(line)["id"] for line in lines if line.endswith("\n")]
    assert len(ids) == len(set(ids)) == count, f"{len(ids)} answers, {len(set(ids))} rows"


def many():
    """More rows than anybody waits for."""
    kept(100000)


begun = time.time()
{f.__name__: f for f in (kinds, fewer, embeddings, scores, shown, refused, ranks, kept, many)}[
    case
]()
print(f"{case}: {time.time() - begun:.1f} s")
