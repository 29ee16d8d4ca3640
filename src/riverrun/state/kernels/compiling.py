"""How kernels are compiled: `@kernel` is Numba, with the GIL released, and with machine code that is kept in files.

All kernels are declared with `@kernel`, and nothing else in the package compiles anything. Laws:

- **Right code.** A kernel that is loaded from a file is the one that compiling would give here and now (`machine_code`
  says where the files are, and how a file is checked before it is loaded).
- **Code that travels.** Kernels are compiled for a *baseline*, the oldest processors that are to run them, and not for
  the processor at hand (`targets` says which baseline, and when there is none).
- **Compiled once.** Processes that start together on one machine, as workers do, need the same kernels at the same
  moment. One process compiles a kernel while the others wait; then these load the file. The lock is a file beside that
  of the kernel. Processes do not wait for each other in a circle: a process that holds the lock of a kernel waits only
  for locks of kernels which that kernel calls, and no kernel calls itself by way of others. (Where no file can be
  locked, several processes may compile one kernel, which costs time and nothing else.)

A kernel is loaded at its first call, or earlier: workers tell the driver which kernels they have called (`used`), a new
worker is told the names of these kernels and of those that the plan needs, and a thread of the new worker loads them in
the background (`load`). Loading early changes no result. Where files are missing, `state.preparing` compiles the
kernels of a plan in several processes at once, before the plan runs.

A kernel is compiled once for each combination of argument types. Numba by itself would also compile a kernel anew for
each constant in a call; that is switched off, as LLVM makes use of constants anyway where it inlines the call.

Cost: loading takes some ten milliseconds a kernel, half a second for all kernels of a program.

>>> import numpy as np
>>> from riverrun.state.kernels.gathering import is_ascending
>>> words = np.array([1, 2, 3], np.uint64)
>>> words.flags.writeable = False  # as those of an Arrow array: another type for Numba
>>> is_ascending(words)
True
>>> any(label.startswith("riverrun.state.kernels.gathering.is_ascending-") for label in used())
True
"""

from __future__ import annotations

import fcntl
import inspect
import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Any, TypeVar

from numba.core import config, types
from numba.core.caching import NullCache
from numba.core.compiler import CompileResult
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import CPUDispatcher

from riverrun.state.kernels.machine_code import SUFFIX, Shelf
from riverrun.state.kernels.targets import target

_LOG = logging.getLogger(__name__)
F = TypeVar("F", bound=Callable[..., Any])
Signature = tuple[Any, ...]

OPTIONS = {
    "nopython": True,
    "nogil": True,
    "error_model": "numpy",
    "boundscheck": None,
    "no_cfunc_wrapper": True,  # nobody calls a kernel from C
}
KERNELS: dict[str, Kernel] = {}
_CALLED: dict[tuple[str, Signature], None] = {}


class _Files(NullCache):  # type: ignore[misc]
    """The files of one kernel, in the form in which a dispatcher of Numba asks for them."""

    def __init__(self, function: Any, processor: tuple[str, ...]) -> None:
        self._name = name_of(function)
        self.shelf = Shelf(Path(inspect.getfile(function)).resolve(), processor)

    @property
    def cache_path(self) -> str:
        return str(self.shelf.writable())

    def has(self, signature: Signature) -> bool:
        return self.shelf.has(label(self._name, signature) + SUFFIX)

    def file(self, signature: Signature) -> Path | None:
        """The file for these types, if there is one and it is whole."""
        return self.shelf.find(label(self._name, signature) + SUFFIX)

    def load_overload(self, sig: Signature, target_context: Any) -> Any:
        signature, reduced = self.shelf.read(label(self._name, sig) + SUFFIX) or (None, None)
        if signature != sig:
            return None
        target_context.refresh()
        return CompileResult._rebuild(target_context, *reduced)

    def save_overload(self, sig: Signature, data: Any) -> None:
        if not data.lifted and not data.library.has_dynamic_globals:  # addresses in this process
            reduced = list(data._reduce())
            reduced[6] = ""  # types as a text, with paths
            self.shelf.write(label(self._name, sig) + SUFFIX, (sig, tuple(reduced)))

    @contextmanager
    def held(self, signature: Signature, *, wait: bool = True) -> Iterator[bool]:
        """A ``with`` block in which no other process compiles this kernel. Without `wait`, False if another one does.

        Where files cannot be locked, several processes may be in the block.
        """
        place = self.shelf.writable()
        try:
            if place is None:
                raise OSError
            path = place / f"{label(self._name, signature)}.lock"
            lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError:
            yield True
            return
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError:
                yield False
                return
            except OSError:
                pass
            yield True
        finally:
            with suppress(OSError):
                # said, since a fork may have a copy of the descriptor
                fcntl.flock(lock, fcntl.LOCK_UN)
            os.close(lock)


