"""Preparing: missing kernels are compiled before they are called, by several processes at once.

As a rule nothing is missing: a wheel brings its kernels, `make setup` compiles them for a checkout, and the files of
compiled kernels stay on a machine. Kernels are missing on the first start of a source tree, or on a processor that does
not fit the baseline (`kernels.targets`). `make_ready` compiles the missing ones, and returns when they are compiled:
for a run the kernels of its plan, for a worker the kernels named by its driver, and for the command
``python -m riverrun kernels`` all kernels in `entries`. (Where only one kernel is missing, it is left to its first
call. Where files can be kept nowhere, every kernel is, and a warning says so.) For workers on other machines, `carry`
gives the compiled files as bytes, which the launcher of Spark sends.

Numba compiles one function at a time in a process, so there is a helper process for each core, and 8 at most. Every
helper gets the whole list and takes the first kernel that is neither compiled nor being compiled; the locks of
`kernels.compiling` ensure that a kernel is compiled once. Helpers write files and report nothing else. Law:

- **Nothing depends on helpers.** Where they cannot be started, or are ended, a kernel is compiled when it is called.

>>> from riverrun.state.entries import ROWS, labels
>>> missing(labels(*ROWS))  # `make setup` has compiled them
[]

Cost: where nothing is missing, looking for some thirty files once in a process. Otherwise a helper takes a second to
start and 150 MB of memory; all kernels of a program with joins and loops take about a minute of processor time.
"""

from __future__ import annotations

import gc
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from threading import Lock

from riverrun.state.entries import LABELS
from riverrun.state.kernels import compiling

_LOG = logging.getLogger(__name__)
_LOOKING = 0.1  # seconds between two looks for files that helpers have written
_MOST = 8  # helpers
_ENDING = 5.0  # seconds that a helper is given to end before it is killed
_TURN = Lock()
_READY: set[str] = set()


def missing(wanted: Iterable[str], *, anew: bool = False) -> list[str]:
    """The labels, of those given, that are entries and have not been compiled for this machine.

    Files are not read, and kernels that were ready before are not looked for again, unless `anew` asks for both.
    """
    absent = []
    for each in wanted:
        entry = None if each in _READY and not anew else _entry(each)
        if entry is not None and not entry[0].is_ready(entry[1], whole=anew):
            absent.append(each)
    return absent


def compiled_files(wanted: Iterable[str] = LABELS) -> list[Path]:
    """The files of the labels that have a file, each verified."""
    files = []
    for each in wanted:
        entry = _entry(each)
        if entry is not None and entry[0].files is not None:
            file = entry[0].files.file(entry[1])
            if file is not None:
                files.append(file)
    return files


def carry(wanted: Iterable[str]) -> dict[str, bytes]:
    """The files of some labels, to be sent to a process that may be on another machine (`machine_code.CARRIED`)."""
    return {f"{file.parent.name}/{file.name}": file.read_bytes() for file in compiled_files(wanted)}


def make_ready(
    wanted: Iterable[str], *, progress: Callable[[int, int], None] | None = None
) -> list[str]:
    """Compile the missing kernels among some labels, and log it; return the labels that were missing.

    `progress` is called now and then with the number of kernels compiled so far and of all. An interrupt ends the
    helpers; the files that they have written stay.
    """
    wanted = list(wanted)
    with _TURN:
        absent = missing(wanted, anew=progress is not None)
        if absent and not _can_be_saved(absent[0]):
            _LOG.warning(
                "each process compiles its kernels for itself: nothing can be kept beside the sources, nor in the "
                "user's own folder (riverrun.state.kernels.machine_code says when); NUMBA_CACHE_DIR names another one"
            )
        elif len(absent) > 1 or (absent and progress):  # one alone is compiled when it is called
            level = logging.INFO if progress else logging.WARNING
            _LOG.log(
                level,
                "compiling %d kernels for this machine, once: about half a minute where two cores are idle",
                len(absent),
            )
            start = time.monotonic()
            _compile(absent, progress or (lambda done, of: None))
            _LOG.log(level, "kernels are ready, after %.0f s", time.monotonic() - start)
        _READY.update(wanted)
    return absent


def _entry(label: str) -> tuple[compiling.Kernel, compiling.Signature] | None:
    """The kernel of a label and its types; None for a label that is no entry."""
    entry = LABELS.get(label)
    if entry is None:
        return None
    import_module(entry[0].rpartition(".")[0])
    kernel = compiling.KERNELS.get(entry[0])
    return None if kernel is None or kernel.files is None else (kernel, entry[1])


def _can_be_saved(label: str) -> bool:
    entry = _entry(label)
    return (
        entry is not None
        and entry[0].files is not None
        and entry[0].files.shelf.writable() is not None
    )


def _compile(absent: list[str], progress: Callable[[int, int], None]) -> None:
    helpers: list[subprocess.Popen[str]] = []
    try:
        for _ in range(0 if not sys.executable else min(_cores(), _MOST, len(absent))):
            with suppress(OSError):
                helpers.append(_start(absent))
        while any(helper.poll() is None for helper in helpers):
            progress(len(absent) - len(missing(absent)), len(absent))
            time.sleep(_LOOKING)
        progress(len(absent) - len(missing(absent)), len(absent))
    finally:
        for helper in helpers:
            helper.terminate()
        for helper in helpers:
            try:
                helper.wait(_ENDING)
            except subprocess.TimeoutExpired:
                helper.kill()
                helper.wait()


def _start(absent: list[str]) -> subprocess.Popen[str]:
    """Start a helper, which loads this package from where this process loaded it."""
    path = os.pathsep.join(os.path.abspath(each) for each in sys.path)
    helper = subprocess.Popen(
        [sys.executable, "-c", f"from {__name__} import help_out; help_out()"],
        env={**os.environ, "PYTHONPATH": path},
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert helper.stdin is not None
    with suppress(OSError), helper.stdin:  # it may have ended already
        helper.stdin.write("\n".join(absent))
    return helper


def _cores() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1


def help_out() -> None:
    """Be a helper: compile kernels that no other process compiles, until all are compiled or the parent is gone."""
    parent, left = os.getppid(), sys.stdin.read().split()
    gc.disable()  # a compiler makes many objects, and the process ends soon
    logging.disable()
    while left:
        busy = []
        for each in left:
            entry = _entry(each)
            if os.getppid() != parent:
                return
            if (
                entry is not None
                and not entry[0].is_ready(entry[1], whole=True)
                and not entry[0].compile_alone(entry[1], wait=False)
            ):
                busy.append(each)
        if busy == left:
            time.sleep(_LOOKING)
        left = busy
