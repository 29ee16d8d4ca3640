"""The identity of a function: a word that changes exactly when the code and the values behind the function change.

Operators that run a user's function have the function's word in their own identity (`Operator.identity`). So a state in
a checkpoint is kept only by programs whose functions compute the same (`plan.diff`). Laws:

- **What counts.** The word covers the source of the function (`plan.function_source`), its default values, the values
  that it closes over, and the functions, classes and values that it reads by a global name; and so on from each of
  these.
- **The user's own.** Only functions, classes and modules of the user's own are looked into. Those of the standard
  library, of Riverrun and of installed packages (below ``site-packages``) count by their names, whatever their
  version; but values that the user gave them to hold (by `functools.wraps`, `functools.partial`, a closure) are looked
  into. A package installed in place (``pip install -e``) is the user's own. So is an installed package, for the
  functions of that package that are themselves given to Riverrun.
- **Values.** A global name counts by the value that it has when the word is asked for: data element by element; arrays,
  frames and Arrow values by their content; objects by their class and by the state that pickle would save. Values that
  pickle refuses (locks, connections, files), and sessions of Spark, count by their class alone; if such a value is an
  object of a user's class, each of its attributes counts too. Loggers, and objects of Riverrun that are not called,
  count by their class.
- **Nothing else.** Places do not count: files, lines, the order of definitions, names of modules. Neither does the
  process nor, where the source is known, the version of Python.
- **Stated by hand.** A function, class or object with an attribute ``__riverrun_identity__``, a text or a number,
  counts by that attribute alone. A class derived from such a class still counts by its own code.
- **Not too much.** A function for which more than `MOST` values count is refused (``plan.identity``).

The word cannot cover names that are made up while the function runs (``getattr`` with a text, ``globals()``,
``eval``), files that the function reads, nor its environment.

Values are the nodes of a graph, with an arc to each value that they are made of. The word of a value is a digest of
its text and of the words at its arcs; values on a cycle, such as functions that call each other, get their words
together.

>>> def least(price):
...     return price > 3
>>> def dear(row):
...     return least(row["price"])
>>> before = code_of(dear)
>>> def least(price):
...     return price > 4
>>> code_of(dear) == before
False

Cost: some ten microseconds for each function and value, once for each plan (`Walk`), however many operators reach it;
large data by a digest.
"""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import functools
import hashlib
import importlib
import importlib.util
import inspect
import logging
import os
import re
import site
import sys
import sysconfig
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from copyreg import dispatch_table
from dataclasses import dataclass, field
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    MappingProxyType,
    MethodType,
    ModuleType,
    NoneType,
)
from typing import Any

from riverrun.errors import PlanError
from riverrun.plan.expression_text import written_apart
from riverrun.plan.function_source import (
    FunctionSource,
    Path,
    bytecode_of,
    source_of,
    source_of_class,
)

MOST = 200_000
"""How many values may count for one function, data aside."""
STATED = "__riverrun_identity__"
_PLAIN = (
    NoneType, bool, int, float, complex, str, bytes, datetime.date, datetime.time, datetime.datetime,
    datetime.timedelta, decimal.Decimal, type(...), type(NotImplemented), range,
)  # fmt: skip
"""Types whose values have a text that is the same in every process."""
_DATA = (tuple, list, set, frozenset, dict)
_DEEPEST = 40
_WORDS = re.compile(r"\b[0-9a-f]{12}\b")
_HANDLES = ("py4j.", "pyspark.sql.session.SparkSession", "pyspark.core.context.SparkContext")
"""Prefixes of classes whose objects stand for something in another process, as connections do."""
_ABSENT = object()


@dataclass(frozen=True, slots=True)
class Parts:
    """What one value is made of: a text, and other values, each with its part in the value."""

    text: str
    others: tuple[tuple[str, object], ...] = ()
    in_order: bool = True
    definition: str = ""
    """The module and the name of a function or class of the user's; empty for other values."""


@dataclass(slots=True)
class _Entry:
    """A value in the graph."""

    value: object
    parts: Parts
    to: list[int] = field(default_factory=list)
    word: str = ""


