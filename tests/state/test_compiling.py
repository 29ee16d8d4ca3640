"""A kernel compiled from other sources is never loaded: the fingerprint is in every cache key."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numba
import pytest
from numba.core.registry import cpu_target

import riverrun.state.kernels as kernels
from riverrun.state.kernels import compiling, values

FOLDER = Path(kernels.__file__ or "").parent


def load(source: Path) -> object:
    """The module `compiling` as it would be in another folder."""
    spec = importlib.util.spec_from_file_location("compiling_elsewhere", source)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_fingerprint_is_part_of_the_cache_key() -> None:
    signature = numba.types.uint64(numba.types.uint64)
    codegen = cpu_target.target_context.codegen()
    for dispatcher in (values.mix, values.compare_rows, values.hash_rows):
        key = dispatcher._cache._index_key(signature, codegen)  # type: ignore[attr-defined]
        assert compiling.FINGERPRINT in key


@pytest.mark.parametrize("changed", [path.name for path in sorted(FOLDER.glob("*.py"))])
def test_a_change_in_any_kernel_file_changes_the_fingerprint(changed: str, tmp_path: Path) -> None:
    copy = tmp_path / "kernels"
    shutil.copytree(FOLDER, copy, ignore=shutil.ignore_patterns("__pycache__"))
    before = load(copy / "compiling.py").FINGERPRINT  # type: ignore[attr-defined]
    with (copy / changed).open("a") as file:
        file.write("# changed\n")
    assert before != load(copy / "compiling.py").FINGERPRINT  # type: ignore[attr-defined]


LOADING = """
from riverrun.state.kernels import compiling, gathering
import numpy as np

NAME = "riverrun.state.kernels.gathering.is_ascending"
words = np.arange(3, dtype=np.uint64)
"""


def told(code: str, cache: Path) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", LOADING + code],
        env={**os.environ, "NUMBA_CACHE_DIR": str(cache)},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.split()


def test_kernels_are_loaded_before_they_are_called(tmp_path: Path) -> None:
    hits = "print(sum(gathering.is_ascending.stats.cache_hits.values()))\n"
    load, call = "compiling.load([NAME, 'no.kernel'])\n", "gathering.is_ascending(words)\n"
    # Where the cache has nothing, nothing is compiled beforehand.
    count = "print(len(gathering.is_ascending.overloads))\n"
    assert told(load + count, tmp_path) == ["0"]
    name = "riverrun.state.kernels.gathering.is_ascending"
    assert told(f"{call}print(*compiling.used())", tmp_path) == [name]
    assert told(f"{load}{hits}{call}{hits}print(*compiling.used())", tmp_path) == ["1", "1", name]


def test_a_callee_in_another_file_is_not_stale(tmp_path: Path) -> None:
    """What Numba alone gets wrong: the caller's file is the same, its callee's is not."""
    package = tmp_path / "kernels"
    package.mkdir()
    (package / "__init__.py").touch()
    shutil.copy(FOLDER / "compiling.py", package)
    caller = "from kernels.compiling import kernel\nfrom kernels.callee import callee\n"
    (package / "caller.py").write_text(f"{caller}\n@kernel\ndef caller(x):\n    return callee(x)\n")
    answers = []
    for step in (1, 2):
        (package / "callee.py").write_text(
            "from kernels.compiling import kernel\n\n"
            f"@kernel\ndef callee(x):\n    return x + {step}\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", "from kernels.caller import caller; print(caller(0))"],
            cwd=tmp_path,
            env={**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache")},
            capture_output=True,
            text=True,
            check=True,
        )
        answers.append(int(done.stdout))
    assert answers == [1, 2]


TOGETHER = """
import sys, time
from pathlib import Path
from riverrun.state.kernels.compiling import kernel

@kernel
def inner(x):
    return x * 3 + 1

@kernel
def outer(x):
    return inner(x) - 1

folder, name = Path(sys.argv[1]), sys.argv[2]
(folder / name).touch()
while len(list(folder.iterdir())) < 3:  # all of them compile at the same moment
    time.sleep(0.001)
assert outer(5) == 15
print(sum(outer.stats.cache_misses.values()), sum(inner.stats.cache_misses.values()))
"""


def test_processes_that_start_at_once_compile_a_kernel_once(tmp_path: Path) -> None:
    program, ready = tmp_path / "together.py", tmp_path / "ready"
    program.write_text(TOGETHER)
    ready.mkdir()
    processes = [
        subprocess.Popen(
            [sys.executable, str(program), str(ready), name],
            env={**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache")},
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in "abc"
    ]
    missed = [process.communicate()[0].split() for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0]
    assert sum(int(outer) for outer, _ in missed) == 1
    assert sum(int(inner) for _, inner in missed) == 1


UNLOCKABLE = """
import os
open_file = os.open

def refuse_locks(path, *args, **kwargs):
    if str(path).endswith(".lock"):
        raise PermissionError(13, "as in a folder that may only be read", path)
    return open_file(path, *args, **kwargs)

os.open = refuse_locks
"""


def test_a_kernel_is_compiled_where_its_cache_cannot_be_locked(tmp_path: Path) -> None:
    program, ready = tmp_path / "alone.py", tmp_path / "ready"
    program.write_text(UNLOCKABLE + TOGETHER.replace("< 3", "< 1"))
    ready.mkdir()
    told = subprocess.run(
        [sys.executable, str(program), str(ready), "a"],
        env={**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout.split() == ["1", "1"]


def test_kernels_can_be_left_to_python() -> None:
    """As for a fuzzer that looks at which lines were reached."""
    told = subprocess.run(
        [sys.executable, "-c", "from riverrun.state.kernels import values; print(values.mix)"],
        env={**os.environ, "NUMBA_DISABLE_JIT": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout.startswith("<function mix")
