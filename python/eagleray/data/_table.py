"""Rows as tables whose columns agree from piece to piece, whatever failed.

Ray 2.35 cannot put tables together that differ where one has a column of empty lists alone, or one
that Arrow has no type for. So rows that failed get the columns and the types of those that did not.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Callable, Optional

from ._rows import ADDED, ERROR, LISTS

Row = dict[str, Any]
Postprocess = Callable[[Row], Mapping[str, Any]]

_PLAIN = (str, bytes, bool, int, float)
"""Types of which each is one of Arrow's, too."""


class Tables:
    """Makes the tables that come out. Any thread may use it."""

    def __init__(self, postprocess: Optional[Postprocess], goes_on: bool) -> None:
        """``goes_on`` is whether there are rows that failed."""
        self._postprocess, self._goes_on = postprocess, goes_on
        self._lock = threading.Lock()
        # The columns of rows that did not fail, with their types; None is one that Arrow does not
        # have.
        self._known: dict[str, Any] = {}

    def make(self, pieces: Iterable[list[Row]]) -> Iterator[Any]:
        """Yield a table for each piece.

        One in which all rows failed waits for one that tells the columns.
        """
        waiting: list[list[Row]] = []
        for rows in pieces:
            waiting.append([self._finished(row) for row in rows])
            self._learn(waiting[-1])
            if self._known or not self._goes_on:
                yield from map(self._table, waiting)
                waiting = []
        yield from map(self._table, waiting)

    def _finished(self, row: Row) -> Row:
        if row.get(ERROR):
            return row
        row = dict(self._postprocess(row)) if self._postprocess else row
        if self._goes_on:
            row[ERROR] = ""
        return row

    def _learn(self, rows: list[Row]) -> None:
        """Take in the columns of rows that did not fail."""
        good = [row for row in rows if not row.get(ERROR)]
        if not self._goes_on or not good:
            return
        found = {name: _type([row.get(name) for row in good]) for name in _names(good)}
        with self._lock:
            known = dict(self._known)
            for name, type_ in found.items():
                then = known.get(name)
                if (
                    name not in known
                    or then is not None
                    and type_ is not None
                    and _rank(then) < _rank(type_)
                ):
                    known[name] = type_
            self._known = known

    def _table(self, rows: list[Row]) -> Any:
        known = self._known
        if self._goes_on:
            rows = [self._without_answer(row, known) if row.get(ERROR) else row for row in rows]
        return table(rows, known)

    def _without_answer(self, row: Row, known: Mapping[str, Any]) -> Row:
        """Return a row that failed with the columns of those that did not."""
        # Its own where it is of the column's type; what postprocess computes is not there.
        columns = {name: _fitting(row.get(name), type_) for name, type_ in known.items()}
        if not self._postprocess:
            columns = {**{k: _told(k, v) for k, v in row.items()}, **columns}
        elif not known:
            # No row has told what postprocess returns. Of what the dataset brings, those that name
            # a row, and whose type does not depend on the row.
            columns = {k: v for k, v in row.items() if k not in ADDED and isinstance(v, _PLAIN)}
        return {**columns, ERROR: row[ERROR]}


def table(rows: list[Row], known: Mapping[str, Any]) -> Any:
    """Return rows as Ray takes them: what Arrow has a type for as its table, else as columns."""
    import pyarrow

    arrays, whole = {}, True
    columns = {name: [row.get(name) for row in rows] for name in _names(rows)}
    for name, column in columns.items():
        array = _array(column)
        if array is None:
            whole = False
            continue
        wanted = known.get(name)
        if wanted is None and name in LISTS:
            wanted = pyarrow.list_(pyarrow.type_for_alias(LISTS[name]))
        if wanted is not None and _rank(array.type) < _rank(wanted):
            # Nothing but None or empty lists, of which other pieces tell the type.
            array = pyarrow.array(column, type=wanted)
        arrays[name] = array
    return pyarrow.table(arrays) if whole else columns


def _told(name: str, value: Any) -> Any:
    """Return None for an empty list that does not tell of what."""
    return None if value == [] and name not in LISTS else value


def _names(rows: Iterable[Row]) -> list[str]:
    return list(dict.fromkeys(name for row in rows for name in row))


def _array(column: list[Any]) -> Any:
    """Return values as Arrow's array, or None if it has no type for them."""
    import pyarrow

    try:
        return pyarrow.array(column)
    except (pyarrow.ArrowInvalid, pyarrow.ArrowTypeError, pyarrow.ArrowNotImplementedError):
        return None


def _type(column: list[Any]) -> Any:
    array = _array(column)
    return None if array is None else array.type


def _rank(type_: Any) -> int:
    """Return how much a type says: that of None alone, of empty lists alone, any other."""
    import pyarrow.types

    if pyarrow.types.is_null(type_):
        return 0
    return 1 if pyarrow.types.is_list(type_) and pyarrow.types.is_null(type_.value_type) else 2


def _fitting(value: Any, type_: Any) -> Any:
    """Return a value if it is of a type, else None."""
    import pyarrow

    if type_ is None or value is None or _rank(type_) == 0:
        return None
    try:
        pyarrow.scalar(value, type=type_)
    except (pyarrow.ArrowException, TypeError, ValueError, OverflowError):
        return None
    return value
