"""`python -m bench` lists the benchmarks; `python -m bench NAME [--option value ...]` runs one, or several.

Each benchmark prints one JSON line: its name, our figures, the figures and version of each peer, ratios (above 1: we
are faster or smaller), and the hardware. Variables such as BENCH_ROWS=1e6 make a benchmark smaller. Peers that are not
installed are skipped, and the line says so. Peers that need an environment of their own are looked for in the
interpreters of BENCH_PYTHONS, separated by colons. Real graphs are files of the folder `graphs` of the folder that
RIVERRUN_DATA names. The machine may be shared: compare ratios within one line, not figures across lines. `granted` is
the time that this process had the processor, as a part of the time that it wanted the processor.
"""

from __future__ import annotations

import importlib
import json
import pkgutil
import sys

import bench
from bench.measure import hardware

NOT_BENCHMARKS = (
    "__main__",
    "apart",
    "measure",
    "peers",
    "real_graphs",
    "redis_server",
    "sessions",
)


def names() -> list[str]:
    modules = (module.name for module in pkgutil.iter_modules(bench.__path__) if not module.ispkg)
    return sorted(name for name in modules if name not in NOT_BENCHMARKS)


def summary(name: str) -> str:
    return (importlib.import_module(f"bench.{name}").__doc__ or "").splitlines()[0]


def main(arguments: list[str]) -> int:
    chosen = [word for word in arguments if not word.startswith("-") and word in names()]
    if not chosen:
        print(__doc__)
        for name in names():
            print(f"  {name:12} {summary(name)}")
        return 0 if not arguments else 2
    for name in chosen:
        module = importlib.import_module(f"bench.{name}")
        print(json.dumps({"name": name, **module.main(), "hardware": hardware()}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
