"""Scripts: lists of things to do to a run: rows in, commits, and failures at chosen places.

`play` does a script to a dataflow; `check_operator` and `check_dataflow` make scripts of their own. A script is a list
of changes and marks. ``insert``, ``delete`` and ``upsert`` give rows to an input; ``COMMIT`` makes an epoch of them.
The other marks are failures and requests, which happen where the mark stands:

================  ====================================================================================
mark              what happens
================  ====================================================================================
``COMMIT``        the rows since the last commit become an epoch
``CHECKPOINT``    a checkpoint is made
``SCALE(n)``      the run goes on with n workers
``KILL(worker)``  a worker is lost with all it has in memory; without a number, the first
``CRASH(n)``      the whole run is dropped as it is, and resumed with n workers (or as many as before)
``REFUSE``        the epoch fails halfway, is refused, and its rows are committed again
================  ====================================================================================

Laws:

- **Place of failures.** ``KILL``, ``CRASH`` and ``REFUSE`` between some rows and their ``COMMIT`` strike while that
  epoch is under way. Elsewhere ``KILL`` and ``CRASH`` strike between epochs, and ``REFUSE`` strikes the next epoch.
- **Marks change nothing.** Only ``COMMIT`` changes the results of a deterministic program; no other mark does (the
  *cuts invisible* and *resume* laws of ARCHITECTURE).
- **Shown as Python.** The text of a script is the Python that makes the script.

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
    """Rows that are inserted into an input, deleted from it, or put in place of the rows with the same key."""

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
    """Insert `rows`, in any form that ``Run.insert`` takes, into an `input`."""
    return Change("insert", input, rows)


def delete(input: str, rows: Any) -> Change:
    """Delete `rows` from an `input`, once each; from an input with a key, the rows with these keys."""
    return Change("delete", input, rows)


def upsert(input: str, rows: Any) -> Change:
    """Put `rows` in place of the rows of an `input` with the same key."""
    return Change("upsert", input, rows)


def shown(script: Iterable[Item]) -> str:
    """A script as Python."""
    return "".join(["[\n", *(f"    {item!r},\n" for item in script), "]"])


def whole(script: Iterable[Item]) -> list[Item]:
    """The script, checked, with a commit added for rows at its end."""
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
    """The script without marks other than ``COMMIT``."""
    return [item for item in script if isinstance(item, Change) or item == COMMIT]


def single_rows(script: Iterable[Item]) -> list[Item]:
    """The same script with a change for each row."""
    single: list[Item] = []
    for item in script:
        if isinstance(item, Change):
            single += [Change(item.kind, item.input, [row]) for row in item.rows]
        else:
            single.append(item)
    return single


def grouped(script: Iterable[Item]) -> list[Item]:
    """The same script, with neighbouring changes of one kind and input joined."""
    groups: list[Item] = []
    for item in script:
        last = groups[-1] if groups else None
        if (
            isinstance(item, Change)
            and isinstance(last, Change)
            and (item.kind, item.input) == (last.kind, last.input)
        ):
            groups[-1] = Change(item.kind, item.input, [*last.rows, *item.rows])
        else:
            groups.append(item)
    return groups


class Missing(ValueError):
    """A row is deleted that is not there."""


def accumulated(
    script: Iterable[Item], keys: Mapping[str, Sequence[str]] | None = None
) -> list[dict[str, list[Row]]]:
    """The rows of each input as of each commit; `keys` has the key of each input with a key."""
    keys = keys or {}
    counts: dict[str, Counter[Any]] = {}
    rows: dict[Any, Row] = {}
    bags_by_commit: list[dict[str, list[Row]]] = []
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
            bags_by_commit.append(
                {
                    name: [rows[name, known] for known in bag for _ in range(bag[known])]
                    for name, bag in counts.items()
                }
            )
    return bags_by_commit


def frozen(value: Any) -> Any:
    """A value in a form that can be hashed and equals itself: NaN is one value, and zero has no sign.

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