@dataclass(frozen=True)
class ProgramCode:
    """The functions and values of a program, by name, so that a refusal can say which of them changed. Picklable."""

    words: Mapping[str, str] = field(default_factory=dict)
    """For each definition, a word for the definition without the other definitions that it reads."""
    reads: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """For each definition, the other definitions that it reads."""
    roots: Mapping[str, str] = field(default_factory=dict)
    """For each word in the identity of an operator (`code_of`), the definition of the function."""
    files: Mapping[str, str] = field(default_factory=dict)
    """For each definition, the name of its file."""

    def reason(self, identity: str, before: Mapping[str, str]) -> str | None:
        """Which function in an operator's identity has changed, or which one that it calls; `before` has the words of
        the other program. None where none is known to have changed."""
        for word in _WORDS.findall(identity):
            root = self.roots.get(word)
            chain = None if root is None else self._first_changed(root, before)
            if root is None or chain is None:
                continue
            through, last = chain[:-1], chain[-1]
            shown = f"function {_shown(root)}{self._place(root)}"
            if not through:
                return f"{shown} has changed"
            verb = "reads" if last.endswith("=") else "calls"
            where = self._place(last) if self.files.get(last) != self.files.get(root) else ""
            between = [_shown(each) for each in through[1:]]
            way = f", by way of {', '.join(between)}" if between else ""
            return f"{shown} {verb} {_shown(last)}{where}{way}, which has changed"
        return None

    def _first_changed(self, root: str, before: Mapping[str, str]) -> tuple[str, ...] | None:
        """The nearest changed definition, with the definitions on the way from `root` to it."""
        ways: dict[str, tuple[str, ...]] = {root: (root,)}
        waiting = deque([root])
        while waiting:
            name = waiting.popleft()
            if before.get(name) != self.words[name]:
                return ways[name]
            for other in self.reads.get(name, ()):
                if other not in ways:
                    ways[other] = (*ways[name], other)
                    waiting.append(other)
        return None

    def _place(self, name: str) -> str:
        return f" in {self.files[name]}" if name in self.files else ""


def _shown(definition: str) -> str:
    return definition.rpartition(":")[2].rstrip("=").replace("<locals>.", "")


def code_of(function: object) -> str:
    """The word of a user's function, of a class, or of an object that is called. It is the same in every process."""
    return (_WALK.get() or Walk()).code_of(function)


_WALK: ContextVar[Walk | None] = ContextVar("walk", default=None)


@contextmanager
def walking() -> Iterator[Walk]:
    """Inside the block, one walk serves all calls of `code_of`, and looks at each value once."""
    walk = Walk()
    token = _WALK.set(walk)
    try:
        yield walk
    finally:
        _WALK.reset(token)


class Walk:
    """Goes from functions to all that they read. Each value is looked at once, and counts as it is at that moment."""

    def __init__(self) -> None:
        self._graphs: dict[str, _ValueGraph] = {}  # by the package that counts as the user's own
        self._roots: dict[str, str] = {}

    def code_of(self, function: object) -> str:
        """The word of a function."""
        place = _installed_in(_file_of(function)) if callable(function) else None
        own = "" if place in (None, _LIBRARY, _RIVERRUN) else str(place)
        graph = self._graphs.setdefault(own, _ValueGraph(own))
        at = graph.add(function)
        word = _word(graph.entries[at].word)
        if word not in self._roots:
            root = graph.definition_at(at)
            if root is not None:
                self._roots[word] = root
        return word

    @property
    def program_code(self) -> ProgramCode:
        """The definitions that the walk has met, by name."""
        words: dict[str, set[str]] = {}
        reads: dict[str, dict[str, None]] = {}
        files: dict[str, str] = {}
        for graph in self._graphs.values():
            graph.describe(words, reads, files)
        return ProgramCode(
            {name: _word(*sorted(each)) for name, each in sorted(words.items())},
            {name: tuple(each) for name, each in reads.items() if each},
            dict(self._roots),
            files,
        )


