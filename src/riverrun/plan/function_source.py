"""The source of a function: what it says, apart from how it is written down; and the names that it reads.

`plan.identity` tells functions apart by it. A function is looked up where it was written: in its file, in a cell of a
notebook, in whatever else `linecache` knows. What is said of it is its syntax tree as text. Laws:

1. **Only what counts.** Comments, formatting, docstrings, line numbers, the names of files and the version of Python
   make no difference to the text. (Bytecode, which every version of Python writes in another way, would.)
2. **The code that runs.** A source counts only if it compiles to the very code of the function. A file that was edited
   after it was imported, or code that was rewritten on its way (as pytest does with ``assert``), has no source here.
3. **Names that are read** are those that the function, or one inside it, looks up outside of itself, with the
   attributes behind them: ``shop.rates.least`` is one way, ``("shop", "rates", "least")``. Default values,
   annotations and decorators are not among them: they are looked up when the function is made, not when it runs.

>>> def dear(price):
...     '''Whether tea is too dear.'''
...     return price > limits.most  # for us
>>> said = source_of(dear.__code__, dear.__globals__)
>>> said.reads
(('limits', 'most'),)
>>> def dear(price):
...     return price > limits.most
>>> source_of(dear.__code__, dear.__globals__) == said
True

Cost: a file is parsed and compiled once (about 20 ms for a thousand lines), and remembered by its text.
"""

from __future__ import annotations
import __future__

import ast
import dis
import functools
import linecache
from collections.abc import Container, Mapping
from dataclasses import dataclass
from types import CodeType
from typing import Any

Path = tuple[str, ...]
"""A name and the attributes behind it: what ``shop.rates.least`` reads."""

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda

_FUTURE = functools.reduce(
    lambda flags, name: flags | getattr(__future__, name).compiler_flag,
    __future__.all_feature_names,
    0,
)
_UNSAID = {"ctx", "kind", "type_comment", "type_ignores"}
"""Fields of the syntax tree that follow from others, or compute nothing."""


@dataclass(frozen=True, slots=True)
class Source:
    """What a function or a class says."""

    text: str
    reads: tuple[Path, ...]
    """Names that are looked up outside, in order of the alphabet."""
    imports: Mapping[str, tuple[str, str | None, int]]
    """What it imports by itself: of each name, the module, what of it (None: itself), and how many dots lead it."""


def source_of(code: CodeType, names: dict[str, Any]) -> Source | None:
    """What a function says, by its code and the names of its module; None where its source is not known (law 2)."""
    file, definition = _place_of(code, names)
    return None if file is None or definition is None else file.said(definition)


def source_of_class(qualname: str, code: CodeType | None, names: dict[str, Any]) -> Source | None:
    """What the statement of a class says, by its name, the code of one of its methods, and the names of its module.

    A class without methods has no code that law 2 could be checked by: its source is the only statement of its name
    in the file of its module.
    """
    if code is None:
        file = _file_in(str(names.get("__file__", "")), 0, names, True)
    else:
        file, _ = _place_of(code, names)
    if file is None:
        return None
    statements = file.classes.get(qualname, [])
    if code is not None:
        statements = [each for each in statements if _is_around(each, code)]
    return file.said(statements[0]) if len(statements) == 1 else None


def bytecode_of(code: CodeType) -> Source:
    """What a function says where its source is not known: its bytecode, which depends on the version of Python."""
    reads: set[Path] = set()
    words: list[str] = []
    waiting: list[Any] = [code]
    while waiting:
        value = waiting.pop()
        if isinstance(value, CodeType):
            words.append(f"code {value.co_code.hex()} {value.co_names} {value.co_varnames}")
            words.append(f"{value.co_freevars} {value.co_cellvars} {value.co_flags & ~_FUTURE}")
            waiting += reversed(value.co_consts)
            _read_by(value, reads)
        elif isinstance(value, tuple):
            words.append(f"tuple {len(value)}")
            waiting += reversed(value)
        elif isinstance(value, frozenset):  # in another order in every process
            words.append(f"set {sorted(map(_constant, value))}")
        else:
            words.append(_constant(value))
    return Source("\n".join(words), tuple(sorted(reads)), {})


