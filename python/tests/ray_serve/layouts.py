"""Ranks over nodes, in the placement group of their replica."""

from __future__ import annotations

import pathlib
import tempfile
from typing import Any

import ray
from ray import serve
from ray.util.state import list_actors

from tests.ray_serve.cluster import Cluster, engines, model
from tests.test_llm import adapter


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

    def adapters_of(self, app: str) -> list[str]:
        """Return the adapters that are listed: those that one of the replicas has."""
        status, listed = self.ask(f"/{app}/v1/models")
        self.assertEqual((status, listed["data"][0]["id"]), (200, "base"))
        return [m["id"] for m in listed["data"][1:]]

    def test_adapters(self) -> None:
        """Two replicas load adapters that requests name, from the folder that lora_config has."""
        with tempfile.TemporaryDirectory() as folder:
            adapter(pathlib.Path(folder, "one"), 0.5)
            adapter(pathlib.Path(folder, "two"), -0.7)
            lora = {"dynamic_lora_loading_path": folder, "max_num_adapters_per_replica": 2}
            self.deploy({**model("base", num_replicas=2), "lora_config": lora}, name="lora")
            names = ("base", "base:one", "base:two")
            texts = []
            for name in names:
                status, answer = self.completion(name, "lora", max_tokens=20)
                self.assertEqual(status, 200, answer)
                self.assertEqual(answer["model"], name)
                texts.append(answer["choices"][0]["text"])
            self.assertEqual(len(set(texts)), 3)
            for _ in range(4):  # of either replica
                for name, text in zip(names, texts):
                    parts = self.events(name, "lora", max_tokens=20)
                    said = "".join(p["choices"][0]["text"] for p in parts if p["choices"])
                    self.assertEqual(said, text)
            self.eventually("a list of adapters", lambda: self.adapters_of("lora"))
            self.assertLessEqual(set(self.adapters_of("lora")), {"base:one", "base:two"})
            self.assertEqual(self.completion("base:none", "lora")[0], 404)
            self.assertEqual(self.completion("none:one", "lora")[0], 404)
            serve.delete("lora")
        self.eventually("the end of the engines", lambda: not engines("base"))

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

    def test_replica_in_a_bundle_like_the_ranks(self) -> None:
        """Before it names one, Ray puts a replica into any bundle of its group that has room."""
        engine = {"tensor_parallel_size": 2, "distributed_executor_backend": "ray"}
        group = {"bundle_per_worker": {"CPU": 1}, "strategy": "STRICT_SPREAD"}
        cpus = {**model("cpus", engine, ray_actor_options={}), "placement_group_config": group}
        for _ in range(2):
            self.deploy(cpus, name="cpus")
            self.assertEqual(self.completion("cpus", "cpus")[0], 200)
            serve.delete("cpus")
