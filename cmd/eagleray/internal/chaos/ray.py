"""Takes actors and placement groups from the engine under test: python ray.py ADDRESS NODE_IP.

Each line of standard input is a request {"op", "pid"}, about the engine that has an actor in the
process, and is answered by one line {"error"}, which is empty when all went well.
"""

import json
import os
import sys

import ray
from ray._private.state import actors
from ray.util.placement_group import PlacementGroup, placement_group_table, remove_placement_group

# Ray prints where it likes; answers go to the first standard output.
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)


def name_of(pid):
    for a in actors().values():
        if a["State"] == "ALIVE" and (a.get("Pid") or a["Address"].get("Pid", 0)) == pid:
            return a["Name"]
    raise ValueError(f"process {pid} has no actor")


def kill(pid):
    """Ends the actor as ray.kill does."""
    name = name_of(pid)
    for a in ray.util.list_named_actors(all_namespaces=True):
        if a["name"] == name:
            ray.kill(ray.get_actor(name, namespace=a["namespace"]))
            return
    raise ValueError(f"no actor {name}")


def remove(pid):
    """Removes the placement group of the actor's engine."""
    engine = name_of(pid).rpartition("_r")[0]
    for number, row in placement_group_table().items():
        if row["name"].startswith(engine) and row["state"] == "CREATED":
            remove_placement_group(PlacementGroup(ray.PlacementGroupID(bytes.fromhex(number))))
            return
    raise ValueError(f"no placement group of {engine}")


def main():
    address, node_ip = sys.argv[1:]
    ray.init(
        address,
        **({"_node_ip_address": node_ip} if node_ip else {}),
        log_to_driver=False,
        logging_level="warning",
    )
    for line in sys.stdin:
        request = json.loads(line)
        error = ""
        try:
            {"kill": kill, "remove": remove}[request["op"]](request["pid"])
        except Exception as e:
            error = f"{type(e).__name__}: {e}"
        print(json.dumps({"error": error}), file=answers, flush=True)
    os._exit(0)


main()