class _ValueGraph:
    """The graph of values, each with the values that it is made of and with its word."""

    def __init__(self, own: str) -> None:
        self.own = own
        self.entries: list[_Entry] = []
        self._places: dict[int, int] = {}
        self._sources: dict[CodeType, FunctionSource] = {}

    def add(self, root: object) -> int:
        """Add a value and all values behind it, give each a word, and return the place of the value."""
        if id(root) in self._places:
            return self._places[id(root)]
        first = len(self.entries)
        self._enter(root, root)
        at = first
        while at < len(self.entries):
            entry = self.entries[at]
            for _, other in entry.parts.others:
                place = self._places.get(id(other))
                entry.to.append(self._enter(other, root) if place is None else place)
            at += 1
            if at - first > MOST:
                raise _too_much(root, self, first)
        for together in _components(self.entries, first):
            self._give_words(together)
        return first

    def _enter(self, value: object, root: object) -> int:
        self._places[id(value)] = at = len(self.entries)
        token = _GRAPH.set(self)
        try:
            parts = _stated(value) or parts_of(value)
        finally:
            _GRAPH.reset(token)
        # The entry holds the value, so that no other value gets its id while the graph lives.
        self.entries.append(_Entry(value, parts))
        return at

    def said_by(self, function: FunctionType) -> FunctionSource:
        """The source of a function, or its bytecode where the source is not known."""
        code = function.__code__
        if code not in self._sources:
            said = source_of(code, function.__globals__)
            self._sources[code] = bytecode_of(code) if said is None else said
        return self._sources[code]

    def is_own(self, place: str | None) -> bool:
        """Whether the code in a file is the user's own (the user's-own law)."""
        installed = _installed_in(place)
        return installed is None or (bool(self.own) and installed == self.own)

    def _give_words(self, together: list[int]) -> None:
        """Give words to values that are made of each other; the other values that they are made of have words already.

        The word of each value is made of its text and the words of its parts. This is repeated, until a repetition
        tells no more of the values apart than the one before: `lineage._words_around` says why that is enough.
        """
        entries, inside = self.entries, set(together)
        words = dict.fromkeys(together, "")
        several = 0
        while True:
            before = words
            words = {
                at: _word_of(
                    entries[at].parts,
                    [before[to] if to in inside else entries[to].word for to in entries[at].to],
                )
                for at in together
            }
            if len(together) == 1 and together[0] not in entries[together[0]].to:
                break
            if len(set(words.values())) == several:
                around = _word(*sorted(set(words.values())))
                words = {at: _word(word, around) for at, word in words.items()}
                break
            several = len(set(words.values()))
        for at, word in words.items():
            entries[at].word = word

    # ---- for people

    def definition_at(self, at: int) -> str | None:
        """The first definition on the way from a value, the value itself included."""
        seen, waiting = {at}, deque([at])
        while waiting:
            entry = self.entries[waiting.popleft()]
            if entry.parts.definition:
                return entry.parts.definition
            waiting += [to for to in entry.to if to not in seen]
            seen.update(entry.to)
        return None

    def describe(
        self, words: dict[str, set[str]], reads: dict[str, dict[str, None]], files: dict[str, str]
    ) -> None:
        """Collect definitions, and global values, by name."""
        for entry in self.entries:
            name = entry.parts.definition
            if not name:
                continue
            if isinstance(entry.value, FunctionType | type):
                files.setdefault(name, os.path.basename(_file_of(entry.value) or ""))
            own = [entry.parts.text]
            for (what, _), to in zip(entry.parts.others, entry.to, strict=True):
                if what.startswith("global "):
                    other = self._named(to, name, what)
                    words.setdefault(other, set()).add(self._own(to))
                    reads.setdefault(name, {})[other] = None
                else:
                    own.append(f"{what} {self._beside(to, reads.setdefault(name, {}))}")
            words.setdefault(name, set()).add(_word(*own))

    def _named(self, at: int, reader: str, what: str) -> str:
        definition = self.entries[at].parts.definition
        return definition or f"{reader.partition(':')[0]}:{what.removeprefix('global ')}="

    def _own(self, at: int) -> str:
        entry = self.entries[at]
        if not entry.parts.definition:
            return entry.word
        own = [entry.parts.text]
        for (what, _), to in zip(entry.parts.others, entry.to, strict=True):
            if not what.startswith("global "):
                own.append(f"{what} {self._beside(to, {})}")
        return _word(*own)

    def _beside(self, at: int, reads: dict[str, None]) -> str:
        """A word for a part of a definition, or the name of another definition, which is read."""
        entry = self.entries[at]
        if entry.parts.definition:
            reads[entry.parts.definition] = None
            return "a definition"
        if isinstance(
            entry.value, functools.partial | MethodType | staticmethod | classmethod | property
        ):
            return " ".join(self._beside(to, reads) for to in entry.to)
        return entry.word


def _word(*texts: str) -> str:
    return hashlib.sha256("\n".join(texts).encode("utf-8", "backslashreplace")).hexdigest()[:12]


def _word_of(parts: Parts, words: list[str]) -> str:
    said = [f"{what} {word}" for (what, _), word in zip(parts.others, words, strict=True)]
    whole = "\n".join([parts.text, *(said if parts.in_order else sorted(said))])
    return hashlib.sha256(whole.encode("utf-8", "backslashreplace")).hexdigest()


def _components(entries: list[_Entry], first: int) -> Iterator[list[int]]:
    """The places of values from `first` on, in lists: values on a cycle are in one list, and each list comes after the
    lists of the values that it is made of."""
    index: dict[int, int] = {}
    least: dict[int, int] = {}
    pending: dict[int, None] = {}
    for root in range(first, len(entries)):
        if root in index:
            continue
        index[root] = least[root] = len(index)
        pending[root] = None
        walk = [(root, iter(entries[root].to))]
        while walk:
            at, others = walk[-1]
            for to in others:
                if to < first:
                    continue
                if to not in index:
                    index[to] = least[to] = len(index)
                    pending[to] = None
                    walk.append((to, iter(entries[to].to)))
                    break
                if to in pending:
                    least[at] = min(least[at], index[to])
            else:
                walk.pop()
                if walk:
                    least[walk[-1][0]] = min(least[walk[-1][0]], least[at])
                if least[at] == index[at]:
                    together: list[int] = []
                    while not together or together[-1] != at:
                        together.append(pending.popitem()[0])
                    yield sorted(together)


