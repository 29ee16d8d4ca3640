"""A kernel that would not be compiled to the same here and now is never loaded, and one that would be is."""

from __future__ import annotations

import ast
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numba import njit
from numba.core import config
from numba.core.registry import cpu_target

import riverrun.state.kernels as kernels
from riverrun.state.entries import ENTRIES, LABELS, labels
from riverrun.state.kernels import compiling, machine_code, targets, values
from riverrun.state.kernels.machine_code import SUFFIX, Shelf, fingerprint, folder_name, is_private
from tests.soaking import some

FOLDER = Path(kernels.__file__ or "").parent
PROCESSOR = ("a platform", "a processor", "")


def run(*command: str | Path, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, *map(str, command)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "changed",
    [path.relative_to(FOLDER).as_posix() for path in sorted(FOLDER.rglob("*.py"))],
)
def test_a_change_in_any_kernel_file_changes_the_fingerprint(changed: str, tmp_path: Path) -> None:
    copy = tmp_path / "kernels"
    shutil.copytree(FOLDER, copy, ignore=shutil.ignore_patterns("__pycache__", "compiled"))
    assert fingerprint(copy) == fingerprint(FOLDER)  # wherever it lies
    fingerprint.cache_clear()
    with (copy / changed).open("a") as file:
        file.write("# changed\n")
    assert fingerprint(copy) != fingerprint(FOLDER)


def test_times_of_files_do_not_matter(tmp_path: Path) -> None:
    copy = tmp_path / "kernels"
    shutil.copytree(FOLDER, copy, ignore=shutil.ignore_patterns("__pycache__", "compiled"))
    for source in copy.glob("*.py"):
        os.utime(source, (0, 0))
    assert folder_name(copy, PROCESSOR) == folder_name(FOLDER, PROCESSOR)


def test_all_that_code_depends_on_is_in_the_name_of_the_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "source.py").touch()
    names = {folder_name(FOLDER, PROCESSOR), folder_name(tmp_path, PROCESSOR)}
    for processor in (("another", *PROCESSOR[1:]), (*PROCESSOR[:2], "+avx512f")):
        names.add(folder_name(FOLDER, processor))
    parts = machine_code.environment()
    assert sys.implementation.cache_tag in parts
    for at in range(len(parts)):
        folder_name.cache_clear()
        changed = (*parts[:at], "changed", *parts[at + 1 :])
        monkeypatch.setattr(machine_code, "environment", lambda parts=changed: parts)
        names.add(folder_name(FOLDER, PROCESSOR))
    folder_name.cache_clear()
    assert len(names) == 4 + len(parts)


def test_settings_that_change_code_are_part_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    before = machine_code.environment()
    monkeypatch.setattr(config, "BOUNDSCHECK", 1)
    assert machine_code.environment() != before


def test_kernels_are_compiled_from_their_folder_only() -> None:
    """What comes from elsewhere would not be in the fingerprint."""
    for source in FOLDER.rglob("*.py"):
        for node in ast.walk(ast.parse(source.read_text())):
            if isinstance(node, ast.ImportFrom):
                module = node.module or ""
                assert not module.startswith("riverrun") or module.startswith(kernels.__name__)
            elif isinstance(node, ast.Import):
                assert not any(each.name.startswith("riverrun") for each in node.names)


# ---- the baseline


def test_only_kernels_are_compiled_for_the_baseline() -> None:
    baseline = targets.baseline()
    assert baseline is not None, "this machine is below the baseline"
    assert compiling.PROCESSOR[1] == baseline
    host = cpu_target.target_context.codegen().magic_tuple()
    assert host[1] != baseline

    @njit  # type: ignore[untyped-decorator]
    def of_a_user(x: int) -> int:
        return values.mix(x) >> np.uint64(1)

    assert of_a_user(np.uint64(7)) == int(values.mix(np.uint64(7))) >> 1
    (compiled,) = of_a_user.overloads.values()
    assert compiled.library.codegen.magic_tuple() == host


@pytest.mark.parametrize(
    ("name", "value"),
    [("RIVERRUN_CPU", "host"), ("NUMBA_CPU_NAME", "x86-64-v2"), ("NUMBA_ENABLE_AVX", "0")],
)
def test_who_asks_gets_another_processor(name: str, value: str) -> None:
    code = "from riverrun.state.kernels import targets; print(targets.baseline())"
    assert run("-c", code, **{name: value}) == "None\n"


def test_a_machine_below_the_baseline_compiles_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    everything = dict.fromkeys(targets.X86_64_V3, True)
    for machine, expected in (("x86_64", "x86-64-v3"), ("aarch64", "generic"), ("riscv64", None)):
        monkeypatch.setattr(targets.platform, "machine", lambda machine=machine: machine)
        monkeypatch.setattr(targets.binding, "get_host_cpu_features", lambda: everything)
        assert targets.baseline() == expected
    monkeypatch.setattr(targets.platform, "machine", lambda: "x86_64")
    for lacking in targets.X86_64_V3:
        features = {**everything, lacking: False}
        monkeypatch.setattr(targets.binding, "get_host_cpu_features", lambda of=features: of)
        assert targets.baseline() is None


