"""Shrinking: a smallest part of a failing script that still fails.

`trials` shrinks the script with which a law was broken: items are left out as long as `fails` is true of the rest. An
*item* is a change of one row, or a mark (a commit, or a failure at some place: `script`). Laws:

- **Still fails.** `fails` is true of the shrunk script, as of the whole one.
- **Nothing to spare.** Unless the tries ran out, `fails` is false of the shrunk script without any one item, and also
  without an insertion and the deletion of its row together. (Not tried is what makes no script: one that deletes rows
  that are not there, has no commit, or ends in changes.)

>>> from riverrun.testing.script import COMMIT, delete, insert, shown
>>> script = [insert("n", [{"n": 1}, {"n": 2}]), COMMIT, delete("n", [{"n": 1}]), COMMIT]
>>> print(shown(shrink(script, lambda some: "2" in str(some))))
[
    insert("n", [{'n': 2}]),
    COMMIT,
]

Cost: at most `tries` calls of `fails`, about the square of the items for a stubborn script.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from riverrun.testing.script import (
    COMMIT,
    Change,
    Item,
    Missing,
    accumulated,
    frozen,
    grouped,
    single_rows,
)

TRIES = 400


def shrink(
    script: Sequence[Item],
    fails: Callable[[list[Item]], bool],
    keys: Mapping[str, Sequence[str]] | None = None,
    tries: int = TRIES,
) -> list[Item]:
    """A smallest part of a script for which `fails` is true, as for the whole script."""
    best = single_rows(script)
    smaller = True
    while smaller:
        smaller = False
        for candidate in _candidates(best):
            if not _makes_sense(candidate, keys or {}):
                continue
            if tries <= 0:
                return grouped(best)
            tries -= 1
            if fails(grouped(candidate)):
                best, smaller = candidate, True
                break
    return grouped(best)


def _candidates(items: list[Item]) -> Iterator[list[Item]]:
    """Parts of a script, the smallest first: halves, quarters, single items, pairs."""
    size = len(items) // 2
    while size > 1:
        for start in range(0, len(items), size):
            yield items[:start] + items[start + size :]
        size //= 2
    for at, item in enumerate(items):
        without = items[:at] + items[at + 1 :]
        yield without
        if isinstance(item, Change) and item.kind == "insert":
            for later in range(at, len(without)):
                other = without[later]
                if isinstance(other, Change) and _undoes(item, other):
                    yield without[:later] + without[later + 1 :]
                    break


def _undoes(change: Change, other: Change) -> bool:
    same = other.input == change.input and other.kind == "delete"
    return same and frozen(other.rows) == frozen(change.rows)


def _makes_sense(items: list[Item], keys: Mapping[str, Sequence[str]]) -> bool:
    if COMMIT not in items or isinstance(items[-1], Change):
        return False
    try:
        accumulated(items, keys)
    except Missing:
        return False
    return True