def _too_much(root: object, graph: _ValueGraph, first: int) -> PlanError:
    """The error that names the value most of the others come from, and the first function that reads it."""
    name = getattr(root, "__qualname__", type(root).__name__)
    blamed: dict[int, str] = {}
    counts: dict[str, int] = {}
    for at in range(first, len(graph.entries)):
        entry = graph.entries[at]
        for (what, _), to in zip(entry.parts.others, entry.to, strict=False):
            if to > at and to not in blamed:
                reader = _shown(entry.parts.definition) or (name if at == first else "")
                blamed[to] = f"the {what} of {reader}" if reader else blamed[at]
                counts[blamed[to]] = counts.get(blamed[to], 0) + 1
    largest = max(counts, key=lambda each: counts[each])
    return PlanError(
        "plan.identity",
        f"cannot tell what the function {name!r} is, which checkpoints are compared by: "
        f"more than {MOST:,} values count for it, {counts[largest]:,} of them for {largest}",
        hint=f"give that value, its class or the function an attribute {STATED} = '1', and another text when "
        "it changes: it counts by that alone then",
        function=name,
        value=largest,
    )


# ---- whose it is


_LIBRARY = "the standard library"
_RIVERRUN = "riverrun"
_PACKAGES = ("site-packages", "dist-packages")
_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


@functools.lru_cache(maxsize=1)
def _library_places() -> tuple[str, ...]:
    names = ("stdlib", "platstdlib")
    return tuple({os.path.join(sysconfig.get_path(name), "") for name in names})


@functools.lru_cache(maxsize=1)
def _package_places() -> tuple[str, ...]:
    places = {sysconfig.get_path(name) for name in ("purelib", "platlib")}
    with_user = [*getattr(site, "getsitepackages", list)(), getattr(site, "USER_SITE", None)]
    places.update(each for each in with_user if each)
    return tuple(os.path.join(each, "") for each in places)


@functools.lru_cache(maxsize=4096)
def _installed_in(file: str | None) -> str | None:
    """The package that a file belongs to, by its place; None for the user's own."""
    if file is None or file.startswith("<frozen"):
        return _LIBRARY
    if file.startswith("<"):
        return None
    path = os.path.abspath(file)
    if path.startswith(os.path.join(_OURS, "")):
        return _RIVERRUN
    parts = path.split(os.sep)
    for at in range(len(parts) - 2, -1, -1):
        if parts[at] in _PACKAGES:
            return os.sep.join(parts[: at + 2])
    for place in _package_places():
        if path.startswith(place):
            return os.path.join(place, path.removeprefix(place).partition(os.sep)[0])
    return _LIBRARY if path.startswith(_library_places()) else None


def _file_of(value: object) -> str | None:
    """The file in which a function, a class or a module is written; None for a built-in one."""
    while isinstance(value, functools.partial | MethodType | staticmethod | classmethod):
        value = value.func if isinstance(value, functools.partial) else value.__func__
    if isinstance(value, FunctionType):
        file = value.__code__.co_filename
        if file != "<string>":
            return file
        # Made by `exec`, as the methods of a data class are.
        return _file_of_module(str(value.__globals__.get("__name__"))) or file
    if isinstance(value, ModuleType):
        return getattr(value, "__file__", None) or _file_of_package(value)
    kind = value if isinstance(value, type) else type(value)
    if kind.__module__ == "__main__":  # the user's, even where an installed program runs it
        main = _file_of_module("__main__")
        return main if main is not None and _installed_in(main) is None else "<main>"
    if kind.__module__ not in sys.modules:
        return "<made>"
    return _file_of_module(kind.__module__)


def _file_of_module(name: str) -> str | None:
    module = sys.modules.get(name)
    return None if module is None else _file_of(module)


def _file_of_package(module: ModuleType) -> str | None:
    """The folder of a package that has no file of its own."""
    for place in getattr(module, "__path__", None) or ():
        return os.path.join(str(place), "__init__.py")
    if module.__name__ == "__main__":
        return "<main>"
    return None


_GRAPH: ContextVar[_ValueGraph] = ContextVar("graph")


def _is_own(value: object) -> bool:
    return _GRAPH.get().is_own(_file_of(value))


# ---- what there is to a value


def _stated(value: object) -> Parts | None:
    """The parts of a value whose identity the user states (the stated-by-hand law); None for other values."""
    held = getattr(value, "__dict__", None)
    if isinstance(held, dict | MappingProxyType) and STATED in held:
        stated = held[STATED]
        if isinstance(stated, str | int):
            return Parts(f"stated {stated!r}", definition=_definition(value))
    if not isinstance(value, type):
        for kind in type(value).__mro__:
            stated = vars(kind).get(STATED)
            if isinstance(stated, FunctionType | property):
                stated = (
                    stated(value) if isinstance(stated, FunctionType) else stated.__get__(value)
                )
            if isinstance(stated, str | int):
                return Parts(f"stated {stated!r}", (("of", type(value)),))
    return None


