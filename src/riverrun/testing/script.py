"""Scripts: what is done to a run, written down: rows in, commits, and failures at chosen places.

A script is a list of changes and marks. ``insert``, ``delete`` and ``upsert`` give rows to an input;
``COMMIT`` makes an epoch of them. The other marks say what goes wrong, or is asked for, and where:

================  ====================================================================================
mark              what happens
================  ====================================================================================
``COMMIT``        the rows since the last one become an epoch
``CHECKPOINT``    a checkpoint is made
``SCALE(n)``      the run goes on with n workers
``KILL(worker)``  a worker is lost with all it has in memory; without a number, the first
``CRASH(n)``      the whole run is dropped as it is, and resumed with n workers (or as many as before)
``REFUSE``        the epoch fails halfway, is refused, and its rows are committed again
================  ====================================================================================

Laws:

1. ``KILL``, ``CRASH`` and ``REFUSE`` between some rows and their ``COMMIT`` strike while that epoch is
   under way; elsewhere ``KILL`` and ``CRASH`` strike between epochs, and ``REFUSE`` strikes the next one.
2. None of the marks but ``COMMIT`` changes what a deterministic program gives (laws 4 and 6 of DESIGN).
3. What a script shows of itself is the Python that makes it.

>>> script = [insert("n", [{"n": 1}, {"n": 2}]), COMMIT, KILL(1), delete("n", [{"n": 2}]), COMMIT]
>>> print(shown(script))
[
    insert("n", [{'n': 1}, {'n': 2}]),
    COMMIT,
    KILL(1),
    delete("n", [{'n': 2}]),
    COMMIT,
]
>>> [bags["n"] for bags in accumulated(script)]
[[{'n': 1}, {'n': 2}], [{'n': 1}]]

Cost: linear in the rows of the script.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from riverrun.errors import PlanError

Row = dict[str, Any]
Kind = Literal["insert", "delete", "upsert"]


@dataclass(frozen=True, repr=False)
class Change:
    """Rows that are inserted into an input, deleted from it, or put in place of those with the same key."""

    kind: Kind
    input: str
    rows: Any

    def __repr__(self) -> str:
        return f'{self.kind}("{self.input}", {self.rows!r})'


@dataclass(frozen=True, repr=False)
class Mark:
    """Something that happens at a place of a script; ``KILL(1)`` is the mark with a number."""

    name: str
    number: int | None = None

    def __call__(self, number: int) -> Mark:
        return Mark(self.name, number)

    def __repr__(self) -> str:
        return self.name if self.number is None else f"{self.name}({self.number})"


COMMIT = Mark("COMMIT")
CHECKPOINT = Mark("CHECKPOINT")
SCALE = Mark("SCALE")
KILL = Mark("KILL")
CRASH = Mark("CRASH")
REFUSE = Mark("REFUSE")

Item = Change | Mark
Script = Sequence[Item]


def insert(input: str, rows: Any) -> Change:
    """`rows` for an `input`: whatever ``Run.insert`` takes."""
    return Change("insert", input, rows)


def delete(input: str, rows: Any) -> Change:
    """`rows` that leave an `input`, once each; of one with a key, the rows with these keys."""
    return Change("delete", input, rows)


def upsert(input: str, rows: Any) -> Change:
    """`rows` for an `input` that replace those with the same key."""
    return Change("upsert", input, rows)


def shown(script: Iterable[Item]) -> str:
    """A script as Python."""
    return "".join(["[\n", *(f"    {item!r},\n" for item in script), "]"])


def whole(script: Iterable[Item]) -> list[Item]:
    """The script, checked, with a commit for the rows at its end."""
    items = list(script)
    for item in items:
        if not isinstance(item, Change | Mark):
            raise PlanError(
                "testing.script",
                f"cannot play {item!r}: a script holds changes and marks",
                hint='for instance [insert("edges", rows), COMMIT, KILL(0), delete("edges", rows), COMMIT]',
            )
        if item == SCALE:
            raise PlanError(
                "testing.script",
                "cannot play SCALE without the number of workers",
                hint="for instance SCALE(3)",
            )
    if COMMIT not in items or isinstance(items[-1], Change):
        items.append(COMMIT)
    return items


def plain(script: Iterable[Item]) -> list[Item]:
    """The script without anything that goes wrong."""
    return [item for item in script if isinstance(item, Change) or item == COMMIT]


def single_rows(script: Iterable[Item]) -> list[Item]:
    """The same script with a change for each row."""
    found: list[Item] = []
    for item in script:
        if isinstance(item, Change):
            found += [Change(item.kind, item.input, [row]) for row in item.rows]
        else:
            found.append(item)
    return found


def grouped(script: Iterable[Item]) -> list[Item]:
    """The same script with changes that follow each other and are alike made one."""
    found: list[Item] = []
    for item in script:
        last = found[-1] if found else None
        if (
            isinstance(item, Change)
            and isinstance(last, Change)
            and (item.kind, item.input) == (last.kind, last.input)
        ):
            found[-1] = Change(item.kind, item.input, [*last.rows, *item.rows])
        else:
            found.append(item)
    return found


class Missing(ValueError):
    """A row is deleted that is not there."""


def accumulated(
    script: Iterable[Item], keys: Mapping[str, Sequence[str]] | None = None
) -> list[dict[str, list[Row]]]:
    """The rows of each input as of each commit; `keys` names the key of those that have one."""
    keys = keys or {}
    counts: dict[str, Counter[Any]] = {}
    rows: dict[Any, Row] = {}
    found: list[dict[str, list[Row]]] = []
    for item in script:
        if isinstance(item, Change):
            bag = counts.setdefault(item.input, Counter())
            key = keys.get(item.input)
            for row in item.rows:
                known = frozen({name: row[name] for name in key} if key else row)
                if item.kind == "delete":
                    if not key and not bag[known]:
                        raise Missing(f"{row} is deleted from {item.input!r} and is not there")
                    bag[known] -= bag[known] if key else 1
                else:
                    bag[known] = 1 if key else bag[known] + 1
                    rows[item.input, known] = row
        elif item == COMMIT:
            found.append(
                {
                    name: [rows[name, known] for known in bag for _ in range(bag[known])]
                    for name, bag in counts.items()
                }
            )
    return found


def frozen(value: Any) -> Any:
    """A value that can be counted, equal to itself: NaN is one value, and zero has no sign.

    >>> frozen({"a": [float("nan"), -0.0]}) == frozen({"a": [float("nan"), 0.0]})
    True
    """
    if isinstance(value, dict):
        return tuple((name, frozen(inner)) for name, inner in value.items())
    if isinstance(value, list | tuple):
        return tuple(map(frozen, value))
    if isinstance(value, float):
        return "NaN" if value != value else value + 0.0
    return value