def _read_by(code: CodeType, reads: set[Path]) -> None:
    path: Path = ()
    for step in dis.get_instructions(code):
        if path and step.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            path = (*path, str(step.argval))
            continue
        if path:
            reads.add(path)
        path = ()
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"):
            path = (str(step.argval),)


def _place_of(code: CodeType, names: dict[str, Any]) -> tuple[_File | None, Definition | None]:
    """The text in which a function was written, as it was first seen or looked at again, and where in it."""
    for again in (False, True):
        file = _file_in(code.co_filename, code.co_flags & _FUTURE, names, again)
        definition = None if file is None else file.definition(code)
        if definition is not None:
            return file, definition
    return None, None


def _file_in(place: str, flags: int, names: dict[str, Any], again: bool) -> _File | None:
    if again:
        linecache.checkcache(place)
    lines = linecache.getlines(place, names if again else None)
    try:
        return _file("".join(lines), flags) if lines else None
    except (SyntaxError, ValueError, RecursionError):
        return None


@functools.lru_cache(maxsize=64)
def _file(text: str, flags: int) -> _File:
    return _File(text, flags)


class _File:
    """A text of Python, by the functions in it."""

    def __init__(self, text: str, flags: int) -> None:
        self.tree = ast.parse(text)
        self.codes: dict[tuple[str, int], list[CodeType]] = {}
        self.definitions: dict[tuple[str, int], list[Definition]] = {}
        self.classes: dict[str, list[ast.ClassDef]] = {}
        self._said: dict[ast.AST, Source] = {}
        waiting = [compile(self.tree, "<source>", "exec", flags, dont_inherit=True)]
        while waiting:
            code = waiting.pop()
            self.codes.setdefault((code.co_name, code.co_firstlineno), []).append(code)
            waiting += [each for each in code.co_consts if isinstance(each, CodeType)]
        inside: list[tuple[ast.AST, str]] = [(self.tree, "")]
        while inside:
            node, around = inside.pop()
            if isinstance(node, Definition):
                name = getattr(node, "name", "<lambda>")
                decorators: list[ast.expr] = getattr(node, "decorator_list", [])
                line = min([node.lineno, *(each.lineno for each in decorators)])
                self.definitions.setdefault((name, line), []).append(node)
                around = f"{around}{name}.<locals>."
            elif isinstance(node, ast.ClassDef):
                self.classes.setdefault(f"{around}{node.name}", []).append(node)
                around = f"{around}{node.name}."
            inside += [(child, around) for child in ast.iter_child_nodes(node)]

    def definition(self, code: CodeType) -> Definition | None:
        """Where a function is written, if that is what its code was made of."""
        at = code.co_name, code.co_firstlineno
        if not any(_are_equal(code, other) for other in self.codes.get(at, ())):
            return None
        fits = [each for each in self.definitions.get(at, ()) if _fits(each, code)]
        if len(fits) > 1:  # lambdas on one line: the one that all of its steps are inside of
            spans = [(_span(each), each) for each in fits]
            stretch = _stretch(code)
            around = [(span, each) for span, each in spans if stretch and _is_inside(stretch, span)]
            inner = [
                each for span, each in around if all(_is_inside(span, other) for other, _ in around)
            ]
            fits = inner[:1]
        return fits[0] if fits else None

    def said(self, node: Definition | ast.ClassDef) -> Source:
        """What a function or a class says."""
        if node not in self._said:
            self._said[node] = _said(node)
        return self._said[node]


def _said(node: Definition | ast.ClassDef) -> Source:
    imports: dict[str, tuple[str, str | None, int]] = {}
    for each in ast.walk(node):
        if isinstance(each, ast.Import):
            for alias in each.names:
                module = alias.name if alias.asname else alias.name.partition(".")[0]
                imports[alias.asname or module] = (module, None, 0)
                if module != alias.name and not alias.asname:  # a.b is imported, and a bound
                    imports[alias.name] = (alias.name, None, 0)
        elif isinstance(each, ast.ImportFrom):
            for alias in each.names:
                where = each.module or "", alias.name, each.level
                imports[alias.asname or alias.name] = where
    return Source(text_of(node), tuple(sorted(_reads(node, imports))), imports)


Scope = Definition | ast.ClassDef | ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
"""What has names of its own. `symtable` tells other names in every version of Python, and is not asked."""

