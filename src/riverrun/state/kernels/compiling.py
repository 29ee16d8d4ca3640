"""How kernels are compiled: `@kernel` is Numba with the GIL released, for a baseline, and kept on disk.

All kernels are declared with it, and nothing else in the package compiles anything. It promises

- **right code**: a kernel that is loaded is the one that would be compiled here and now (`machine_code` has the law,
  and says where files lie and why they are believed);
- **code that travels**: it is compiled for a baseline of processors (`targets`), not for the one that is here;
- **once**: processes that start at once on one machine, as workers do, need the same kernels at the same moment. One
  of them compiles a kernel while the others wait for it, and load what it has made: the lock is a file beside the
  kernel's. Kernels do not call each other in circles, so a process that holds one lock waits only for kernels further
  down.

A kernel is loaded when it is first called, which takes some ten milliseconds; all that a program uses, half a second.
A process that knows from others which ones it will need (`used` tells) has them loaded beforehand, by `load`, in a
thread of its own. It changes when they are loaded, and never which. Where files have none, `preparing` compiles those
that a plan needs in several processes at once, before the plan runs.

A kernel is compiled once for each combination of types that it is called with. Constants in a call are not types of
their own here, as they are to Numba: it would compile a kernel anew for each of them, to code that LLVM makes of
constants anyway where it inlines the call.

>>> import numpy as np
>>> from riverrun.state.kernels.gathering import is_ascending
>>> is_ascending(np.array([1, 2, 3], np.uint64))
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
    """What a dispatcher of Numba asks for compiled code: the files of one kernel."""

    def __init__(self, function: Any, processor: tuple[str, ...]) -> None:
        self._name = name_of(function)
        self.shelf = Shelf(Path(inspect.getfile(function)).resolve(), processor)

    @property
    def cache_path(self) -> str:
        return str(self.shelf.writable())

    def has(self, signature: Signature) -> bool:
        return self.shelf.has(label(self._name, signature) + SUFFIX)

    def file(self, signature: Signature) -> Path | None:
        """The file of a kernel that is whole, if there is one."""
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
        """No other process compiles this kernel meanwhile, or, without waiting, False: another one does.

        Where files cannot be locked, several may.
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
        """How another kernel calls this one: with values, and not with constants."""
        return super().get_call_template(tuple(types.unliteral(each) for each in args), kws)

    def _compile_for_args(self, *args: Any, **kws: Any) -> Any:
        """What Numba calls when Python calls a kernel with types that it has not seen in this process."""
        signature = tuple(self.typeof_pyval(each) for each in args)
        _CALLED[name_of(self.py_func), signature] = None
        if not self.is_ready(signature):
            _say()
        return super()._compile_for_args(*args, **kws)

    def is_ready(self, signature: Signature, *, whole: bool = False) -> bool:
        """Whether nothing is left to compile; as far as can be seen without reading files, if not `whole`."""
        if signature in self.overloads:
            return True
        if self.files is None:
            return False
        return self.files.has(signature) and (not whole or self.files.file(signature) is not None)

    def compile(self, sig: Any) -> Any:
        """Load or compile the kernel for one signature; no other process compiles it meanwhile.

        Numba's own lock, of the process, is taken first: a thread that waits for another process holds no kernel that
        a thread of this one could be waiting for.
        """
        if self.files is None or not isinstance(sig, tuple):
            return super().compile(sig)
        with global_compiler_lock:
            # A kernel that calls itself is held already.
            if not self._holding and not self.load(sig):
                self.compile_alone(sig)
            return super().compile(sig)

    def compile_alone(self, signature: Signature, *, wait: bool = True) -> bool:
        """Compile the kernel, or load it if another process has made it meanwhile; False: one is about to."""
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
        """Take a kernel from its file, and say whether there is one."""
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
    """The name of a kernel, by which others ask for it."""
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
    """Once in a process: what it is busy with."""
    _LOG.warning(
        "compiling kernels that are not ready for this machine; `python -m riverrun kernels` makes all of them ready"
    )


def label(name: str, signature: Signature) -> str:
    """The name of a kernel together with types: what processes call it among each other, and its file."""
    return f"{name}-{blake2b(repr(signature).encode(), digest_size=8).hexdigest()}"


_SPELLED: dict[str, Any] = {
    "i1": types.int8, "i2": types.int16, "i4": types.int32, "i8": types.int64,
    "u1": types.uint8, "u2": types.uint16, "u4": types.uint32, "u8": types.uint64,
    "f4": types.float32, "f8": types.float64, "b": types.boolean,
}  # fmt: skip
_SPELLINGS = {numba_type: spelling for spelling, numba_type in _SPELLED.items()}


def signature_of(spelling: str) -> Signature:
    """Types that are spelled as in `state.entries`."""
    signature = []
    for each in spelling.split():
        word, _, array = each.partition("[")
        of: Any = _SPELLED[word]
        if array:
            of = types.Array(of, int(array.rstrip("!]")), "C", readonly=array.endswith("!"))
        signature.append(of)
    return tuple(signature)


def spelled(signature: Signature) -> str:
    """The other way round; what has no spelling is written as Numba does."""
    words = []
    for each in signature:
        if isinstance(each, types.Array) and each.layout == "C" and each.dtype in _SPELLINGS:
            words.append(f"{_SPELLINGS[each.dtype]}[{each.ndim}]{'' if each.mutable else '!'}")
        else:
            words.append(_SPELLINGS.get(each, repr(each)))
    return " ".join(words)


def called() -> list[tuple[str, Signature]]:
    """The kernels that this process has called or loaded, each with its types, the first one first."""
    return list(_CALLED)


def used() -> list[str]:
    """The labels of those kernels, and of those that were loaded beforehand."""
    return [label(name, signature) for name, signature in called()]


def load(labels: Iterable[str]) -> None:
    """Load some kernels from their files; those that have none, or are not known here, are left alone.

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
