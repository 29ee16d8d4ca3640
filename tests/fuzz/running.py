"""Runs a target under atheris: ``python -m tests.fuzz.frames --seconds 60``. Needs ``requirements-soak.lock``.

atheris draws bytes that lead to code which was not reached before, starting from real encodings. What it finds is
printed, and written to ``crash-...`` in the folder that ``--corpus`` names, or in a temporary one.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path


def seed(name: str, corpus: str) -> None:
    """Write the real encodings of a target to a folder."""
    from tests.fuzz.targets import TARGETS

    for at, data in enumerate(TARGETS[name].seeds()):
        (Path(corpus) / f"seed-{at}").write_bytes(data)


WATCHED = [
    *(f"riverrun.runtime.codec.{each}" for each in ("plain", "shapes", "frames")),
    *(
        f"riverrun.storage.{each}"
        for each in ("records", "log", "manifest", "lease", "acknowledged")
    ),
    *(f"riverrun.state.{each}" for each in ("block_files", "soundness")),
    "riverrun.runtime.network.endpoint",
    "riverrun.rows.conditions",
    "riverrun.run.sinks.parquet",
]
"""The modules whose code is to be reached."""


def main(name: str) -> None:
    """Fuzz the target of this name for as long as the arguments say."""
    arguments = argparse.ArgumentParser(prog=f"python -m tests.fuzz.{name}")
    arguments.add_argument("--seconds", type=int, default=60)
    arguments.add_argument("--seed", type=int, default=1)
    arguments.add_argument("--corpus", type=Path)
    chosen = arguments.parse_args()
    os.environ["NUMBA_DISABLE_JIT"] = "1"  # Numba compiles nothing beside atheris
    import atheris

    with atheris.instrument_imports(include=WATCHED):
        from tests.fuzz.targets import LIMIT, TARGETS
    target = TARGETS[name]
    corpus = chosen.corpus or Path(tempfile.mkdtemp(prefix=f"riverrun-fuzz-{name}-"))
    corpus.mkdir(parents=True, exist_ok=True)
    seeding = f"from tests.fuzz.running import seed; seed({name!r}, {str(corpus)!r})"
    plain = {key: value for key, value in os.environ.items() if key != "NUMBA_DISABLE_JIT"}
    subprocess.run([sys.executable, "-c", seeding], check=True, env=plain)
    options = [
        f"-max_total_time={chosen.seconds}",
        f"-seed={chosen.seed}",
        f"-max_len={LIMIT}",
        "-timeout=20",
        "-rss_limit_mb=2048",
        f"-artifact_prefix={corpus}/crash-",
        "-print_final_stats=1",
    ]
    atheris.Setup([sys.argv[0], *options, str(corpus)], target.decode)
    atheris.Fuzz()
