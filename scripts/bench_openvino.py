"""Makes and measures OpenVINO's models for bench_peers.py, in the environment that has OpenVINO."""

import argparse
import time
from pathlib import Path

import numpy as np


def export(checkpoint: Path, model: Path, kind: str) -> None:
    """Writes a checkpoint as OpenVINO has it, in bfloat16, int8 per channel or int4 by 32."""
    from optimum.intel import OVModelForCausalLM, OVWeightQuantizationConfig

    config = {
        "bf16": None,
        "int8": OVWeightQuantizationConfig(bits=8),
        "int4": OVWeightQuantizationConfig(bits=4, sym=True, group_size=32, ratio=1.0),
    }[kind]
    part = model.with_suffix(".part")
    OVModelForCausalLM.from_pretrained(
        checkpoint, export=True, compile=False, load_in_8bit=False, quantization_config=config
    ).save_pretrained(part)
    part.rename(model)


def measure(model: Path, threads: int, batch: int, tokens_in: int, tokens_out: int) -> float:
    """Tokens a second of the prefill where one token comes out, else of the steps after it."""
    import openvino

    compiled = openvino.Core().compile_model(
        model / "openvino_model.xml",
        "CPU",
        {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY"},
    )
    request = compiled.create_infer_request()
    prompt = np.random.default_rng(1).integers(0, 150000, (batch, tokens_in)).astype(np.int64)
    best = 0.0
    for _ in range(3):
        request.reset_state()
        ids, at = prompt, 0
        for n in range(tokens_out):
            start = time.perf_counter()
            if n == 1:
                decoding = start
            request.infer(
                {
                    "input_ids": ids,
                    "attention_mask": np.ones((batch, at + ids.shape[1]), np.int64),
                    "position_ids": np.tile(np.arange(at, at + ids.shape[1]), (batch, 1)),
                    "beam_idx": np.arange(batch, dtype=np.int32),
                }
            )
            at += ids.shape[1]
            ids = request.get_output_tensor(0).data[:, -1:, :].argmax(-1)
        end = time.perf_counter()
        if tokens_out == 1:
            best = max(best, batch * tokens_in / (end - start))
        else:
            best = max(best, batch * (tokens_out - 1) / (end - decoding))
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--export", nargs=2, metavar=("CHECKPOINT", "KIND"))
    parser.add_argument("--threads", type=int)
    parser.add_argument("--shape", type=int, nargs=3, metavar=("BATCH", "IN", "OUT"))
    args = parser.parse_args()
    if args.export:
        export(Path(args.export[0]), args.model, args.export[1])
    else:
        print(measure(args.model, args.threads, *args.shape))


if __name__ == "__main__":
    main()
