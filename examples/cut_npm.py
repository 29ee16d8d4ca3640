"""How data/npm-2016.txt.xz was cut from the whole graph: ``python -m examples.cut_npm DEPENDENCIES NAMES``.

DEPENDENCIES has a line ``package<TAB>dependency`` for each, as ids; NAMES a line ``id<TAB>name``; both are
compressed with gzip. The sample has every package that another package depends on, all packages that depend on
left-pad, directly or not, and every dependency among these.
"""

from __future__ import annotations

import gzip
import lzma
import sys
from collections import defaultdict

from examples.npm import SAMPLE

HIGHEST = 9 | lzma.PRESET_EXTREME


def main(dependencies_file: str, names_file: str) -> None:
    with gzip.open(names_file, "rt", encoding="utf-8") as file:
        names = dict(line.rstrip("\n").split("\t") for line in file)
    with gzip.open(dependencies_file, "rt", encoding="utf-8") as file:
        pairs = [tuple(names[number] for number in line.split()) for line in file]
    # An empty name, or one with a space in it, is a slip in somebody's package.json.
    pairs = [pair for pair in pairs if all(name.split() == [name] for name in pair)]
    needs, needed_by = defaultdict(set), defaultdict(set)
    for package, dependency in pairs:
        needs[package].add(dependency)
        needed_by[dependency].add(package)
    broken, asked = {"left-pad"}, ["left-pad"]
    while asked:
        fresh = needed_by.get(asked.pop(), set()) - broken
        broken |= fresh
        asked += fresh
    included = needed_by.keys() | broken
    lines = [
        " ".join([package, *sorted(needs[package] & included)]) for package in sorted(included)
    ]
    SAMPLE.write_bytes(
        lzma.compress("".join(f"{line}\n" for line in lines).encode(), preset=HIGHEST)
    )
    count = sum(line.count(" ") for line in lines)
    print(f"{len(lines)} packages, {count} dependencies, {SAMPLE.stat().st_size} bytes")


if __name__ == "__main__":
    main(*sys.argv[1:])
