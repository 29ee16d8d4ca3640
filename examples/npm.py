"""The packages of npm and what they depended on, on the 25th of December 2016 (data/ORIGIN.md).

>>> from examples.npm import load
>>> npm = load()
>>> npm.packages[npm.number["left-pad"]]
'left-pad'
"""

from __future__ import annotations

import lzma
from dataclasses import dataclass
from pathlib import Path

SAMPLE = Path(__file__).parent / "data" / "npm-2016.txt.xz"


@dataclass(frozen=True)
class Npm:
    """Packages have numbers, in the order of their names; a dependency is a pair of numbers."""

    packages: list[str]
    number: dict[str, int]
    dependencies: list[tuple[int, int]]
    """A package, and a package that it needs."""


def load() -> Npm:
    """The sample that comes with the repository: a line has a package, then all that it needs."""
    with lzma.open(SAMPLE, "rt", encoding="utf-8") as file:
        lines = [line.split() for line in file]
    packages = [line[0] for line in lines]
    number = {name: at for at, name in enumerate(packages)}
    return Npm(
        packages,
        number,
        [(at, number[needed]) for at, line in enumerate(lines) for needed in line[1:]],
    )
