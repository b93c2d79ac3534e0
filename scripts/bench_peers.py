"""Makes the models of bench-peers.sh and measures engines on them."""

import argparse
import functools
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import gguf
import numpy as np

HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD, INNER, VOCAB = 1024, 28, 16, 8, 128, 3072, 151936
CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_act": "silu",
    "hidden_size": HIDDEN,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD,
    "intermediate_size": INNER,
    "vocab_size": VOCAB,
    "max_position_embeddings": 40960,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
}

# The tensors: names of transformers and of llama.cpp, rows, columns; 0 rows are of a norm.
TENSORS = [
    ("model.embed_tokens", "token_embd", VOCAB, HIDDEN),
    ("model.norm", "output_norm", 0, HIDDEN),
]
for n in range(LAYERS):
    for theirs, ours, rows, columns in [
        ("input_layernorm", "attn_norm", 0, HIDDEN),
        ("self_attn.q_proj", "attn_q", HEADS * HEAD, HIDDEN),
        ("self_attn.k_proj", "attn_k", KV_HEADS * HEAD, HIDDEN),
        ("self_attn.v_proj", "attn_v", KV_HEADS * HEAD, HIDDEN),
        ("self_attn.q_norm", "attn_q_norm", 0, HEAD),
        ("self_attn.k_norm", "attn_k_norm", 0, HEAD),
        ("self_attn.o_proj", "attn_output", HIDDEN, HEADS * HEAD),
        ("post_attention_layernorm", "ffn_norm", 0, HIDDEN),
        ("mlp.gate_proj", "ffn_gate", INNER, HIDDEN),
        ("mlp.up_proj", "ffn_up", INNER, HIDDEN),
        ("mlp.down_proj", "ffn_down", HIDDEN, INNER),
    ]:
        TENSORS.append((f"model.layers.{n}.{theirs}", f"blk.{n}.{ours}", rows, columns))

# What is measured: requests at once, tokens in, tokens out. A prefill has one token out.
COLUMNS = {
    "decode": (1, 32, 33),
    "16 streams": (16, 32, 33),
    "prefill 512": (1, 512, 1),
    "prefill 2048": (1, 2048, 1),
    "decode at 4k": (1, 4096, 17),
}
# Minutes each, so they are measured where --columns names them.
LONG = {"prefill 8192": (1, 8192, 1), "decode at 16k": (1, 16384, 17)}
SHAPES = COLUMNS | LONG
TYPES = {"bf16": None, "q8_0": "Q8_0", "q4_0": "Q4_0", "q4_k_m": "Q4_K_M"}
# What OpenVINO has of the same width.
OPENVINO = {"bf16": "bf16", "q8_0": "int8", "q4_0": "int4"}


def numbers(block: np.ndarray, rows: int, columns: int, number: int) -> np.ndarray:
    """Random bfloat16 numbers as bytes, others for each tensor: a block from a place on."""
    if rows == 0:
        return np.full(columns, 0x3F80, np.uint16)
    return np.resize(np.roll(block, 7919 * number), rows * columns).reshape(rows, columns)


