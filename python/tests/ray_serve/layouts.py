"""Ranks over nodes, in the placement group of their replica."""

from __future__ import annotations

from typing import Any

import ray
from ray import serve
from ray.util.state import list_actors

from tests.ray_serve.cluster import Cluster, engines, model


def live_groups() -> dict[str, Any]:
    """Return placement groups that are not removed, by id."""
    table = ray.util.placement_group_table()
    return {n: g for n, g in table.items() if g["state"] != "REMOVED"}


def rank_groups() -> list[str]:
    """Return the placement group of each rank's actor."""
    actors = list_actors(filters=[("state", "=", "ALIVE")], detail=True, limit=1000)
    return [a.placement_group_id for a in actors if (a.name or "").startswith("eagleray_")]


class Layouts(Cluster):
    """Ranks over nodes, in the replica's placement group."""

    def test_group_is_adopted(self) -> None:
        group = {"bundle_per_worker": {"GPU": 1}, "strategy": "SPREAD"}
        engine = {
            "tensor_parallel_size": 2,
            "pipeline_parallel_size": 2,
            "distributed_executor_backend": "ray",
            "ray_device_key": "GPU",
        }
        spread = {**model("spread", engine), "placement_group_config": group}
        before = live_groups()
        self.deploy(spread, model("alone"), name="layouts")
        text = self.completion("alone", "layouts")[1]["choices"][0]["text"]
        self.assertEqual(self.completion("spread", "layouts")[1]["choices"][0]["text"], text)
        ((number, found),) = [(n, g) for n, g in live_groups().items() if n not in before]
        self.assertEqual(rank_groups(), [number] * 4)
        # The replica's own bundle, and one for each rank.
        self.assertEqual(len(found["bundles"]), 5)
        nodes = {n for i, n in found["bundles_to_node_id"].items() if i != 0}
        self.assertGreater(len(nodes), 1)
        serve.delete("layouts")
        self.eventually("the end of the engines", lambda: not engines("spread"))
        self.eventually("the end of the group", lambda: set(live_groups()) <= set(before))
