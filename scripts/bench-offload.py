#!/usr/bin/env python3
"""Time to the first token of a prompt: computed, or come back from files (--kv-offloading-size).

Three servers of one model take turns, in an order drawn for each round: one without files, one with
files in memory, one with files in a folder. Each prompt is new; the other two have computed it
before and lost it from their caches. All must give the same log-probabilities.

  scripts/bench-offload.py --program bin/eagleray --model DIR [--rounds 6] [--tokens 4096]
                           [--folder DIR] [--cold] [-- SERVE FLAGS]

DIR may have a config.json only, with `-- --load-format dummy --skip-tokenizer-init`. --cold has the
kernel forget the files of the folder first, as far as it does.
"""

import argparse
import json
import os
import pathlib
import random
import statistics
import sys
import tempfile
import time

import turns


class Server(turns.Server):
    """A server with files in a folder, or without."""

    def __init__(self, options: argparse.Namespace, port: int, folder: str) -> None:
        """Start it, and wait until it serves."""
        self.folder = folder
        files = ["--kv-offloading-size", "8", "--kv-offloading-dir", folder] if folder else []
        super().__init__(options, port, ["--enable-rlhf", *files])

    def first_token(self, prompt: list[int]) -> tuple[float, str]:
        """Return the time to the first token of a prompt, and its log-probability."""
        body = {"prompt": prompt, "max_tokens": 1, "temperature": 0, "logprobs": 1}
        began = time.perf_counter()
        answer = json.loads(turns.call(self.url + "/v1/completions", body))
        took = time.perf_counter() - began
        return took, json.dumps(answer["choices"][0]["logprobs"]["token_logprobs"])

    def forget(self, blocks: int) -> None:
        """Empty the cache, once the files of so many more blocks are there."""
        while self.folder and len(list(pathlib.Path(self.folder).glob("*.kv"))) < blocks:
            time.sleep(0.1)
        turns.call(self.url + "/reset_prefix_cache", {})


def drop(folder: str) -> None:
    """Have the kernel forget what it has read of the files."""
    for path in pathlib.Path(folder).glob("*.kv"):
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def main() -> None:
    """Run the rounds."""
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--program", default="bin/eagleray")
    p.add_argument("--model", required=True)
    p.add_argument("--rounds", type=int, default=6)
    p.add_argument("--tokens", type=int, default=4096)
    p.add_argument("--vocabulary", type=int, default=150000)
    p.add_argument("--folder", default="")
    p.add_argument("--port", type=int, default=8400)
    p.add_argument("--cold", action="store_true")
    p.add_argument("flags", nargs="*")
    options = p.parse_args()
    rng = random.Random(1)
    with (
        tempfile.TemporaryDirectory(dir="/dev/shm") as memory,
        tempfile.TemporaryDirectory(dir=options.folder or None) as disk,
    ):
        folders = {"computed": "", "memory": memory, "folder": disk}
        servers: dict[str, Server] = {}
        try:
            for i, (way, folder) in enumerate(folders.items()):
                servers[way] = Server(options, options.port + i, folder)
            run(options, servers, rng)
        finally:
            for server in servers.values():
                server.process.terminate()
                server.process.wait()


def run(options: argparse.Namespace, servers: dict[str, Server], rng: random.Random) -> None:
    """Run the rounds on servers."""
    times: dict[str, list[float]] = {way: [] for way in servers}
    for i in range(options.rounds):
        prompt = [rng.randrange(1000, options.vocabulary) for _ in range(options.tokens)]
        answers = set()
        for server in servers.values():
            if server.folder:
                answers.add(server.first_token(prompt)[1])
            server.forget((i + 1) * (options.tokens // 16))
        if options.cold:
            drop(servers["folder"].folder)
        for way in rng.sample(list(servers), len(servers)):
            took, answer = servers[way].first_token(prompt)
            times[way].append(took)
            answers.add(answer)
        if len(answers) > 1:
            sys.exit(f"round {i}: answers differ: {answers}")
        print(i, {way: round(t[-1], 3) for way, t in times.items()}, flush=True)
    computed = statistics.median(times["computed"])
    for way, t in times.items():
        ratio = statistics.median(c / own for c, own in zip(times["computed"], t, strict=True))
        print(f"{way}: {statistics.median(t):.3f} s, {ratio:.1f} times as fast in a round")
    print(f"of {computed:.3f} s")


if __name__ == "__main__":
    main()
