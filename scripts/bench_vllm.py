"""Measures vLLM's CPU build for bench_peers.py, in the environment that has it.

Reads shapes, BATCH IN OUT, a line each, and answers with the tokens a second of each: starting
takes a minute or more, so one process measures all of them, and idles between.
"""

import argparse
import os
import sys
import time
from pathlib import Path

import numpy as np


def environment(threads: int) -> dict[str, str]:
    """What libraries read at their start. tcmalloc, which vLLM advises, takes no huge pages."""
    cores = ",".join(map(str, sorted(os.sched_getaffinity(0))[:threads]))
    return {
        # As vLLM sets it for the processes of its server; here all is one process.
        "LD_PRELOAD": f"{sys.prefix}/lib/libiomp5.so",
        "OMP_NUM_THREADS": str(threads),
        "KMP_AFFINITY": f"granularity=fine,explicit,proclist=[{cores}]",
        "KMP_BLOCKTIME": "5",
        "KMP_TPAUSE": "0",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        # On CPUs vLLM 0.32 cannot load what it compiled ahead of time; PyTorch's own cache works.
        "VLLM_USE_AOT_COMPILE": "0",
        "TORCHINDUCTOR_CACHE_DIR": f"{sys.prefix}/cache",
        "VLLM_CACHE_ROOT": f"{sys.prefix}/cache/vllm",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_NO_USAGE_STATS": "1",
        "PYTHONWARNINGS": "ignore",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--threads", type=int, required=True)
    args = parser.parse_args()
    wanted = environment(args.threads)
    if os.environ.get("LD_PRELOAD") != wanted["LD_PRELOAD"]:
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | wanted)
    # Libraries write to the standard output too.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    from vllm import LLM, SamplingParams

    llm = LLM(
        str(args.model),
        dtype="bfloat16",
        skip_tokenizer_init=True,
        max_model_len=17408,
        max_num_batched_tokens=2048,
        kv_cache_memory_bytes=2 << 30,
        enable_prefix_caching=False,
        disable_log_stats=False,
        use_tqdm_on_load=False,
    )

    def measure(batch: int, tokens_in: int, tokens_out: int) -> float:
        """Tokens a second of the prefill where one token comes out, else of the steps after it."""
        ids = np.random.default_rng(1).integers(0, 150000, (batch, tokens_in)).tolist()
        prompts = [{"prompt_token_ids": row} for row in ids]
        sampling = SamplingParams(
            temperature=0, max_tokens=tokens_out, ignore_eos=True, detokenize=False
        )
        best = 0.0
        for _ in range(3):
            start = time.perf_counter()
            outputs = llm.generate(prompts, sampling, use_tqdm=False)
            end = time.perf_counter()
            if tokens_out == 1:
                best = max(best, batch * tokens_in / (end - start))
            else:
                # The scheduler's clock: all requests start in one step and end in one.
                first = max(o.metrics.first_token_ts for o in outputs)
                last = max(o.metrics.last_token_ts for o in outputs)
                best = max(best, batch * (tokens_out - 1) / (last - first))
        return best

    for line in sys.stdin:
        print(measure(*map(int, line.split())), file=answers, flush=True)


if __name__ == "__main__":
    main()
