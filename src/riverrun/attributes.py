"""Attributes that do not exist: the error names the nearest one, or what it is called here.

>>> print(missing_attribute("", "str", "uper", {"length": "len(text)"}))
a str has no attribute 'uper'
Hint: did you mean 'upper'?
>>> print(missing_attribute("", "str", "length", {"length": "len(text)"}))
a str has no attribute 'length'
Hint: len(text)
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches


def missing_attribute(
    thing: object, kind: str, name: str, elsewhere: Mapping[str, str]
) -> AttributeError:
    """The error of a name that a thing does not have; `elsewhere` says where other libraries' names are here."""
    message = f"a {kind} has no attribute {name!r}"
    if not name.startswith("_"):
        public = [each for each in dir(type(thing)) if not each.startswith("_")]
        close = get_close_matches(name, public, n=1, cutoff=0.75)
        if name in elsewhere:
            message += f"\nHint: {elsewhere[name]}"
        elif close:
            message += f"\nHint: did you mean {close[0]!r}?"
    return AttributeError(message, name=name, obj=thing)
