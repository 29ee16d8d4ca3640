"""The source of a function: its syntax tree as a text, and the names that the function reads.

`plan.identity` tells functions apart by this text. A function is looked up where it was written: in its file, in a cell
of a notebook, or in whatever else `linecache` knows. Laws:

- **Only what counts.** Comments, formatting, docstrings, line numbers, file names and the version of Python make no
  difference to the text. (They would if the text were bytecode, which differs between versions of Python.)
- **The code that runs.** A source counts only if it compiles to the very code of the function. So a function has no
  source here if its file was edited after the import, or if its code was rewritten at the import (as pytest does with
  ``assert``).
- **Names that are read.** `FunctionSource.reads` has the global names that the function, or a function inside it, looks
  up when it runs, with the attributes behind them: ``shop.rates.least`` is one path, ``("shop", "rates", "least")``.
  Names in default values, annotations and decorators are left out: they are looked up when the function is defined.

>>> def dear(price):
...     '''Whether tea is too dear.'''
...     return price > limits.most  # for us
>>> commented = source_of(dear.__code__, dear.__globals__)
>>> commented.reads
(('limits', 'most'),)
>>> def dear(price):
...     return price > limits.most
>>> source_of(dear.__code__, dear.__globals__) == commented
True

Cost: a file is parsed and compiled once (about 20 ms for a thousand lines); the last 64 files are remembered by their
texts.
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
_IGNORED_FIELDS = {"ctx", "kind", "type_comment", "type_ignores"}
"""Fields of the syntax tree that follow from other fields, or make no difference to what is computed."""


@dataclass(frozen=True, slots=True)
class FunctionSource:
    """The source of a function or a class."""

    text: str
    """The syntax tree, written out; or the bytecode, where the source is not known."""
    reads: tuple[Path, ...]
    """The names that are looked up outside, in alphabetical order (the law *names that are read*)."""
    imports: Mapping[str, tuple[str, str | None, int]]
    """The import statements inside. For each name that they bind: the module, the attribute of the module (None for
    the module itself), and the number of dots before the module's name."""


def source_of(code: CodeType, names: dict[str, Any]) -> FunctionSource | None:
    """The source of the function with this code, in a module with these names.

    None where the source is not known (the law *the code that runs*).
    """
    file, definition = _place_of(code, names)
    return None if file is None or definition is None else file.source(definition)