# ---- files


SMALL = """
import sys
from riverrun.state.kernels.compiling import kernel

@kernel
def inner(x):
    return x * 3 + 1

@kernel
def outer(x):
    return inner(x) - 1

assert outer(5) == 15
print(sum(outer.stats.cache_misses.values()), sum(outer.stats.cache_hits.values()))
"""


def small(folder: Path) -> Path:
    folder.mkdir()
    (folder / "small.py").write_text(SMALL)
    return folder


def files_of(folder: Path) -> list[Path]:
    return sorted(folder.glob(f"compiled/*/*{SUFFIX}"))


def test_what_one_checkout_compiles_serves_another(tmp_path: Path) -> None:
    first, second = small(tmp_path / "first"), small(tmp_path / "second")
    assert run(first / "small.py") == "1 0\n"
    assert len(files_of(first)) == 2
    assert files_of(second) == []
    shutil.copytree(first / "compiled", second / "compiled")
    os.utime(second / "small.py", (0, 0))
    assert run(second / "small.py") == "0 1\n"
    (second / "another.py").touch()  # another source beside it
    assert run(second / "small.py") == "1 0\n"


@pytest.mark.sampled
@pytest.mark.parametrize("damage", some(["cut", "moved", "flipped", "emptied", "swapped"], 2))
def test_a_damaged_file_is_compiled_again(damage: str, tmp_path: Path) -> None:
    folder = small(tmp_path / "program")
    assert run(folder / "small.py") == "1 0\n"
    inner, outer = files_of(folder)
    whole = outer.read_bytes()
    if damage == "cut":
        outer.write_bytes(whole[: len(whole) // 2])
    elif damage == "emptied":
        outer.write_bytes(b"")
    elif damage == "flipped":
        at = len(whole) - 100
        outer.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
    elif damage == "swapped":  # whole, and not what belongs there
        outer.write_bytes(inner.read_bytes())
    else:  # from a folder of other sources
        (folder / "another.py").touch()
        assert run(folder / "small.py") == "1 0\n"
        (other,) = (each for each in files_of(folder) if each.name == outer.name and each != outer)
        other.write_bytes(whole)
    assert run(folder / "small.py") == "1 0\n"
    assert run(folder / "small.py") == "0 1\n"


def test_what_is_not_whole_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "source.py").touch()
    shelf = Shelf(tmp_path / "source.py", PROCESSOR)
    shelf.write("a.kernel", (1, 2))
    place = shelf.writable()
    assert place is not None
    assert place.parent == tmp_path / "compiled"
    assert shelf.read("a.kernel") == (1, 2)
    whole = (place / "a.kernel").read_bytes()
    for size in range(0, len(whole), 7):
        (place / "a.kernel").write_bytes(whole[:size])
        assert shelf.read("a.kernel") is None
    for at in range(len(whole)):
        (place / "a.kernel").write_bytes(whole[:at] + bytes([whole[at] ^ 64]) + whole[at + 1 :])
        assert shelf.read("a.kernel") is None
    (place / "a.kernel").write_bytes(whole)
    assert shelf.read("a.kernel") == (1, 2)
    (place / "b.kernel").write_bytes(whole)
    assert shelf.read("b.kernel") is None


def test_a_folder_that_others_can_write_is_neither_read_nor_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "above" / "cache"
    own.mkdir(parents=True)
    (tmp_path / "source.py").touch()
    monkeypatch.setattr(config, "CACHE_DIR", str(own))
    shelf = Shelf(tmp_path / "source.py", PROCESSOR)
    shelf.write("a.kernel", 1)
    assert shelf.read("a.kernel") == 1
    for folder, mode in ((own / "riverrun", 0o777), (own / "riverrun", 0o775), (own, 0o777)):
        before = stat.S_IMODE(folder.stat().st_mode)
        folder.chmod(mode)
        assert not is_private(own / "riverrun")
        assert shelf.read("a.kernel") is None
        assert shelf.writable() is None
        shelf.write("b.kernel", 2)
        folder.chmod(before)
        assert shelf.read("a.kernel") == 1
        assert shelf.read("b.kernel") is None
    own.chmod(0o1777)  # as /tmp: nobody else can put another folder in the place of ours
    assert shelf.read("a.kernel") == 1


def test_a_folder_of_somebody_else_is_not_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert is_private(tmp_path)
    owner = tmp_path.stat().st_uid
    monkeypatch.setattr(machine_code.os, "geteuid", lambda: owner + 1)
    assert is_private(tmp_path) is (owner == 0)  # root is trusted by everybody
    if owner == 0:
        os.chown(tmp_path, 4711, -1)
        assert not is_private(tmp_path)
        os.chown(tmp_path, 0, -1)
    assert not is_private(tmp_path / "nothing")


def test_other_sources_leave_a_few_folders_behind(tmp_path: Path) -> None:
    for number in range(10):
        (tmp_path / "source.py").write_text(f"# {number}")
        fingerprint.cache_clear()
        folder_name.cache_clear()
        Shelf(tmp_path / "source.py", PROCESSOR).write("a.kernel", number)
        os.utime(next(iter((tmp_path / "compiled").iterdir())), (number, number))
    left = list((tmp_path / "compiled").iterdir())
    assert len(left) == machine_code.REMEMBERED + 1


def test_a_kernel_that_was_typed_in_is_not_kept(tmp_path: Path) -> None:
    code = SMALL.replace("import sys\n", "")
    assert run("-c", code, NUMBA_CACHE_DIR=str(tmp_path)) == "1 0\n"
    assert run("-c", code, NUMBA_CACHE_DIR=str(tmp_path)) == "1 0\n"


def test_a_kernel_that_was_carried_is_loaded(tmp_path: Path) -> None:
    folder = small(tmp_path / "program")
    assert run(folder / "small.py") == "1 0\n"
    carried = {f"{each.parent.name}/{each.name}": each.read_bytes() for each in files_of(folder)}
    shutil.rmtree(folder / "compiled")
    receive = "from riverrun.state.kernels.machine_code import CARRIED\nimport json\n"
    receive += f"CARRIED.update({carried!r})\n"
    (tmp_path / "receive.py").write_text(
        receive + f"import runpy; runpy.run_path({str(folder / 'small.py')!r}, run_name='__main__')"
    )
    assert run(tmp_path / "receive.py") == "0 1\n"


LOADING = """
from riverrun.state.kernels import compiling, gathering
import numpy as np

LABEL = compiling.label("riverrun.state.kernels.gathering.is_ascending", compiling.signature_of("u8[1]"))
words = np.arange(3, dtype=np.uint64)
"""


def output_of(code: str, cache: Path) -> list[str]:
    # Bounds are checked, so that no file that is there already fits.
    return run("-c", LOADING + code, NUMBA_CACHE_DIR=str(cache), NUMBA_BOUNDSCHECK="1").split()


def test_kernels_are_loaded_before_they_are_called(tmp_path: Path) -> None:
    hits = "print(sum(gathering.is_ascending.stats.cache_hits.values()))\n"
    load, call = "compiling.load([LABEL, 'no.kernel'])\n", "gathering.is_ascending(words)\n"
    # Where there is no file, nothing is compiled beforehand.
    count = "print(len(gathering.is_ascending.overloads))\n"
    assert output_of(load + count, tmp_path) == ["0"]
    (label,) = output_of("print(LABEL)", tmp_path)
    assert output_of(f"{call}print(*compiling.used())", tmp_path) == [label]
    assert output_of(f"{load}{hits}{call}{hits}print(*compiling.used())", tmp_path) == [
        "1",
        "1",
        label,
    ]


@pytest.mark.parametrize("name", ["../../etc/passwd", "a-0", "os.system-0123456789abcdef", "-", ""])
def test_a_label_that_is_none_is_left_alone(name: str) -> None:
    compiling.load([name])


def test_labels_tell_signatures_apart() -> None:
    assert len(LABELS) == sum(len(each) for each in ENTRIES.values())
    assert set(labels("rows", "join", "no such kind")) < set(labels())
    for signatures in ENTRIES.values():
        for signature in signatures:
            assert compiling.signature_of(compiling.spelled(signature)) == signature


def test_a_callee_in_another_file_is_not_stale(tmp_path: Path) -> None:
    """What Numba alone gets wrong: the caller's file is the same, its callee's is not."""
    package = tmp_path / "kernels"
    package.mkdir()
    (package / "__init__.py").touch()
    for name in ("compiling.py", "machine_code.py", "targets.py"):
        source = (FOLDER / name).read_text().replace("riverrun.state.kernels", "kernels")
        (package / name).write_text(source)
    caller = "from kernels.compiling import kernel\nfrom kernels.callee import callee\n"
    (package / "caller.py").write_text(f"{caller}\n@kernel\ndef caller(x):\n    return callee(x)\n")
    answers = []
    for step in (1, 2):
        (package / "callee.py").write_text(
            "from kernels.compiling import kernel\n\n"
            f"@kernel\ndef callee(x):\n    return x + {step}\n"
        )
        code = "from kernels.caller import caller; print(caller(0))"
        answers.append(int(run("-c", code, PYTHONPATH=str(tmp_path))))
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
    process = subprocess.run(
        [sys.executable, str(program), str(ready), "a"],
        env={**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert process.stdout.split() == ["1", "1"]


def test_kernels_can_be_left_to_python() -> None:
    """As for a fuzzer that looks at which lines were reached."""
    process = subprocess.run(
        [sys.executable, "-c", "from riverrun.state.kernels import values; print(values.mix)"],
        env={**os.environ, "NUMBA_DISABLE_JIT": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert process.stdout.startswith("<function mix")
