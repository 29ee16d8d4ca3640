"""Errors for names that do not exist, of attributes, arguments and imports: with the name that was meant.

The package and the classes that users hold (collections, states, runs) raise these errors from their ``__getattr__``.
The hint comes from a table of names that people bring from other libraries (`frontends.elsewhere`), or is the public
name that is spelled almost alike. `formerly` marks a function that had other arguments in an earlier version.

>>> print(missing_attribute("", "str", "uper", {"length": "len(text)"}))
a str has no attribute 'uper'
Hint: did you mean 'upper'?
>>> print(missing_attribute("", "str", "length", {"length": "len(text)"}))
a str has no attribute 'length'
Hint: len(text)
>>> @formerly(as_of="the epoch is epoch=")
... def read(name: str, epoch: int = 0) -> None: ...
>>> read("counts", as_of=7)
Traceback (most recent call last):
    ...
TypeError: read() has no argument as_of=
Hint: the epoch is epoch=

Cost: nothing until a name is missing; a marked function takes one Python call more.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from functools import wraps
from types import FrameType
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_ALMOST = 0.82
"""How alike two names are of which one is a slip for the other: at less, insert would be inspect."""


def missing_attribute(
    thing: object, kind: str, name: str, elsewhere: Mapping[str, str], otherwise: str = ""
) -> AttributeError:
    """The error for an attribute that an object does not have.

    `elsewhere` has hints for names of other libraries. A name that is there neither is perhaps a slip: then the hint is
    the public attribute that is meant; without one, the hint is `otherwise`.
    """
    message = f"a {kind} has no attribute {name!r}"
    if not name.startswith("_"):
        hint = elsewhere.get(name) or _meant(name, dir(type(thing))) or otherwise
        message += f"\nHint: {hint}" if hint else ""
    return AttributeError(message, name=name, obj=thing)


def _meant(name: str, attributes: Sequence[str]) -> str:
    """The question whether one of some attributes was meant: one letter more or less, or two in another order."""
    public = [each for each in attributes if not each.startswith("_")]
    close = get_close_matches(name.lower(), public, n=1, cutoff=_ALMOST)
    close += [each for each in public if sorted(each) == sorted(name)]
    return f"did you mean {close[0]!r}?" if close else ""


def missing_name(module: str, name: str, hint: str) -> Exception:
    """The error for a name that a package does not have, for its ``__getattr__``.

    It is an AttributeError, so that ``hasattr`` is False. But ``from package import name`` would put an ImportError
    without the hint in its place. That statement asks for the name twice, first in importlib's `_handle_fromlist`,
    where an ImportError is passed on; so there the error is an ImportError.
    """
    asking: FrameType | None = sys._getframe(1)
    while asking is not None and asking.f_code.co_name == "__getattr__":
        asking = asking.f_back
    if asking is not None and asking.f_code.co_name == "_handle_fromlist":
        return ImportError(
            f"cannot import name {name!r} from {module!r}\nHint: {hint}", name=module
        )
    return AttributeError(f"module {module!r} has no attribute {name!r}\nHint: {hint}", name=name)


def formerly(**hints: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Mark a function that had other arguments before: a call with one of them raises an error with a hint."""

    def mark(function: Callable[P, T]) -> Callable[P, T]:
        @wraps(function)
        def call(*arguments: P.args, **named: P.kwargs) -> T:
            for name in named and hints.keys() & named.keys():
                raise TypeError(
                    f"{function.__name__}() has no argument {name}=\nHint: {hints[name]}"
                )
            return function(*arguments, **named)

        return call

    return mark
