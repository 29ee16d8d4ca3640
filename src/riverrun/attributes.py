"""Errors for attributes and arguments that do not exist: with the nearest name, or the name that they have here.

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
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from functools import wraps
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