def _definition(value: object) -> str:
    if isinstance(value, FunctionType):
        module = value.__globals__.get("__name__")
    else:
        module = getattr(value, "__module__", None)
    name = getattr(value, "__qualname__", None)
    return f"{module}:{name}" if name else ""


@functools.singledispatch
def parts_of(value: object) -> Parts:
    """What a value is made of, by its type; an object of any other type is made of its class and of the state that
    pickle would save (the values law)."""
    for kind in type(value).__mro__:
        register = _LIBRARIES.pop(kind.__module__.partition(".")[0], None)
        if register is not None:
            register()
            return parts_of(value)
    kind = type(value)
    if kind.__module__.partition(".")[0] == _RIVERRUN and not callable(value):
        return Parts(f"of {kind.__module__}.{kind.__qualname__}")
    if f"{kind.__module__}.{kind.__qualname__}".startswith(_HANDLES):
        return Parts("a handle", (("kind", kind),))
    try:
        held = vars(value)
    except TypeError:
        held = {}
    compiled = held.get("py_func")
    if isinstance(compiled, FunctionType):  # by Numba
        said = repr(sorted(held.get("targetoptions", {}).items()))
        return Parts(f"compiled {said}", (("kind", kind), ("function", compiled)))
    if callable(value) and callable(held.get("__wrapped__")) and not _is_own(kind):
        asked = getattr(value, "cache_parameters", None)
        said = repr(asked()) if callable(asked) else ""
        others = ("kind", kind), ("function", held["__wrapped__"])
        return Parts(f"around {said}", others, definition=_definition(value))
    return _object(value)


def _object(value: object) -> Parts:
    kind = type(value)
    try:
        reduce = dispatch_table.get(kind)
        reduced = value.__reduce_ex__(4) if reduce is None else reduce(value)
    except Exception:  # the code of the user's class may raise anything
        return Parts("an object", (("kind", kind), *_attributes(value)))
    if isinstance(reduced, str):
        return Parts(f"named {getattr(value, '__module__', '')} {reduced}", (("kind", kind),))
    make, arguments, *rest = reduced
    state, items, pairs = (*rest, None, None, None)[:3]
    return Parts(
        "an object",
        (
            ("kind", kind),
            ("made by", make),
            ("of", arguments),
            ("with", state),
            ("items", None if items is None else list(items)),
            ("pairs", None if pairs is None else list(pairs)),
        ),
    )


def _attributes(value: object) -> Iterator[tuple[str, object]]:
    """The attributes of a user's object that pickle refuses."""
    if _is_own(type(value)):
        for name, each in sorted(getattr(value, "__dict__", {}).items()):
            yield f"attribute {name}", each


@parts_of.register(logging.Logger)
def _logger(value: logging.Logger) -> Parts:
    return Parts("a logger")


@parts_of.register(NoneType)
@parts_of.register(bool)
@parts_of.register(int)
@parts_of.register(float)
@parts_of.register(complex)
@parts_of.register(str)
@parts_of.register(bytes)
@parts_of.register(datetime.date)
@parts_of.register(datetime.time)
@parts_of.register(datetime.timedelta)
@parts_of.register(decimal.Decimal)
@parts_of.register(type(...))
@parts_of.register(type(NotImplemented))
@parts_of.register(range)
def _plain(value: object) -> Parts:
    return Parts(_data(value)) if type(value) in _PLAIN else _of_builtin(value)


def _of_builtin(value: object) -> Parts:
    """An object of a class derived from a built-in class."""
    if isinstance(value, enum.Enum):
        return _member(value)
    parts = _object(value)
    return dataclasses.replace(parts, text=f"{parts.text} {_data_of(value)}")


def _data_of(value: object) -> str:
    """The text of an object as one of the built-in class that its class is derived from."""
    for kind in _PLAIN:
        if isinstance(value, kind) and kind is not NoneType:
            write: Any = kind.__repr__
            return f"{kind.__name__} {write(value)}"
    return ""


@parts_of.register(enum.Enum)
def _member(value: enum.Enum) -> Parts:
    return Parts(f"member {value.name}", (("kind", type(value)), ("value", value.value)))


class _NotData(Exception):
    """Raised for values that are not plain data, or are nested too deep."""


