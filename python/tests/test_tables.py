"""Tables of rows that failed beside those that did not, put together by Ray where it is there."""

from __future__ import annotations

import importlib.util
import itertools
import unittest
from typing import Any, Optional

from eagleray.data import EngineProcessorConfig
from eagleray.data._rows import ERROR, failed
from eagleray.data._table import Postprocess, Tables

CONFIG = EngineProcessorConfig(should_continue_on_error=True)


def asked(i: int, tags: list[str]) -> dict[str, Any]:
    return {"id": i, "tags": tags, "at": {"x": i}, "sampling_params": {"max_tokens": i}}


def good(i: int, **more: Any) -> dict[str, Any]:
    answer = {**failed({}, "", CONFIG), "prompt": "p", "generated_text": f"a{i}"}
    answer.update(prompt_token_ids=[1], generated_tokens=[i], time_taken_llm=0.5)
    return {**asked(i, ["t"] * (i % 2)), **answer, **more}


def bad(i: int, **more: Any) -> dict[str, Any]:
    row = {**asked(i, []), **more}
    return {**row, **failed(row, f"ValueError: {i}", CONFIG)}


KINDS: dict[str, Optional[Postprocess]] = {
    "none": None,
    "fewer": lambda row: {"id": row["id"], "answer": row["generated_text"]},
    "renamed": lambda row: {"number": row["id"], "answer": row["generated_text"]},
    "another type": lambda row: {"id": str(row["id"]), "tags": len(row["tags"])},
    "lists": lambda row: {"id": row["id"], "lists": [row["id"]], "tags": row["tags"]},
    "structs": lambda row: {"at": row["at"], "all": {"a": row["id"], "b": [row["id"]]}},
    "more": lambda row: {**row, "length": len(row["generated_text"])},
    "objects": lambda row: {"id": row["id"], "object": complex(1, row["id"])},
}


@unittest.skipUnless(importlib.util.find_spec("pyarrow"), "no pyarrow")
class TestTables(unittest.TestCase):
    def rows(self, tables: list[Any]) -> list[dict[str, Any]]:
        """Return the rows of tables, as Ray has them when it has put them together."""
        if importlib.util.find_spec("ray") is None:
            import pyarrow

            return list(pyarrow.concat_tables(tables, promote_options="default").to_pylist())
        from ray.data._internal.delegating_block_builder import DelegatingBlockBuilder
        from ray.data.block import BlockAccessor

        builder = DelegatingBlockBuilder()
        for table in tables:
            if isinstance(table, dict):
                table = BlockAccessor.batch_to_block(table)
            builder.add_block(table)
        return list(builder.build().to_pylist())

    def test_put_together(self) -> None:
        """Whatever failed and whatever is returned, in any order, tables go together."""
        pieces = {
            "good": [good(0), good(1)],
            "mixed": [bad(2), good(3), bad(4)],
            "bad": [bad(5), bad(6)],
            "empty lists": [good(8), bad(7)],
        }
        for (name, postprocess), order in itertools.product(
            KINDS.items(), itertools.permutations(pieces)
        ):
            if name == "objects" and not takes_objects():
                continue
            with self.subTest(postprocess=name, order=order):
                given = [pieces[piece] for piece in order]
                out = self.rows(list(Tables(postprocess, True).make(map(copied, given))))
                self.check(postprocess, [row for piece in given for row in piece], out)

    def check(
        self, postprocess: Optional[Postprocess], given: list[dict[str, Any]], out: list[Any]
    ) -> None:
        self.assertEqual(len(given), len(out))
        for row, got in zip(given, out):
            self.assertEqual(got[ERROR], row[ERROR])
            if not row[ERROR]:
                want = dict(postprocess(row)) if postprocess else row
                self.assertEqual(
                    {name: got[name] for name in want if name != ERROR},
                    {name: want[name] for name in want if name != ERROR},
                )
            elif "id" in got and isinstance(got["id"], int):
                self.assertEqual(got["id"], row["id"])
        if postprocess:
            names = {ERROR, *postprocess(good(1))}
            self.assertEqual(names, set(out[0]))

    def test_all_failed(self) -> None:
        """Where no row tells the columns, those that name a row are left and go with the next."""
        for name, postprocess in KINDS.items():
            with self.subTest(name):

                def make(rows: list[dict[str, Any]]) -> list[Any]:
                    return list(Tables(postprocess, True).make([copied(rows)]))

                lost = make([bad(0), bad(1)]) + make([bad(2, extra={"x": []})])
                rows = self.rows(lost)
                self.assertEqual([row["id"] for row in rows], [0, 1, 2])
                self.assertEqual([row[ERROR][-1] for row in rows], ["0", "1", "2"])
                if postprocess:
                    self.assertEqual(set(rows[0]), {"id", "prompt", ERROR})
        # Of another actor, whose rows have answers.
        other = list(Tables(KINDS["fewer"], True).make([[good(3)]]))
        fewer = list(Tables(KINDS["fewer"], True).make([[bad(0)]]))
        for tables in (fewer + other, other + fewer):
            self.assertEqual(len(self.rows(tables)), 2)
        logged = list(Tables(None, True).make([[good(3, logprobs="{}")]]))
        plain = list(Tables(None, True).make([[bad(0)]]))
        for tables in (plain + logged, logged + plain):
            self.assertEqual(len(self.rows(tables)), 2)

    def test_streams(self) -> None:
        """What does not have to wait comes at once, and errors of postprocess reach the caller."""
        seen: list[int] = []

        def pieces() -> Any:
            for i in range(4):
                seen.append(i)
                yield [bad(i) if i == 0 else good(i)]

        tables = Tables(KINDS["fewer"], True).make(pieces())
        next(tables)
        self.assertEqual(seen, [0, 1])
        next(tables)
        self.assertEqual(seen, [0, 1])
        next(tables)
        self.assertEqual(seen, [0, 1, 2])
        with self.assertRaises(ZeroDivisionError):
            list(Tables(lambda row: {"x": 1 / 0}, True).make([[good(0)]]))

    def test_without_errors(self) -> None:
        """Where a row that fails ends the job, rows come out as they are."""
        (table,) = Tables(KINDS["fewer"], False).make([[good(0)]])
        self.assertEqual(table.to_pylist(), [{"id": 0, "answer": "a0"}])


def takes_objects() -> bool:
    """Whether Ray puts objects together with None.

    Version 2.35 has pandas for the one and Arrow for the other.
    """
    if importlib.util.find_spec("ray") is None:
        return False
    import ray

    return [int(n) for n in ray.__version__.split(".")[:2]] > [2, 35]


def copied(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return rows that may be changed."""
    return [dict(row) for row in rows]


if __name__ == "__main__":
    unittest.main()