def source_of_class(
    qualname: str, code: CodeType | None, names: dict[str, Any]
) -> FunctionSource | None:
    """The source of a class statement. `code` is the code of one of the class's methods, `names` the names of its
    module.

    A class without methods has no code by which the law *the code that runs* could be checked. If the file of the
    module has exactly one class statement of that name, this is the source; otherwise the source is not known.
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
    return file.source(statements[0]) if len(statements) == 1 else None


def bytecode_of(code: CodeType) -> FunctionSource:
    """The source of a function whose text is not known: its bytecode, which depends on the version of Python."""
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
        elif isinstance(value, frozenset):  # its order differs between processes
            words.append(f"set {sorted(map(_constant, value))}")
        else:
            words.append(_constant(value))
    return FunctionSource("\n".join(words), tuple(sorted(reads)), {})


def _read_by(code: CodeType, reads: set[Path]) -> None:
    """Add to `reads` the paths of global names that some bytecode loads."""
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
    """The file in which a function was written, and its definition there.

    The file is taken as `linecache` has it, and as it is now if the function is not in that.
    """
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
    """A parsed and compiled Python file, indexed by the functions and classes in it."""

    def __init__(self, text: str, flags: int) -> None:
        self.tree = ast.parse(text)
        self.codes: dict[tuple[str, int], list[CodeType]] = {}
        self.definitions: dict[tuple[str, int], list[Definition]] = {}
        self.classes: dict[str, list[ast.ClassDef]] = {}
        self._sources: dict[ast.AST, FunctionSource] = {}
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
        """The definition of the function with this code, if the file compiles to that very code."""
        at = code.co_name, code.co_firstlineno
        if not any(_are_equal(code, other) for other in self.codes.get(at, ())):
            return None
        fits = [each for each in self.definitions.get(at, ()) if _fits(each, code)]
        if len(fits) > 1:  # lambdas on one line: the innermost around all steps of the code
            spans = [(_span(each), each) for each in fits]
            stretch = _stretch(code)
            around = [(span, each) for span, each in spans if stretch and _is_inside(stretch, span)]
            inner = [
                each for span, each in around if all(_is_inside(span, other) for other, _ in around)
            ]
            fits = inner[:1]
        return fits[0] if fits else None

    def source(self, node: Definition | ast.ClassDef) -> FunctionSource:
        """The source of a function or a class in the file."""
        if node not in self._sources:
            self._sources[node] = _source_at(node)
        return self._sources[node]


def _source_at(node: Definition | ast.ClassDef) -> FunctionSource:
    imports: dict[str, tuple[str, str | None, int]] = {}
    for each in ast.walk(node):
        if isinstance(each, ast.Import):
            for alias in each.names:
                module = alias.name if alias.asname else alias.name.partition(".")[0]
                imports[alias.asname or module] = (module, None, 0)
                if module != alias.name and not alias.asname:  # imports a.b, and binds a
                    imports[alias.name] = (alias.name, None, 0)
        elif isinstance(each, ast.ImportFrom):
            for alias in each.names:
                where = each.module or "", alias.name, each.level
                imports[alias.asname or alias.name] = where
    return FunctionSource(text_of(node), tuple(sorted(_reads(node, imports))), imports)


NameScope = Definition | ast.ClassDef | ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
"""Syntax that has names of its own. (`symtable` is not used: its answers differ between versions of Python.)"""

_NAMED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def _reads(root: Definition | ast.ClassDef, imports: Container[str]) -> set[Path]:
    """The paths that a function reads outside of itself (the law *names that are read*), or of a module it imports."""
    paths: set[Path] = set()
    scopes: list[tuple[NameScope, frozenset[str]]] = [(root, frozenset())]
    while scopes:
        scope, around = scopes.pop()
        known = around
        # The functions in a class do not see the names that the class binds.
        if not isinstance(scope, ast.ClassDef):
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
            elif isinstance(node, NameScope):
                scopes.append((node, known))
                waiting += _outside(node)
            elif isinstance(node, ast.AnnAssign) and not isinstance(scope, ast.ClassDef):
                waiting += [node.target, *([node.value] if node.value else [])]
            else:
                waiting += ast.iter_child_nodes(node)
    return paths


def _inside(scope: NameScope) -> list[ast.AST]:
    """The parts of a scope whose names are looked up in the scope."""
    if isinstance(scope, _COMPREHENSIONS):
        parts = list(ast.iter_child_nodes(scope))
        first = scope.generators[0]
        return [each for each in parts if each is not first] + [first.target, *first.ifs]
    return [scope.body] if isinstance(scope, ast.Lambda) else list(scope.body)


def _outside(scope: NameScope) -> list[ast.AST]:
    """The parts of a scope whose names are looked up around the scope, such as default values."""
    if isinstance(scope, _COMPREHENSIONS):
        return [scope.generators[0].iter]
    if isinstance(scope, ast.ClassDef):
        return [*scope.decorator_list, *scope.bases, *scope.keywords]
    decorators = [] if isinstance(scope, ast.Lambda) else scope.decorator_list
    keyword_defaults = [each for each in scope.args.kw_defaults if each is not None]
    return [*decorators, *scope.args.defaults, *keyword_defaults]


def _bound_by(scope: NameScope) -> tuple[set[str], set[str]]:
    """The names that a scope binds, and the names that it declares global."""
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
        if isinstance(node, ast.NamedExpr):  # binds in the scope around a comprehension
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
        elif isinstance(node, NameScope):
            binds.update([node.name] if isinstance(node, _NAMED) else [])
            waiting += [(each, in_comprehension) for each in _outside(node)]
            continue
        waiting += [(each, in_comprehension) for each in ast.iter_child_nodes(node)]
    return binds, globals_


def text_of(root: ast.AST) -> str:
    """A syntax tree as text (the law *only what counts*)."""
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
                if name not in _IGNORED_FIELDS and value is not None and value != []:
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
    """Whether a statement is a docstring, another constant that nobody takes, or ``pass``."""
    is_value = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    return is_value or isinstance(statement, ast.Pass)


def _joined(values: list[ast.expr]) -> list[ast.expr]:
    """The pieces of an f-string, cut at the same places whatever the version of Python."""
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
        return f"int {value:x}"  # Python limits the length of decimal texts
    return f"{type(value).__name__} {value!a}"


def _are_equal(one: CodeType, other: CodeType) -> bool:
    """Whether two codes do the same, at whatever lines they stand."""
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
"""Where something starts and where it ends, each a line and a column."""


def _fits(node: Definition, code: CodeType) -> bool:
    """Whether the arguments of a definition and of a code have the same names."""
    names = [each.arg for each in (*node.args.posonlyargs, *node.args.args)]
    names += [each.arg for each in node.args.kwonlyargs]
    return tuple(names) == code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]


def _span(node: Definition) -> Span:
    body = node.body if isinstance(node, ast.Lambda) else node
    end = body.end_lineno or body.lineno, body.end_col_offset or 0
    return (body.lineno, body.col_offset), end


def _stretch(code: CodeType) -> Span | None:
    """From the first to the last place of the steps of a code; None where the code does not keep places."""
    places = [
        ((line, column), (end, end_column))
        for line, end, column, end_column in code.co_positions()
        if line is not None and end is not None and column is not None and end_column is not None
        if (column, end_column) != (0, 0)  # the start of the code, before its first step
    ]
    if not places:
        return None
    return min(start for start, _ in places), max(end for _, end in places)


def _is_inside(one: Span, other: Span) -> bool:
    return other[0] <= one[0] and one[1] <= other[1]


def _is_around(node: ast.ClassDef, code: CodeType) -> bool:
    return node.lineno <= code.co_firstlineno <= (node.end_lineno or node.lineno)