def _data(value: object, depth: int = 0) -> str:
    """Data as text: plain values, and tuples, lists, sets and dicts of data."""
    kind = type(value)
    if kind is int:
        return f"int {value:x}"  # decimal digits are limited
    if kind in _PLAIN:
        return f"{kind.__name__} {value!a}"
    if kind not in _DATA or depth > _DEEPEST:
        raise _NotData
    each: Iterable[str]
    if isinstance(value, dict):
        each = [f"{_data(k, depth + 1)}: {_data(v, depth + 1)}" for k, v in value.items()]
    elif isinstance(value, set | frozenset):
        each = sorted([_data(v, depth + 1) for v in value])  # in another order in every process
    else:
        assert isinstance(value, tuple | list)
        each = [_data(v, depth + 1) for v in value]
    digest = hashlib.blake2b(digest_size=16)
    for text in each:
        digest.update(f"{len(text)} {text}".encode("utf-8", "backslashreplace"))
    return f"{kind.__name__} of {len(value)} {digest.hexdigest()}"


@parts_of.register(tuple)
@parts_of.register(list)
@parts_of.register(set)
@parts_of.register(frozenset)
@parts_of.register(dict)
def _container(value: Any) -> Parts:
    kind = type(value)
    if kind not in _DATA:
        return _object(value)
    try:
        return Parts(_data(value))
    except _NotData:
        pass
    said = f"{kind.__name__} of {len(value)}"
    if kind is dict:
        pairs = [pair for k, v in value.items() for pair in (("key", k), ("value", v))]
        return Parts(said, tuple(pairs))
    return Parts(said, tuple(("", each) for each in value), kind in (tuple, list))


@parts_of.register(MappingProxyType)
def _mapping(value: MappingProxyType[Any, Any]) -> Parts:
    return Parts("mapping", (("of", dict(value)),))


@parts_of.register(functools.partial)
def _partial(value: functools.partial[Any]) -> Parts:
    said = "partial"
    if _is_own(type(value)):
        return _object(value)
    if type(value) is not functools.partial:
        said = f"partial {type(value).__qualname__}"
    keywords = sorted(value.keywords.items())
    return Parts(said, (("function", value.func), ("of", value.args), ("with", keywords)))


@parts_of.register(MethodType)
def _method(value: MethodType) -> Parts:
    return Parts("method", (("function", value.__func__), ("of", value.__self__)))


@parts_of.register(BuiltinFunctionType)
def _builtin(value: BuiltinFunctionType) -> Parts:
    of = value.__self__
    if of is None or isinstance(of, ModuleType):
        return Parts(f"builtin {value.__module__} {value.__qualname__}")
    return Parts(f"builtin {value.__qualname__}", (("of", of),))


@parts_of.register(staticmethod)
@parts_of.register(classmethod)
def _wrapped(value: Any) -> Parts:
    return Parts(type(value).__name__, (("function", value.__func__),))


@parts_of.register(property)
def _property(value: property) -> Parts:
    return Parts("property", (("get", value.fget), ("set", value.fset), ("delete", value.fdel)))


@parts_of.register(functools.cached_property)
def _cached_property(value: functools.cached_property[Any]) -> Parts:
    return Parts("cached property", (("function", value.func),))


@parts_of.register(CodeType)
def _code(value: CodeType) -> Parts:
    return Parts(bytecode_of(value).text)


@parts_of.register(ModuleType)
def _module(value: ModuleType) -> Parts:
    """A module that is used as a whole, so that nobody knows which of its functions are called."""
    if not _is_own(value):
        return Parts(f"module {value.__name__}")
    held = [
        (f"global {name}", each)
        for name, each in sorted(vars(value).items())
        if not name.startswith("__") and not isinstance(each, ModuleType)
    ]
    return Parts("module", tuple(held))


@parts_of.register(FunctionType)
def _function(value: FunctionType) -> Parts:
    graph = _GRAPH.get()
    cells: list[tuple[str, object]] = []
    for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
        try:
            cells.append((f"closure {name}", cell.cell_contents))
        except ValueError:  # not bound yet
            continue
    defaults: list[tuple[str, object]] = [
        ("defaults", value.__defaults__), ("keyword defaults", value.__kwdefaults__),
    ]  # fmt: skip
    if not _is_own(value):
        return _installed(value, cells, defaults)
    said = graph.said_by(value)
    held = [
        (f"attribute {name}", each)
        for name, each in sorted(vars(value).items())
        if not name.startswith("__")
    ]
    read = _globals(said, value, {name.removeprefix("closure ") for name, _ in cells})
    others = (*defaults, *cells, *held, *read)
    return Parts(f"function {said.text}", others, definition=_definition(value))


