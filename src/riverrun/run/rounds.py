"""Rounds: what each round of a loop did in the last epochs, as a frame, a table, or a drawing.

``run.rounds(name)`` gives a `Rounds`, made of the `RoundHistory` of the run.

>>> figures = [(7, (RoundFigures((0,), 5, 12, 0.004), RoundFigures((1,), 1, 2, 0.001)))]
>>> rounds = Rounds("reach", (), figures)
>>> print(rounds)
reach, epoch 7
  epoch  round  touched    ms  messages
      7      0        5  4.00        12  ████████████████████
             1        1  1.00         2  ███▍
>>> rounds.to_arrow().column_names
['epoch', 'round', 'rounds', 'touched', 'messages', 'ms']
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

import polars as pl
import pyarrow as pa

from riverrun.attributes import missing_attribute
from riverrun.engine.round_history import EpochFigures
from riverrun.plan.loop_figures import RoundFigures
from riverrun.plan.picture.chart import Line, Panel, chart

SHOWN = 40
"""Rows of the table as text."""
DRAWN = 8
"""Epochs in a drawing."""
BAR = 20
PARTS = " ▏▎▍▌▋▊▉█"
LEVELS = " ▁▂▃▄▅▆▇█"
_ELSEWHERE = dict.fromkeys(
    ("rows", "to_dicts", "head", "tail", "filter", "sort", "select", "group_by", "describe"),
    "to_polars() gives a frame that has it",
)


class Rounds:
    """What the rounds of a loop did in the last epochs: a row for each round of each epoch in which it did anything.

    The columns are ``epoch`` and ``round``, from 0 on; how many rows the round ``touched``; how many ``messages`` it
    sent; and ``ms``, the milliseconds that it took, on the worker where it took longest. For a loop of nodes, touched
    are changes to the states inside of the loop, and messages are changes that went back to its start. For a loop on
    arrays, touched are keys that got another value, and messages are what was sent along edges.

    ``rounds`` is 1, as a rule. Two kinds of rows have no ``round``: where a loop on arrays works in the order of values
    and not round by round, an epoch is one row, with 0 rounds; where an epoch has more than 10,000 rounds, the later
    ones are one row, with their number. A loop inside another one has a column besides for the round of each loop
    around it, called by the name of that loop: ``outer round``.

    ``print`` shows the last epochs as a table, with bars for the messages; a notebook shows the drawing.
    """

    if not TYPE_CHECKING:  # a checker would take any name for an attribute

        def __getattr__(self, name: str) -> Any:
            raise missing_attribute(self, "rounds", name, _ELSEWHERE)

    def __init__(self, name: str, around: Sequence[str], figures: Sequence[EpochFigures]) -> None:
        self.name = name
        self._around = around
        self._figures = tuple(figures)

    @property
    def epochs(self) -> list[int]:
        """The epochs that are known, oldest first: the last ones in which the loop did anything."""
        return [epoch for epoch, _ in self._figures]

    @cached_property
    def _table(self) -> pa.Table:
        rows = [(epoch, each) for epoch, rounds in self._figures for each in rounds]
        columns: dict[str, Any] = {"epoch": [epoch for epoch, _ in rows]}
        for at, column in enumerate([*(f"{loop} round" for loop in self._around), "round"]):
            columns[column] = [each.at[at] if each.at else None for _, each in rows]
        columns["rounds"] = [each.rounds for _, each in rows]
        columns["touched"] = [each.touched for _, each in rows]
        columns["messages"] = [each.messages for _, each in rows]
        table = {name: pa.array(values, pa.int64()) for name, values in columns.items()}
        table["ms"] = pa.array([each.seconds * 1e3 for _, each in rows], pa.float64())
        return pa.table(table)

    def to_arrow(self) -> pa.Table:
        """As an Arrow table."""
        return self._table

    def to_polars(self) -> pl.DataFrame:
        """As a Polars frame."""
        return pl.DataFrame(pl.from_arrow(self._table))

    def to_pandas(self) -> Any:
        """As a pandas frame."""
        return self._table.to_pandas()

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def __repr__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        figures = self._figures
        if not figures:
            yield f"{self.name}: no epoch yet in which it did anything"
            return
        first, rows = len(figures) - 1, len(figures[-1][1])
        while first and rows + len(figures[first - 1][1]) <= SHOWN:
            first -= 1
            rows += len(figures[first][1])
        earlier = f" (and {_span(figures[:first])} before)" if first else ""
        yield f"{self.name}, {_span(figures[first:])}{earlier}"
        yield from _table([row for each in figures[first:] for row in _cells(*each)])

    def to_svg(self) -> str:
        """As a drawing, an SVG text: rows touched, messages and milliseconds by round, with a line for each of the last
        epochs; by epoch, where each epoch has one row."""
        figures, along = self._figures[-DRAWN:], "round"
        lines = [(f"epoch {epoch}", _by_round(rounds)) for epoch, rounds in figures]
        if self._around:
            along = "rounds, in their order"
        if all(len(rounds) == 1 for _, rounds in figures):
            figures, along = self._figures, "epoch"
            lines = [
                ("epoch", [(epoch, rounds[0]) for epoch, rounds in figures if len(rounds) == 1])
            ]
        panels = [
            Panel(title, tuple([Line(name, _values(points, what)) for name, points in lines]))
            for title, what in _WHAT.items()
        ]
        return chart(self.name, f"what its rounds did: {_span(figures)}", along, panels)

    def _repr_svg_(self) -> str:
        return self.to_svg()


_WHAT: dict[str, Callable[[RoundFigures], float]] = {
    "rows touched": lambda figures: figures.touched,
    "messages": lambda figures: figures.messages,
    "milliseconds": lambda figures: figures.seconds * 1e3,
}
Points: TypeAlias = Sequence[tuple[int, RoundFigures]]


def _by_round(rounds: Sequence[RoundFigures]) -> Points:
    """Rounds with their places in a drawing. A row that is no single round is shown where there is no other."""
    single = [each for each in rounds if each.at]
    if any(len(each.at) > 1 for each in single):
        return list(enumerate(single))
    return [(each.at[0], each) for each in single] or [(0, each) for each in rounds]


def _values(points: Points, what: Callable[[RoundFigures], float]) -> tuple[tuple[int, float], ...]:
    return tuple([(at, what(figures)) for at, figures in points])


def _span(figures: Sequence[EpochFigures]) -> str:
    if not figures:
        return "no epoch"
    first, last = figures[0][0], figures[-1][0]
    return f"epoch {last}" if first == last else f"epochs {first} to {last}"


def bar(part: float, width: int = BAR) -> str:
    """A bar of blocks, a part of its whole width.

    >>> bar(0.5, 8), bar(0.3, 8), bar(0.001, 8)
    ('████', '██▍', '▏')
    """
    eighths = max(round(part * width * 8), 1 if part else 0)
    return ("█" * (eighths // 8) + PARTS[eighths % 8]).rstrip()


def spark(values: Sequence[float]) -> str:
    """Values as a line of blocks of different height.

    >>> spark([1, 4, 8, 0])
    '▁▄█ '
    """
    most = max(values, default=0)
    return "".join(LEVELS[math.ceil(8 * value / most) if most else 0] for value in values)


def in_words(rounds: Sequence[RoundFigures]) -> str:
    """What a loop did in an epoch, in a line.

    >>> in_words([RoundFigures((0,), 5, 12, 0.004), RoundFigures((1,), 1, 2, 0.001)])
    '2 rounds, 6 rows touched, 14 messages, 5.00 ms  █▂'
    """
    count = sum(each.rounds for each in rounds)
    touched, messages = (
        sum(each.touched for each in rounds),
        sum(each.messages for each in rounds),
    )
    parts = [] if not count else ["1 round" if count == 1 else f"{count:,} rounds"]
    parts += [f"{touched:,} rows touched", f"{messages:,} messages"]
    parts.append(f"{_ms(sum(each.seconds for each in rounds))} ms")
    shape = spark([each.messages for each in rounds if each.at][:SHOWN])
    return ", ".join(parts) + (f"  {shape}" if len(shape) > 1 else "")


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:,.2f}"


def _cells(epoch: int, rounds: Sequence[RoundFigures]) -> Iterator[tuple[str, str, RoundFigures]]:
    """The rows of an epoch: the epoch, in its first row, and the round."""
    for number, each in enumerate(rounds):
        at = "/".join(f"{part:,}" for part in each.at)
        if not at:
            at = f"+{each.rounds:,}" if each.rounds else "all"
        yield "" if number else f"{epoch:,}", at, each


def _table(rows: Sequence[tuple[str, str, RoundFigures]]) -> Iterator[str]:
    """Rows as lines, under their titles. Of many rows, those in the middle are left out."""
    head, tail = rows, rows[:0]
    if len(rows) > SHOWN:
        head, tail = rows[: SHOWN // 2], rows[-(SHOWN // 2) :]
    most = max(each.messages for _, _, each in rows)
    lines = [("epoch", "round", "touched", "ms", "messages", "")]
    for epoch, at, each in [*head, *tail]:
        part = each.messages / most if most else 0.0
        cells = (epoch, at, f"{each.touched:,}", _ms(each.seconds), f"{each.messages:,}", bar(part))
        lines.append(cells)
    wide = [max(len(line[at]) for line in lines) for at in range(5)]
    for number, line in enumerate(lines):
        if tail and number == len(head) + 1:
            yield f"  {'…':>{wide[0]}}  ({len(rows) - len(head) - len(tail):,} rounds more)"
        numbers = [f"{cell:>{width}}" for cell, width in zip(line, wide, strict=False)]
        yield "  ".join(["", *numbers, line[5]]).rstrip()
