"""The reference of spreading: multisets in dictionaries, and the fixed point by rounds from the start values."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

ROUNDS = 9000


class Refused(Exception):
    """There is no answer: a value has no end, or a message no value."""


def plain(value: Any) -> Any:
    """A value that is equal to itself, with one zero."""
    if isinstance(value, float):
        return "nan" if math.isnan(value) else value + 0.0
    return value


def order(value: Any) -> tuple[int, Any]:
    """Sorts values as the engine does: NaN last."""
    return (1, 0) if value == "nan" else (0, value)


@dataclass
class Reference:
    """What `Spreading` computes, from scratch."""

    message: Callable[[Any, Any], Any]
    """Of a value and a weight; raises `Refused` where there is none."""
    greatest: bool
    adds: bool
    solution: Counter[tuple[Hashable, Any]] = field(default_factory=Counter)
    workset: Counter[tuple[Hashable, Any]] = field(default_factory=Counter)
    edges: Counter[tuple[Hashable, Hashable, Any]] = field(default_factory=Counter)

    def copy(self) -> Reference:
        return Reference(
            self.message, self.greatest, self.adds,
            Counter(self.solution), Counter(self.workset), Counter(self.edges),
        )  # fmt: skip

    def better(self, a: Any, b: Any) -> bool:
        """Whether value `a` is better than value `b`; None is the worst."""
        if a is None or b is None:
            return a is not None and b is None
        return order(a) > order(b) if self.greatest else order(a) < order(b)

    def values(self) -> dict[Hashable, Any]:
        """The value of each key that is there."""
        values: dict[Hashable, Any] = {}

        def offer(key: Hashable, value: Any) -> bool:
            if key not in values or self.better(value, values[key]):
                values[key] = value
                return True
            return False

        there = {key for (key, _), count in self.solution.items() if count > 0}
        for rows in (self.solution, self.workset):
            for (key, value), count in rows.items():
                if count > 0 and (self.adds or key in there):
                    offer(key, value)
        edges = [edge for edge, count in self.edges.items() if count > 0]
        edges = [
            edge for edge in edges if not has_null(edge[0]) and (self.adds or edge[1] in there)
        ]
        for _ in range(ROUNDS):
            changed, refused = False, None
            for source, target, weight in edges:
                if source in values:
                    try:
                        sent = self.sent(values[source], weight)
                    except Refused as error:
                        refused = error
                    else:
                        changed |= offer(target, sent)
            if not changed:
                # an edge to a key that may not be there also has to have a message
                for source, _, weight in (e for e, count in self.edges.items() if count > 0):
                    if source in values and not has_null(source):
                        self.sent(values[source], weight)
                if refused:
                    raise refused
                return values
        raise Refused("diverges")

    def live_starts(self) -> set[tuple[Hashable, Any]]:
        """Keys and values of all rows that are there."""
        rows = (*self.solution.items(), *self.workset.items())
        return {row for row, count in rows if count > 0}

    def sent(self, value: Any, weight: Any) -> Any:
        return None if value is None or weight is None else self.message(value, weight)


def has_null(key: Any) -> bool:
    return None in key


def whole(operation: Callable[[int, int], int], low: int, high: int) -> Callable[[int, int], int]:
    """Arithmetic on integers of some range."""

    def message(value: int, weight: int) -> int:
        result = operation(value, weight)
        if not low <= result <= high:
            raise Refused("overflow")
        return result

    return message


def floating(operation: Callable[[Any, Any], Any], kind: type) -> Callable[[Any, Any], Any]:
    """Arithmetic on floats of a width."""

    def message(value: Any, weight: Any) -> Any:
        a, b = (kind(math.nan if each == "nan" else each) for each in (value, weight))
        with np.errstate(all="ignore"):
            result = operation(a, b)
        if np.isnan(result) and not np.isnan(a) and not np.isnan(b) and (a == 0 or a == -np.inf):
            raise Refused("not monotone")
        return plain(float(result))

    return message


def greater(value: Any, weight: Any) -> Any:
    """The maximum as Polars has it."""
    if weight == "nan":
        return value
    if value == "nan":
        raise Refused("not monotone")
    return max(value, weight)


def lesser(value: Any, weight: Any) -> Any:
    return min(value, weight, key=order)
