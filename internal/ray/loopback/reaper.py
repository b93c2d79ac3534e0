"""Keeps the processes of a test cluster: python reaper.py DIR.

Everything that is started here, daemons included, stays a descendant of this process
(PR_SET_CHILD_SUBREAPER), so nothing has to be found by its name. Each line of standard input is a
command {"argv", "env"}, answered by one line {"code", "output"}. At the end of standard input,
which also comes when the test is killed, all descendants are killed and DIR is removed.
"""

import ctypes
import json
import os
import select
import shutil
import signal
import sys
import tempfile
import time

PR_SET_CHILD_SUBREAPER = 36


def reap(status):
    """Collects ended children, orphans that came to us among them."""
    while True:
        try:
            pid, code = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        status[pid] = os.waitstatus_to_exitcode(code)


def run(command):
    with tempfile.TemporaryFile() as output:
        fds = [(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)]
        fds += [(os.POSIX_SPAWN_DUP2, output.fileno(), fd) for fd in (1, 2)]
        argv = command["argv"]
        pid = os.posix_spawn(argv[0], argv, command["env"], file_actions=fds)
        status = {}
        while pid not in status:
            reap(status)
            time.sleep(0.02)
        output.seek(0)
        return {"code": status[pid], "output": output.read().decode(errors="replace")}


def descendants():
    parents = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat") as f:
                    fields = f.read().rpartition(")")[2].split()
            except OSError:
                continue
            parents.setdefault(int(fields[1]), []).append(int(name))
    found, todo = [], [os.getpid()]
    while todo:
        children = parents.get(todo.pop(), [])
        found += children
        todo += children
    return found


def serve():
    """Runs commands until no more can come, or nobody reads the answers."""
    lines = b""
    while True:
        reap({})
        if not select.select([0], [], [], 0.2)[0]:
            continue
        part = os.read(0, 1 << 16)
        if not part:
            return
        lines += part
        while b"\n" in lines:
            line, lines = lines.split(b"\n", 1)
            answer = json.dumps(run(json.loads(line))) + "\n"
            try:
                os.write(1, answer.encode())
            except BrokenPipeError:
                return


def main():
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    serve()
    while left := descendants():
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        reap({})
        time.sleep(0.01)
    shutil.rmtree(sys.argv[1], ignore_errors=True)


main()