def _installed(
    value: FunctionType, cells: list[tuple[str, object]], defaults: list[tuple[str, object]]
) -> Parts:
    """An installed function: it counts by its name, and by values that the user gave it to hold (the user's-own
    law)."""
    name = f"{value.__globals__.get('__name__')}.{value.__code__.co_qualname}"
    registry = getattr(value, "registry", None)
    if isinstance(registry, MappingProxyType):  # functools.singledispatch
        kinds = sorted(
            registry.items(), key=lambda each: f"{each[0].__module__}.{each[0].__qualname__}"
        )
        return Parts(
            f"dispatch {name}", tuple(pair for k, f in kinds for pair in (("for", k), ("call", f)))
        )
    if "<locals>" not in name and "<lambda>" not in name:
        return Parts(f"installed {name}")
    if "<lambda>" in name:
        name = f"{name} {_GRAPH.get().said_by(value).text}"
    held = [each for each in (*cells, *defaults) if _may_be_users(each[1])]
    return Parts(f"installed {name}", tuple(held))


def _may_be_users(value: object) -> bool:
    """Whether a value that an installed function holds may come from the user. The function's own values do not count,
    since they may change while it runs."""
    if (
        isinstance(value, FunctionType | MethodType | functools.partial | type)
        or type(value) in _PLAIN
    ):
        return True
    if isinstance(value, dict) and type(value) is dict:
        return all(map(_may_be_users, value.values()))
    if isinstance(value, tuple | list) and type(value) in (tuple, list):
        return all(map(_may_be_users, value))
    return _is_own(type(value))


def _globals(
    said: FunctionSource, function: FunctionType, bound: set[str]
) -> Iterator[tuple[str, object]]:
    """The values that a function reads by global names and by its own imports."""
    for path in said.reads:
        name = path[0]
        if name in bound:
            continue
        if name in said.imports:
            value = _imported(said, name, function.__globals__)
            for each in said.imports:
                if each.startswith(f"{name}.") and isinstance(value, ModuleType):
                    _imported(said, each, function.__globals__)
        elif name in function.__globals__ and not (
            name.startswith("__") and name.endswith("__") and name != "__file__"
        ):
            value = function.__globals__[name]
        else:
            continue
        at = 1
        while isinstance(value, ModuleType) and at < len(path) and _is_own(value):
            value = getattr(value, path[at], _ABSENT)
            at += 1
        if value is _ABSENT:
            continue
        yield f"global {'.'.join(path[:at])}", value


def _imported(said: FunctionSource, name: str, names: Mapping[str, Any]) -> object:
    """The value of an import inside a function. Modules of the user's own are imported for that; installed ones are
    not."""
    module, attribute, dots = said.imports[name]
    package = names.get("__package__") or ""
    top = (package if dots else module).partition(".")[0]
    try:
        if not dots and top not in sys.modules:
            spec = importlib.util.find_spec(top)
            place = None if spec is None else spec.origin or "<namespace>"
            if not _GRAPH.get().is_own(place):
                return _Named(f"{module}:{attribute}")
        elif top in sys.modules and not _is_own(sys.modules[top]):
            return _Named(f"{module}:{attribute}")
        held = importlib.import_module("." * dots + module, package or None)
        return held if attribute is None else getattr(held, attribute)
    except Exception:  # the module may raise anything; the function will raise it, too
        return _Named(f"{module}:{attribute}")


class _Named:
    """Stands for a module or value that is known by its name only."""

    def __init__(self, name: str) -> None:
        self.name = name


@parts_of.register(_Named)
def _named(value: _Named) -> Parts:
    return Parts(f"named {value.name}")


@parts_of.register(type)
def _class(kind: type) -> Parts:
    if not _is_own(kind):
        return Parts(f"class {kind.__module__}.{kind.__qualname__}")
    methods = {name: each for name, each in vars(kind).items() if _function_in(each) is not None}
    fields = (
        getattr(kind, "__dataclass_fields__", None)
        if "__dataclass_fields__" in vars(kind)
        else None
    )
    codes = [
        each.__code__
        for each in map(_function_in, methods.values())
        if each is not None
        and each.__module__ == kind.__module__
        and not each.__code__.co_filename.startswith("<string>")
    ]
    module = sys.modules.get(kind.__module__)
    names = {} if module is None else vars(module)
    said = None
    for code in codes:
        said = said or source_of_class(kind.__qualname__, code, names)
    if not codes:
        said = source_of_class(kind.__qualname__, None, names)
    is_enum = issubclass(
        kind, enum.Enum
    )  # newer versions of Python add attributes of their own to it
    others: list[tuple[str, object]] = [("base", base) for base in kind.__bases__]
    if type(kind) is not type:
        others.append(("kind", type(kind)))
    for name, each in sorted(vars(kind).items()):
        if name in methods:
            function = _function_in(each)
            if function is None or not _is_derived(function, kind):
                others.append((f"method {name}", each))
        elif not name.startswith("_" if is_enum else "__") and name != "_abc_impl":
            others.append((f"attribute {name}", each))
    if fields is not None:
        for each in fields.values():
            others += [(f"field {each.name}", each.default), ("factory", each.default_factory)]
    text = ""
    if said is not None:
        text = said.text
        for path in said.reads:
            if path[0] in names:
                others += _read_in(names, path)
    elif fields is not None:
        text = "; ".join(
            f"{each.name} {each.type} {each.init} {each.compare} {each.kw_only}"
            for each in fields.values()
        )
    return Parts(f"class {text or kind.__name__}", tuple(others), definition=_definition(kind))