def make_models(folder: Path) -> None:
    """Writes the checkpoint and the same numbers as GGUF."""
    block = np.random.default_rng(0).normal(0, 0.02, (1 << 22) + 1).astype(np.float32)
    block = (block.view(np.uint32) >> 16).astype(np.uint16)
    checkpoint = folder / "qwen3-0.6b"
    checkpoint.mkdir(parents=True, exist_ok=True)
    (checkpoint / "config.json").write_text(json.dumps(CONFIG))
    header, at = {}, 0
    for name, _, rows, columns in TENSORS:
        size = 2 * max(rows, 1) * columns
        shape = [rows, columns] if rows else [columns]
        header[name + ".weight"] = {
            "dtype": "BF16",
            "shape": shape,
            "data_offsets": [at, at + size],
        }
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(checkpoint / "model.safetensors.part", "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text)
        for i, (_, _, rows, columns) in enumerate(TENSORS):
            f.write(numbers(block, rows, columns, i).tobytes())
    w = gguf.GGUFWriter(folder / "bf16.gguf.part", "qwen3")
    w.add_context_length(CONFIG["max_position_embeddings"])
    w.add_embedding_length(HIDDEN)
    w.add_block_count(LAYERS)
    w.add_feed_forward_length(INNER)
    w.add_head_count(HEADS)
    w.add_head_count_kv(KV_HEADS)
    w.add_key_length(HEAD)
    w.add_value_length(HEAD)
    w.add_rope_freq_base(CONFIG["rope_theta"])
    w.add_layer_norm_rms_eps(CONFIG["rms_norm_eps"])
    w.add_vocab_size(VOCAB)
    w.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    w.add_tokenizer_model("none")
    for i, (_, name, rows, columns) in enumerate(TENSORS):
        data = numbers(block, rows, columns, i)
        if rows == 0:
            w.add_tensor(name + ".weight", np.ones(columns, np.float32))
        else:
            w.add_tensor(
                name + ".weight", data.view(np.uint8), raw_dtype=gguf.GGMLQuantizationType.BF16
            )
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    (folder / "bf16.gguf.part").rename(folder / "bf16.gguf")
    (checkpoint / "model.safetensors.part").rename(checkpoint / "model.safetensors")


def run(*command: str | Path) -> str:
    """The output of a command; its errors end the script."""
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(
            f"{' '.join(map(str, command))}: exit code {done.returncode}\n{done.stderr[-2000:]}"
        )
    return done.stdout


def ours(model: Path, threads: int, column: str, bandwidths: list[float]) -> float:
    """Tokens a second of this program."""
    batch, tokens_in, tokens_out = SHAPES[column]
    with tempfile.NamedTemporaryFile(suffix=".json") as f:
        run(
            "bin/eagleray",
            "bench",
            "latency",
            model,
            "--skip-tokenizer-init",
            "--cpu-threads",
            threads,
            "--batch-size",
            batch,
            "--input-len",
            tokens_in,
            "--output-len",
            tokens_out,
            "--num-iters-warmup",
            1,
            "--num-iters",
            2,
            "--max-model-len",
            17408,
            "--max-num-batched-tokens",
            2048,
            "--kv-cache-memory-bytes",
            "2G",
            "--output-json",
            f.name,
        )
        r = json.load(open(f.name))
    bandwidths += r["read_bytes_per_second_beside"]
    if tokens_out == 1:
        return tokens_in / min(r["latencies"])
    return batch * 1000 / r["decode_step_ms"]


def llama(programs: Path, model: Path, threads: int, column: str) -> float:
    """Tokens a second of llama.cpp, whose weights lie in huge pages where it can have them so."""
    batch, tokens_in, tokens_out = SHAPES[column]
    if batch > 1:
        out = run(
            programs / "llama-batched-bench",
            "-m",
            model,
            "-t",
            threads,
            "-c",
            4096,
            "-npp",
            tokens_in,
            "-ntg",
            tokens_out - 1,
            "-npl",
            batch,
            "--output-format",
            "jsonl",
        )
        return next(json.loads(line) for line in out.splitlines() if line.startswith("{"))[
            "speed_tg"
        ]
    what = ["-p", tokens_in, "-n", 0] if tokens_out == 1 else ["-p", 0, "-n", tokens_out - 1]
    if tokens_in > 32 and tokens_out > 1:
        what += ["-d", tokens_in]
    out = run(
        programs / "llama-bench",
        "-m",
        model,
        "-t",
        threads,
        "-r",
        2,
        "-lm",
        "none",
        "-o",
        "json",
        *what,
    )
    return max(json.loads(out)[0]["samples_ts"])


def openvino(python: Path, model: Path, threads: int, column: str) -> float:
    """Tokens a second of OpenVINO."""
    script = Path(__file__).with_name("bench_openvino.py")
    out = run(python, script, model, "--threads", threads, "--shape", *SHAPES[column])
    return float(out.splitlines()[-1])


@functools.cache
def vllm_process(python: Path, model: Path, threads: int) -> subprocess.Popen[str]:
    """vLLM, which ends with this process."""
    script = Path(__file__).with_name("bench_vllm.py")
    return subprocess.Popen(
        [python, script, model, "--threads", str(threads)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def vllm(python: Path, model: Path, threads: int, column: str) -> float:
    """Tokens a second of vLLM, whose first answer comes after minutes where it compiles."""
    process = vllm_process(python, model, threads)
    print(*SHAPES[column], file=process.stdin, flush=True)
    answer = process.stdout.readline()
    if not answer:
        sys.exit(f"bench_vllm.py: exit code {process.wait()}")
    return float(answer)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--llama", type=Path)
    parser.add_argument("--openvino", type=Path, help="the Python that has it")
    parser.add_argument("--vllm", type=Path, help="the Python that has it")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--types", default=",".join(TYPES))
    parser.add_argument("--columns", default=",".join(COLUMNS))
    parser.add_argument("--output-json", type=Path)
    args = parser.parse_args()
    types, columns = args.types.split(","), args.columns.split(",")
    for name, values, known in (("types", types, TYPES), ("columns", columns, SHAPES)):
        for v in values:
            if v not in known:
                parser.error(f"--{name} {v!r} is not one of {', '.join(known)}")
    if not (args.models / "qwen3-0.6b/model.safetensors").exists():
        make_models(args.models)
    # glibc then asks for huge pages for what it maps.
    os.environ["GLIBC_TUNABLES"] = "glibc.malloc.hugetlb=1"
    engines = {}
    for t in types:
        file = args.models / f"{t}.gguf"
        if not file.exists() and args.llama:
            run(args.llama / "llama-quantize", args.models / "bf16.gguf", file, TYPES[t])
        if not file.exists():
            print(f"{t} is left out: llama-quantize makes its file", file=sys.stderr)
            continue
        path = args.models / "qwen3-0.6b" if t == "bf16" else file
        engines[f"eagleray {t}"] = lambda c, m=path: ours(m, args.threads, c, bandwidths)
        if args.llama:
            engines[f"llama.cpp {t}"] = lambda c, m=file: llama(args.llama, m, args.threads, c)
        if args.openvino and t in OPENVINO:
            kind = OPENVINO[t]
            model = args.models / f"openvino-{kind}"
            if not model.exists():
                script = Path(__file__).with_name("bench_openvino.py")
                run(args.openvino, script, model, "--export", args.models / "qwen3-0.6b", kind)
            engines[f"openvino {kind}"] = lambda c, m=model: openvino(
                args.openvino, m, args.threads, c
            )
        if args.vllm and t == "bf16":
            engines["vllm bf16"] = lambda c, m=path: vllm(args.vllm, m, args.threads, c)
    bandwidths: list[float] = []
    figures = {name: {c: [] for c in columns} for name in engines}
    for n in range(args.rounds):
        for c in columns:
            for name, measure in engines.items():
                figures[name][c].append(measure(c))
                print(
                    f"round {n + 1}: {name}, {c}: {figures[name][c][-1]:.1f} tokens/s",
                    file=sys.stderr,
                )
    medians = {
        name: {c: statistics.median(v) for c, v in row.items()} for name, row in figures.items()
    }
    print(
        f"tokens/s, {args.threads} threads, medians of {args.rounds} rounds; beside them "
        f"{statistics.median(bandwidths) / 1e9:.1f} GB/s are read "
        f"({min(bandwidths) / 1e9:.1f} to {max(bandwidths) / 1e9:.1f})"
    )
    print("".join(f"{c:>16}" for c in ["", *columns]))
    for name, row in medians.items():
        print(f"{name:>16}" + "".join(f"{row[c]:16.1f}" for c in columns))
    if args.output_json:
        args.output_json.write_text(
            json.dumps(
                {
                    "threads": args.threads,
                    "rounds": figures,
                    "medians": medians,
                    "read_bytes_per_second": statistics.median(bandwidths),
                },
                indent=4,
            )
            + "\n"
        )


if __name__ == "__main__":
    main()
