"""Another job on the cluster: python observer.py ADDRESS NODE_IP NAMESPACE.

It sees what the engines under test leave there, makes the placement groups that they adopt, and
holds what they want. Each line of standard input is a request {"op", ...}, answered by one line
{"result"} or {"error"}. At the end of standard input it ends, and Ray takes its groups and actors
away.
"""

import ctypes
import json
import os
import signal
import subprocess
import sys
import time

import ray
from ray._private.state import actors as all_actors
from ray.util.placement_group import (
    PlacementGroup,
    placement_group,
    placement_group_table,
    remove_placement_group,
)
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

# Ray prints where it likes; answers go to the first standard output.
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)

hosts = {}


class EngineHost:
    """An actor with an engine as its child, as a serving system on Ray would have."""

    def __init__(self, argv, env):
        context = ray.get_runtime_context()
        env = {
            "EAGLERAY_RAY_ADDRESS": context.gcs_address,
            "EAGLERAY_RAY_NAMESPACE": context.namespace,
            "EAGLERAY_RAY_PLACEMENT_GROUP": ray.util.get_current_placement_group().id.hex(),
            "EAGLERAY_NODE_IP": ray.util.get_node_ip_address(),
            **env,
        }
        self.child = subprocess.Popen(
            argv,
            env={**os.environ, **env},
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # Ray 2.35 leaves children of an actor that is killed: the kernel must end this one
            # (PR_SET_PDEATHSIG).
            preexec_fn=lambda: ctypes.CDLL(None).prctl(1, signal.SIGKILL),
        )

    def lines(self, until):
        """The child's log up to a line with the text, or to its end."""
        out = []
        for line in self.child.stderr:
            out.append(line.rstrip())
            if until in line:
                break
        return {
            "lines": out,
            "pid": self.child.pid,
            "actor": os.getpid(),
            "node": ray.util.get_node_ip_address(),
        }


def group_of(number):
    return PlacementGroup(ray.PlacementGroupID(bytes.fromhex(number)))


def group(bundles, name="", strategy="PACK"):
    made = placement_group(bundles, strategy=strategy, name=name)
    if not made.wait(60):
        raise RuntimeError("no place for the group: " + str(ray.available_resources()))
    return made.id.hex()


def remove(id):
    remove_placement_group(group_of(id))


def groups():
    return [
        {
            "id": number,
            "name": row["name"],
            "state": row["state"],
            "nodes": [row["bundles_to_node_id"].get(i, "") for i in sorted(row["bundles"])],
        }
        for number, row in placement_group_table().items()
    ]


def actors():
    return [
        {"name": a["Name"], "state": a["State"], "pid": a.get("Pid") or a["Address"].get("Pid", 0)}
        for a in all_actors().values()
    ]


def nodes():
    return {n["NodeID"]: n["NodeManagerAddress"] for n in ray.nodes() if n["Alive"]}


def kill(name, namespace):
    ray.kill(ray.get_actor(name, namespace=namespace))


def host(group, bundle, argv, env):
    where = PlacementGroupSchedulingStrategy(group_of(group), placement_group_bundle_index=bundle)
    name = f"host{len(hosts)}-{time.time()}"
    hosts[name] = (
        ray.remote(EngineHost).options(num_cpus=0, scheduling_strategy=where).remote(argv, env)
    )
    return name


def host_lines(name, until):
    return ray.get(hosts[name].lines.remote(until), timeout=60)


def host_end(name):
    ray.kill(hosts.pop(name))


operations = {
    f.__name__: f for f in (group, remove, groups, actors, nodes, kill, host, host_lines, host_end)
}


def main():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    address, node_ip, namespace = sys.argv[1:]
    ray.init(
        address,
        namespace=namespace,
        _node_ip_address=node_ip,
        log_to_driver=False,
        logging_level="warning",
    )
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = {"result": operations[request.pop("op")](**request)}
        except Exception as e:
            answer = {"error": f"{type(e).__name__}: {e}"}
        print(json.dumps(answer), file=answers, flush=True)
    os._exit(0)


main()