_NAMED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def _reads(root: Definition | ast.ClassDef, imports: Container[str]) -> set[Path]:
    """What a function reads outside of itself (law 3), and what it reads of what it imports."""
    paths: set[Path] = set()
    scopes: list[tuple[Scope, frozenset[str]]] = [(root, frozenset())]
    while scopes:
        scope, around = scopes.pop()
        known = around
        if not isinstance(
            scope, ast.ClassDef
        ):  # what a class binds is not seen by the functions in it
            binds, globals_ = _bound_by(scope)
            known = (around | binds) - globals_
        waiting = _inside(scope)
        if isinstance(scope, ast.ClassDef) and scope is root:
            waiting += _outside(scope)
        while waiting:
            node = waiting.pop()
            behind: list[str] = []
            while isinstance(node, ast.Attribute):
                behind.append(node.attr)
                node = node.value
            if isinstance(node, ast.Name):
                if node.id in imports or (node.id not in known and isinstance(node.ctx, ast.Load)):
                    paths.add((node.id, *reversed(behind)))
            elif isinstance(node, Scope):
                scopes.append((node, known))
                waiting += _outside(node)
            elif isinstance(node, ast.AnnAssign) and not isinstance(scope, ast.ClassDef):
                waiting += [node.target, *([node.value] if node.value else [])]
            else:
                waiting += ast.iter_child_nodes(node)
    return paths


def _inside(scope: Scope) -> list[ast.AST]:
    """What of a scope looks up names in it."""
    if isinstance(scope, _COMPREHENSIONS):
        parts = list(ast.iter_child_nodes(scope))
        first = scope.generators[0]
        return [each for each in parts if each is not first] + [first.target, *first.ifs]
    return [scope.body] if isinstance(scope, ast.Lambda) else list(scope.body)


def _outside(scope: Scope) -> list[ast.AST]:
    """What of a scope looks up names around it."""
    if isinstance(scope, _COMPREHENSIONS):
        return [scope.generators[0].iter]
    if isinstance(scope, ast.ClassDef):
        return [*scope.decorator_list, *scope.bases, *scope.keywords]
    decorators = [] if isinstance(scope, ast.Lambda) else scope.decorator_list
    given = [each for each in scope.args.kw_defaults if each is not None]
    return [*decorators, *scope.args.defaults, *given]


def _bound_by(scope: Scope) -> tuple[set[str], set[str]]:
    """The names that a scope gives values to, and those that it says are global."""
    binds: set[str] = set()
    globals_: set[str] = set()
    if isinstance(scope, Definition):
        arguments = scope.args
        binds.update(
            each.arg
            for each in (
                *arguments.posonlyargs, *arguments.args, arguments.vararg,
                *arguments.kwonlyargs, arguments.kwarg,
            ) if each
        )  # fmt: skip
    binds.update(str(each.name) for each in getattr(scope, "type_params", ()))
    if isinstance(scope, _COMPREHENSIONS):
        targets = [ast.walk(each.target) for each in scope.generators]
        binds.update(each.id for nodes in targets for each in nodes if isinstance(each, ast.Name))
        return binds, globals_
    waiting: list[tuple[ast.AST, bool]] = [(each, False) for each in _inside(scope)]
    while waiting:
        node, in_comprehension = waiting.pop()
        if isinstance(node, ast.NamedExpr):  # binds around a comprehension
            binds.add(node.target.id)
        elif isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            if not in_comprehension:
                binds.add(node.id)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            binds.update((each.asname or each.name).partition(".")[0] for each in node.names)
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
            binds.add(node.name)
        elif isinstance(node, ast.MatchMapping) and node.rest:
            binds.add(node.rest)
        elif isinstance(node, ast.Global):
            globals_.update(node.names)
        if isinstance(node, _COMPREHENSIONS):
            in_comprehension = True
        elif isinstance(node, Scope):
            binds.update([node.name] if isinstance(node, _NAMED) else [])
            waiting += [(each, in_comprehension) for each in _outside(node)]
            continue
        waiting += [(each, in_comprehension) for each in ast.iter_child_nodes(node)]
    return binds, globals_