_DERIVING = {"dataclasses", "enum", "collections", "typing"}


def _is_derived(function: FunctionType, kind: type) -> bool:
    """Whether the standard library put a method into a class. Such methods differ between versions of Python."""
    is_written = function.__code__.co_filename == "<string>"
    derives = "__dataclass_fields__" in vars(kind) or issubclass(kind, tuple)
    return (is_written and derives) or function.__globals__.get("__name__") in _DERIVING


def _read_in(names: Mapping[str, Any], path: Path) -> Iterator[tuple[str, object]]:
    """The functions and classes that the statement of a class reads. Other values that it reads do not count here: what
    the class makes of them is among its attributes."""
    value, at = names[path[0]], 1
    while isinstance(value, ModuleType) and at < len(path) and _is_own(value):
        value, at = getattr(value, path[at], None), at + 1
    if isinstance(value, FunctionType | type):
        yield f"global {'.'.join(path[:at])}", value


def _function_in(value: object) -> FunctionType | None:
    """The function behind an attribute of a class: a method of any kind, or the getter of a property."""
    if isinstance(value, staticmethod | classmethod):
        value = value.__func__
    elif isinstance(value, property):
        value = value.fget
    elif isinstance(value, functools.cached_property):
        value = value.func
    value = inspect.unwrap(value) if callable(value) else value
    return value if isinstance(value, FunctionType) else None


# ---- values of libraries, which are not imported for that


def _numpy() -> None:
    import numpy as np

    @parts_of.register(np.ndarray)
    def array(value: np.ndarray[Any, Any]) -> Parts:
        if type(value) is not np.ndarray:
            return _object(value)
        said = f"array {value.dtype.descr if value.dtype.names else value.dtype.str} {value.shape}"
        if value.dtype.hasobject or value.dtype.names:
            return Parts(said, (("of", value.tolist()),))
        digest = hashlib.blake2b(np.ascontiguousarray(value).view(np.uint8).data, digest_size=16)
        return Parts(f"{said} {digest.hexdigest()}")

    @parts_of.register(np.generic)
    def scalar(value: np.generic) -> Parts:
        if value.dtype.hasobject or value.dtype.names:
            return Parts(f"scalar {value.dtype}", (("of", value.item()),))
        return Parts(f"scalar {value.dtype.str} {value.tobytes().hex()}")

    @parts_of.register(np.dtype)
    def dtype(value: np.dtype[Any]) -> Parts:
        return Parts(f"dtype {value.descr if value.names else value.str}")


def _pyarrow() -> None:
    import pyarrow as pa

    def values(value: Any) -> Parts:
        return Parts(f"{type(value).__name__} {value.type}", (("of", value.to_pylist()),))

    parts_of.register(pa.Array, values)
    parts_of.register(pa.ChunkedArray, values)

    def rows(value: Any) -> Parts:
        schema = value.schema.remove_metadata()
        return Parts(f"{type(value).__name__} {schema}", (("of", value.to_pylist()),))

    parts_of.register(pa.Table, rows)
    parts_of.register(pa.RecordBatch, rows)

    @parts_of.register(pa.Scalar)
    def scalar(value: Any) -> Parts:
        return Parts(f"scalar {value.type}", (("of", value.as_py()),))

    @parts_of.register(pa.DataType)
    def data_type(value: Any) -> Parts:
        return Parts(f"type {value}")


def _polars() -> None:
    import polars as pl

    @parts_of.register(pl.Expr)
    def expression(value: pl.Expr) -> Parts:
        written, functions = written_apart(value, "binary")
        digest = hashlib.blake2b(written, digest_size=16).hexdigest()
        return Parts(f"expression {value} {digest}", tuple(("call", each) for each in functions))

    @parts_of.register(pl.Series)
    def series(value: pl.Series) -> Parts:
        return Parts(f"series {value.name} {value.dtype!r}", (("of", value.to_list()),))

    @parts_of.register(pl.DataFrame)
    def frame(value: pl.DataFrame) -> Parts:
        return Parts(f"frame {dict(value.schema)!r}", (("of", value.rows()),))


def left_out(expressions: Iterable[object]) -> str:
    """A word for the long literals and Python functions that the texts of expressions leave out; empty where they leave
    out nothing."""
    texts = [(each, str(each)) for each in expressions]
    words = [code_of(each) for each, text in texts if "…" in text or "python_udf" in text]
    return " ".join(words)


_LIBRARIES: dict[str, Callable[[], None]] = {
    "numpy": _numpy, "pyarrow": _pyarrow, "polars": _polars,
}  # fmt: skip
