"""Requests that run while an application is disturbed: none is lost."""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import http.client
import json
import threading
import time
from typing import Any, Callable, Optional

from ray import serve

from tests.ray_serve.cluster import Cluster, PATIENCE, PROMPT, model, without_names


class Lost(Cluster):
    """No request is lost, and no stream is cut, while replicas come and go.

    What clients get is, but for the names of a stream, what they get of undisturbed replicas.
    """

    # What streams ask for: a long one is more often about to be answered.
    ASKED: tuple[dict[str, Any], ...] = (
        {"temperature": 0, "max_tokens": 64},
        {"temperature": 1, "seed": 7, "n": 2, "logprobs": 1, "max_tokens": 200},
    )

    def disturb(
        self,
        what: str,
        act: Callable[[dict[str, Any]], None],
        args: Optional[dict[str, Any]] = None,
        replicas: int = 2,
        ingresses: int = 1,
        errors: bool = False,
    ) -> None:
        """Ask while something is done to an application, given its arguments.

        ``errors`` says that requests may end with one.
        """
        args = args or {"llm_configs": [model("lost", num_replicas=2)]}
        self.begin(args, ingresses, replicas)
        self.scaled(replicas)
        self.lock, self.begun, self.disturbed = threading.Lock(), 0, 0
        self.longest, self.answered, self.asked = 0.0, 0, dict[int, float]()
        self.want = [self.stream(fields)[1] for fields in self.ASKED]
        answers = self.under_load(lambda: act(args))
        count = collections.Counter(kind for kind, _ in answers)
        print(f"{what}: {len(answers)} requests, {dict(count)}", flush=True)
        wrong = [a for a in answers if a[0] not in ("whole", "stream")]
        if wrong:
            print([(kind, text[-200:]) for kind, text in wrong], flush=True)
        self.assertEqual([a for a in wrong if not errors or a[0] != "lost"], [])
        self.assertGreater(len(answers) - len(wrong), 0)
        self.assertEqual(len({text for kind, text in answers if kind == "whole"}), 1)
        serve.delete("lost")

    def begin(self, args: dict[str, Any], ingresses: int, replicas: int) -> None:
        self.put("lost", args, ingresses, lost=replicas)

    def scaled(self, replicas: int) -> None:
        self.eventually(f"{replicas} replicas", lambda: self.running() == replicas)

    def running(self) -> int:
        found = serve.status().applications.get("lost")
        return self.replicas(":lost", "lost") if found and found.deployments else 0

    def under_load(self, act: Callable[[], None]) -> list[tuple[str, Any]]:
        """Return what became of the requests that were asked meanwhile."""
        done = threading.Event()
        with concurrent.futures.ThreadPoolExecutor(6) as pool:
            asks = [self.whole, self.whole, *[self.same_stream] * 4]
            clients = [pool.submit(self.client, ask, done) for ask in asks]
            try:
                act()
            finally:
                done.set()
            return [a for c in clients for a in c.result(PATIENCE)]

    def client(
        self, ask: Callable[[int], tuple[str, Any]], done: threading.Event
    ) -> list[tuple[str, Any]]:
        answers: list[tuple[str, Any]] = []
        while not done.is_set():
            at = time.monotonic()
            with self.lock:
                self.asked[threading.get_ident()] = at
            answers.append(ask(len(answers)))
            with self.lock:
                self.longest = max(self.longest, time.monotonic() - at)
                self.answered += 1
        return answers

    def waited(self) -> float:
        """Return for how long the oldest request has been waiting."""
        with self.lock:
            return time.monotonic() - min(self.asked.values())

    def whole(self, _: int) -> tuple[str, Any]:
        try:
            fields = {"model": "lost", "prompt": PROMPT, "max_tokens": 64, "temperature": 0}
            fields["ignore_eos"] = True
            status, answer = self.fetch("/lost/v1/completions", fields)
        except (OSError, http.client.HTTPException) as e:
            return "lost", repr(e)
        if status != 200:
            return "lost", f"{status} {answer!r}"
        return "whole", json.loads(answer)["choices"][0]["text"]

    def same_stream(self, n: int) -> tuple[str, Any]:
        """Ask for a stream, and compare it with an undisturbed one."""
        n %= len(self.ASKED)
        try:
            kind, got = self.stream(self.ASKED[n])
        except (OSError, http.client.HTTPException) as e:
            return "lost", repr(e)
        if kind == "stream" and got == self.want[n]:
            return "stream", None
        return ("different" if kind == "stream" else kind), got

    def stream(self, fields: dict[str, Any]) -> tuple[str, Any]:
        fields = {"model": "lost", "prompt": PROMPT, "stream": True, "ignore_eos": True, **fields}
        with contextlib.closing(self.send("/lost/v1/completions", fields)) as connection:
            answer = connection.getresponse()
            if answer.status != 200:
                return "lost", f"{answer.status} {answer.read()!r}"
            body = answer.readline()
            with self.lock:
                self.begun += 1
            try:
                body += answer.read()
            finally:
                with self.lock:
                    self.begun -= 1
        if b'"error"' in body or not body.endswith(b"data: [DONE]\n\n"):
            return "cut", body[-500:]
        return "stream", without_names(body)
