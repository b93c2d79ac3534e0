"""Servers of one model that a benchmark asks in turn."""

import argparse
import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from typing import Any


def call(url: str, body: dict[str, Any] | None = None) -> bytes:
    """Send a JSON object, or ask for a page."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=1800) as answer:
        return bytes(answer.read())


class Server:
    """A server with flags of its own."""

    def __init__(self, options: argparse.Namespace, port: int, flags: list[str]) -> None:
        """Start it, and wait until it serves."""
        self.url = f"http://127.0.0.1:{port}"
        command = [options.program, "serve", options.model, "--host", "127.0.0.1"]
        command += ["--port", str(port), *flags, *options.flags]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        while True:
            try:
                call(self.url + "/health")
                return
            except (urllib.error.URLError, ConnectionError):
                if self.process.poll() is not None:
                    sys.exit("the server has ended")
                time.sleep(0.2)
