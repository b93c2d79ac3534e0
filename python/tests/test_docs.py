"""The programs of docs/python.md run."""

from __future__ import annotations

import contextlib
import io
import pathlib
import re
import unittest

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "python.md"


class TestExamples(unittest.TestCase):
    """Each block of Python is a program."""

    def test_run(self) -> None:
        blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
        self.assertEqual(len(blocks), 3)
        for block in blocks:
            with self.subTest(block), contextlib.redirect_stdout(io.StringIO()) as said:
                exec(compile(block, PAGE, "exec"), {"__name__": "example"})
                self.assertTrue(said.getvalue())


if __name__ == "__main__":
    unittest.main()