def text_of(root: ast.AST) -> str:
    """A syntax tree as text (law 1)."""
    words: list[str] = []
    waiting: list[Any] = [root]
    while waiting:
        part = waiting.pop()
        if isinstance(part, str):
            words.append(part)
        elif isinstance(part, list):
            waiting += reversed([f"{len(part)}[", *part])
        elif isinstance(part, ast.AST):
            fields: list[Any] = [f"{type(part).__name__}("]
            for name, value in ast.iter_fields(part):
                if name == "body" and isinstance(value, list):
                    value = [each for each in value if not _does_nothing(each)]
                if name == "values" and isinstance(part, ast.JoinedStr):
                    value = _joined(value)
                if name not in _UNSAID and value is not None and value != []:
                    fields += [f".{name}", value if _is_tree(value) else _constant(value)]
            if isinstance(part, ast.Constant) and part.value is None:
                fields.append("None")
            waiting += reversed([*fields, ")"])
        else:
            words.append(_constant(part))
    return " ".join(words)


def _is_tree(value: object) -> bool:
    return isinstance(value, ast.AST | list)


def _does_nothing(statement: ast.AST) -> bool:
    """Docstrings, other values that nobody takes, and ``pass``."""
    is_value = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    return is_value or isinstance(statement, ast.Pass)


def _joined(values: list[ast.expr]) -> list[ast.expr]:
    """The pieces of an f-string, cut in the same places by every version of Python."""
    pieces: list[ast.expr] = []
    for each in values:
        last = pieces[-1] if pieces else None
        if isinstance(each, ast.Constant) and not each.value:
            continue
        if isinstance(each, ast.Constant) and isinstance(last, ast.Constant):
            pieces[-1] = ast.Constant(f"{last.value!s}{each.value!s}")
        else:
            pieces.append(each)
    return pieces


def _constant(value: object) -> str:
    if type(value) is int:
        return f"int {value:x}"  # decimal digits are limited
    return f"{type(value).__name__} {value!a}"


def _are_equal(one: CodeType, other: CodeType) -> bool:
    """Whether two codes do the same, wherever they stand."""
    return (
        one.co_code == other.co_code
        and one.co_names == other.co_names
        and one.co_varnames == other.co_varnames
        and one.co_freevars == other.co_freevars
        and one.co_cellvars == other.co_cellvars
        and one.co_flags == other.co_flags
        and _are_equal_constants(one.co_consts, other.co_consts)
    )


def _are_equal_constants(one: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    if len(one) != len(other):
        return False
    for left, right in zip(one, other, strict=True):
        if type(left) is not type(right):
            return False
        if isinstance(left, CodeType):
            equal = _are_equal(left, right)
        elif isinstance(left, tuple):
            equal = _are_equal_constants(left, right)
        elif isinstance(left, frozenset):
            equal = sorted(map(_constant, left)) == sorted(map(_constant, right))
        else:
            equal = _constant(left) == _constant(right)
        if not equal:
            return False
    return True


Span = tuple[tuple[int, int], tuple[int, int]]
"""From where to where: lines and columns."""


def _fits(node: Definition, code: CodeType) -> bool:
    """Whether the arguments are called the same."""
    names = [each.arg for each in (*node.args.posonlyargs, *node.args.args)]
    names += [each.arg for each in node.args.kwonlyargs]
    return tuple(names) == code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]


def _span(node: Definition) -> Span:
    body = node.body if isinstance(node, ast.Lambda) else node
    end = body.end_lineno or body.lineno, body.end_col_offset or 0
    return (body.lineno, body.col_offset), end


def _stretch(code: CodeType) -> Span | None:
    """From the first to the last place of what a code does; None where places are not kept."""
    places = [
        ((line, column), (end, end_column))
        for line, end, column, end_column in code.co_positions()
        if line is not None and end is not None and column is not None and end_column is not None
        if (column, end_column) != (0, 0)  # where it starts, before its first step
    ]
    if not places:
        return None
    return min(start for start, _ in places), max(end for _, end in places)


def _is_inside(one: Span, other: Span) -> bool:
    return other[0] <= one[0] and one[1] <= other[1]


def _is_around(node: ast.ClassDef, code: CodeType) -> bool:
    return node.lineno <= code.co_firstlineno <= (node.end_lineno or node.lineno)