class Kernel(CPUDispatcher):  # type: ignore[misc]
    """Numba's dispatcher, with a target, files and a lock of its own."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._holding = False
        self.files: _Files | None = None

    def get_call_template(self, args: Any, kws: Any) -> Any:
        """How another kernel calls this one: constants are passed as plain values."""
        return super().get_call_template(tuple(types.unliteral(each) for each in args), kws)

    def _compile_for_args(self, *args: Any, **kws: Any) -> Any:
        """Called by Numba when Python calls the kernel with types that are new in this process."""
        signature = tuple(self.typeof_pyval(each) for each in args)
        _CALLED[name_of(self.py_func), signature] = None
        if not self.is_ready(signature):
            _say()
        return super()._compile_for_args(*args, **kws)

    def is_ready(self, signature: Signature, *, whole: bool = False) -> bool:
        """Whether the kernel is compiled for these types. Files are read, and checked, only if `whole`."""
        if signature in self.overloads:
            return True
        if self.files is None:
            return False
        return self.files.has(signature) and (not whole or self.files.file(signature) is not None)

    def compile(self, sig: Any) -> Any:
        """Load or compile the kernel for one signature; no other process compiles it meanwhile.

        Numba's own lock, which is for this process, is taken first. So a thread that waits for another process holds
        the lock of no kernel for which another thread of this process waits.
        """
        if self.files is None or not isinstance(sig, tuple):
            return super().compile(sig)
        with global_compiler_lock:
            # A kernel that calls itself is held already.
            if not self._holding and not self.load(sig):
                self.compile_alone(sig)
            return super().compile(sig)

    def compile_alone(self, signature: Signature, *, wait: bool = True) -> bool:
        """Compile the kernel, or load it if another process has compiled it meanwhile. False, without `wait`, when
        another process is compiling it."""
        assert self.files is not None
        with global_compiler_lock, self.files.held(signature, wait=wait) as mine:
            if mine:
                self._holding = True
                try:
                    super().compile(signature)
                finally:
                    self._holding = False
            return mine

    def load(self, signature: Signature) -> bool:
        """Load the kernel from its file; False if there is no file."""
        assert self.files is not None
        with global_compiler_lock:
            if signature in self.overloads:
                return True
            compiled = self.files.load_overload(signature, self.targetctx)
            if compiled is None:
                return False
            self._cache_hits[signature] += 1
            self.targetctx.insert_user_function(
                compiled.entry_point, compiled.fndesc, [compiled.library]
            )
            self.add_overload(compiled)
            return True


_TARGET = target()
Kernel.targetdescr = _TARGET
PROCESSOR: tuple[str, ...] = tuple(
    str(part) for part in _TARGET.target_context.codegen().magic_tuple()
)


def name_of(function: Any) -> str:
    """The name of a kernel, by which other processes ask for it."""
    return f"{function.__module__}.{function.__qualname__}"


def kernel(function: F) -> F:
    """Compile `function` when it is first called; later processes load it."""
    if config.DISABLE_JIT:  # Python itself runs it, as where coverage is looked at
        return function
    dispatcher = Kernel(py_func=function, targetoptions=dict(OPTIONS))
    files = _Files(function, PROCESSOR)
    if files.shelf.sources_are_known:
        dispatcher.files = dispatcher._cache = files
    KERNELS[name_of(function)] = dispatcher
    return dispatcher  # type: ignore[return-value]


@cache
def _say() -> None:
    """Log, once in a process, that it is compiling."""
    _LOG.warning(
        "compiling kernels that are not ready for this machine; `python -m riverrun kernels` makes all of them ready"
    )


def label(name: str, signature: Signature) -> str:
    """The name of a kernel together with types: the name of its file, and the one that processes pass to each other."""
    return f"{name}-{blake2b(repr(signature).encode(), digest_size=8).hexdigest()}"


_SPELLED: dict[str, Any] = {
    "i1": types.int8, "i2": types.int16, "i4": types.int32, "i8": types.int64,
    "u1": types.uint8, "u2": types.uint16, "u4": types.uint32, "u8": types.uint64,
    "f4": types.float32, "f8": types.float64, "b": types.boolean,
}  # fmt: skip
_SPELLINGS = {numba_type: spelling for spelling, numba_type in _SPELLED.items()}


def signature_of(spelling: str) -> Signature:
    """The types that a spelling stands for, as in `state.entries`."""
    signature = []
    for each in re.findall(r"\([^)]*\)|\S+", spelling):
        if each.startswith("("):
            signature.append(types.Tuple(signature_of(each.strip("()"))))
            continue
        word, _, array = each.partition("[")
        of: Any = _SPELLED[word]
        if array:
            of = types.Array(of, int(array.rstrip("!]")), "C", readonly=array.endswith("!"))
        signature.append(of)
    return tuple(signature)


def spelled(signature: Signature) -> str:
    """The spelling of types: the inverse of `signature_of`. Types without a spelling are written as Numba does."""
    words = []
    for each in signature:
        if isinstance(each, types.Array) and each.layout == "C" and each.dtype in _SPELLINGS:
            words.append(f"{_SPELLINGS[each.dtype]}[{each.ndim}]{'' if each.mutable else '!'}")
        elif isinstance(each, types.BaseTuple):
            words.append(f"({spelled(tuple(each))})")
        else:
            words.append(_SPELLINGS.get(each, repr(each)))
    return " ".join(words)


def called() -> list[tuple[str, Signature]]:
    """The kernels that this process has called or loaded, each with its types, in the order of first use."""
    return list(_CALLED)


def used() -> list[str]:
    """The labels of all kernels that this process has called or loaded."""
    return [label(name, signature) for name, signature in called()]


def load(labels: Iterable[str]) -> None:
    """Load some kernels from their files. Labels without a file, or of unknown kernels, are skipped.

    May be called in any thread: a kernel that is called meanwhile is loaded once.
    """
    for each in labels:
        name, _, digest = each.rpartition("-")
        dispatcher = KERNELS.get(name)
        if dispatcher is not None and dispatcher.files and re.fullmatch("[0-9a-f]{16}", digest):
            signature, _ = dispatcher.files.shelf.read(each + SUFFIX) or (None, None)
            if signature is not None and label(name, signature) == each:
                dispatcher.load(signature)
                _CALLED[name, signature] = None
