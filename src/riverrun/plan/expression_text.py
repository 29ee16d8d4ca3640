"""A Polars expression as Polars writes it, apart from the Python functions in the expression.

`plan.identity` asks for the bytes of an expression and looks into the functions itself; the front ends ask for JSON, to
read how an expression is built. Polars would pickle the functions, which takes long for a function that holds much
data, and fails for a function that cannot be pickled. So while Polars writes, ``sys.modules["pickle"]`` is a stand-in.
Laws:

- **Functions apart.** Polars writes nothing in the place of a function. The functions come beside the text, in the
  order in which Polars met them.
- **One thread.** The stand-in answers only the thread that writes. Every other thread, and everybody who keeps the
  stand-in after the writing, gets what the real pickle gives.

>>> import polars as pl
>>> text, functions = written_apart(pl.col("x").map_batches(len, pl.Int64), "json")
>>> text[:45], len(functions)
('{"AnonymousFunction":{"input":[{"Column":"x"}', 1)

Cost: some microseconds besides the writing. A lock keeps two threads from writing at the same time.
"""

from __future__ import annotations

import pickle
import sys
from threading import Lock, get_ident
from types import ModuleType
from typing import Any, Literal, overload

_writing = Lock()


class _Listening(ModuleType):
    """Stands in for `pickle` while one thread writes: collects the functions that Polars wants pickled."""

    def __init__(self, thread: int) -> None:
        super().__init__("pickle")
        self.thread: int | None = thread
        self.functions: list[object] = []

    def dumps(self, value: object, *arguments: Any, **options: Any) -> bytes:
        if get_ident() != self.thread:  # another thread, which means the real pickle
            return pickle.dumps(value, *arguments, **options)
        self.functions.append(value)
        return b""

    def __getattr__(self, name: str) -> Any:
        return getattr(pickle, name)


@overload
def written_apart(expression: Any, form: Literal["binary"]) -> tuple[bytes, list[object]]: ...
@overload
def written_apart(expression: Any, form: Literal["json"]) -> tuple[str, list[object]]: ...
def written_apart(
    expression: Any, form: Literal["binary", "json"]
) -> tuple[bytes | str, list[object]]:
    """An expression as Polars writes it without its Python functions, and these functions."""
    with _writing:
        listening = _Listening(get_ident())
        sys.modules["pickle"] = listening
        try:
            written: bytes | str = expression.meta.serialize(format=form)
        finally:
            listening.thread = None
            sys.modules["pickle"] = pickle
    return written, listening.functions
