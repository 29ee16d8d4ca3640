"""Peers that run in a process of their own, by an interpreter that has them: the scripts in `programs`.

Some peers need other versions of packages that we use too, so peers are looked for in every interpreter that
BENCH_PYTHONS names, and in ours.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

from bench.measure import scale

PROGRAMS = Path(__file__).parent / "programs"


@cache
def interpreter_with(packages: tuple[str, ...]) -> str | None:
    """The first interpreter that has all of these packages."""
    listed = os.environ.get("BENCH_PYTHONS", "").split(os.pathsep)
    code = (
        "from importlib.util import find_spec as f\n"
        f"try: exit(not all(map(f, {packages!r})))\n"
        "except ImportError: exit(1)"  # of the parent of one
    )
    for python in [*filter(None, listed), sys.executable]:
        if subprocess.run([python, "-c", code], check=False).returncode == 0:
            return python
    return None


def run_apart(program: str, *packages: str, **arguments: int | str) -> dict[str, Any]:
    """The JSON that a program prints; or ``{"skipped": reason}``."""
    python = interpreter_with(packages)
    if python is None:
        return {"skipped": f"not installed: {', '.join(packages)} (see BENCH_PYTHONS)"}
    options = [word for name, value in arguments.items() for word in (f"--{name}", str(value))]
    patience = scale("patience", 900)
    try:
        done = subprocess.run(
            [python, PROGRAMS / f"{program}.py", *options],
            check=True,
            capture_output=True,
            text=True,
            timeout=patience,
        )
    except subprocess.TimeoutExpired:
        return {"skipped": f"took longer than {patience} s (see BENCH_PATIENCE)"}
    except subprocess.CalledProcessError as failed:
        error_lines = failed.stderr.strip().splitlines() or ["nothing"]
        return {"skipped": f"failed: {error_lines[-1]}"}
    report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return report
