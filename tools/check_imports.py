"""House rules that a linter does not know: where names may be imported and used, cycles, names, who knows operators.

Each third-party package has a home under ``src/riverrun``: the files that may import it. A package without a home is
refused, so a new dependency is a line in ``HOMES`` that somebody reviews. The order of our own folders is checked by
import-linter (``pyproject.toml``); here are only the two rules that import-linter cannot state: ``progress`` imports
only the standard library and ``riverrun.errors``, and ``algorithms`` imports only the public names of ``riverrun``.

The rest of the project knows operators by their answers (``plan/operator.py``): outside of ``operators/`` and the files
in ``KNOWING``, no code looks at the class of an operator, by ``isinstance``, ``type`` or ``match``.

A name that is imported under ``if TYPE_CHECKING:`` alone does not exist at run time: only annotations, which nobody
evaluates under ``from __future__ import annotations``, may have it. Type checkers do not notice other uses.

Three rules keep the house easy to find one's way in. No module of ``src`` imports itself by way of others; an import in
a function counts, since it hides a cycle and does not cut it, and an import for type checkers alone does not. No two
classes of ``src`` have one name, leading underscores aside. No folder of ``src`` or ``tests`` has more than
``MAX_MODULES`` modules beside each other.

    python tools/check_imports.py [repository]
"""

from __future__ import annotations

import ast
import dis
import sys
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import CodeType

PACKAGE = "riverrun"
DATA = (
    "state/", "storage/", "rows/", "plan/", "operators/", "engine/", "runtime/", "frontends/", "spark/", "run/",
    "testing/",
)  # fmt: skip

# Package -> the files and folders of src/riverrun that may import it. The longest name decides:
# pyarrow.flight has a narrower home than pyarrow. A home "*/x/" is any folder called x.
HOMES: dict[str, tuple[str, ...]] = {
    "cloudpickle": ("runtime/program.py", "spark/"),
    "cryptography": ("spark/security.py",),
    "deltalake": ("run/sinks/delta.py",),
    "llvmlite": ("state/kernels/",),
    "msgspec": ("runtime/codec/", "runtime/network/"),
    "numba": ("*/kernels/",),
    "numpy": ("algorithms/", *DATA),
    "obstore": ("storage/store.py",),
    "polars": ("algorithms/", "frontends/", "run/", "rows/", "operators/", "plan/identity.py"),
    "pyarrow": DATA,
    "pyarrow.flight": (),  # messages, questions and rows travel on connections of our own
    "pyspark": ("spark/",),
    "rich": ("cli/", "run/"),
    "xxhash": ("storage/store.py",),
}

# Folder -> the modules of our own that it may import, besides itself.
OWN: dict[str, tuple[str, ...]] = {
    "algorithms/": ("riverrun",),
    "progress/": ("riverrun.errors",),
}

# The files and folders that may look at the class of an operator, and why.
KNOWING: dict[str, str] = {
    "operators/": "operators know each other",
    "plan/operator.py": "the interface itself",
    "plan/plan.py": "`operator_at` holds whoever added a node to the kind that they name",
}

EMPTY_NAMES = {"base", "common", "core", "helpers", "manager", "misc", "utils"}
MAX_MODULES = 20
TYPES_ONLY = ("TYPE_CHECKING", "typing.TYPE_CHECKING")
GLOBAL_LOADS = ("LOAD_NAME", "LOAD_GLOBAL", "LOAD_FROM_DICT_OR_GLOBALS")
FOLDERS = ("src", "tests", "tools", "bench", "examples")


@dataclass(frozen=True)
class Violation:
    """A rule broken at a place, and what to do about it."""

    path: str
    line: int
    rule: str
    hint: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.rule}\n    Hint: {self.hint}"


def violations(root: Path) -> list[Violation]:
    """Everything under `root`, a repository, that breaks a rule."""
    broken: list[Violation] = []
    package = root / "src" / PACKAGE
    own: dict[str, tuple[Path, str]] = {}  # module -> file and source, of our own package
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*.py")):
            shown = path.relative_to(root)
            source = path.read_text(encoding="utf-8")
            broken += _names(shown)
            broken += _used_at_run_time(shown, source)
            if path.is_relative_to(package):
                own[_module(path, package)] = shown, source
                broken += _room(path, shown)
                file = path.relative_to(package).as_posix()
                for name, line in _imports(path, package, source):
                    broken += _import(name, file, shown, line)
                if not any(file == home or home in _folders(file) for home in KNOWING):
                    broken += _looks_at_operators(shown, source)
        broken += _crowds(root, folder)
    broken += _cycles(own, package)
    broken += _namesakes(own)
    return broken


def _names(shown: Path) -> Iterator[Violation]:
    for part in shown.with_suffix("").parts:
        if part.strip("_") in EMPTY_NAMES:
            yield Violation(
                str(shown),
                1,
                f"the name {part!r} says nothing about what is inside",
                "name it for the thing it holds, or move each part to the file that uses it",
            )


def _crowds(root: Path, folder: str) -> Iterator[Violation]:
    """Folders of `src` and `tests` with too many modules beside each other."""
    if folder not in ("src", "tests"):
        return
    for place in sorted({path.parent for path in (root / folder).rglob("*.py")}):
        modules = sum(path.name != "__init__.py" for path in place.glob("*.py"))
        if modules > MAX_MODULES:
            yield Violation(
                str(place.relative_to(root)),
                1,
                f"{modules} modules beside each other; at most {MAX_MODULES} have room in a folder",
                "find the modules that are about one thing, and give them a folder of their own",
            )


def _namesakes(own: Mapping[str, tuple[Path, str]]) -> Iterator[Violation]:
    """Classes that have the name of another class, leading underscores aside."""
    known: dict[str, str] = {}
    for shown, source in own.values():
        for node in ast.walk(ast.parse(source, str(shown))):
            if isinstance(node, ast.ClassDef):
                place = f"{shown}:{node.lineno}"
                other = known.setdefault(node.name.lstrip("_"), place)
                if other != place:
                    yield Violation(
                        str(shown),
                        node.lineno,
                        f"the class {node.name} has the name of a class at {other}",
                        "name each of them for what it is",
                    )


def _cycles(own: Mapping[str, tuple[Path, str]], package: Path) -> Iterator[Violation]:
    """Modules that import themselves by way of others: each such group of modules once, at its first import."""
    imported: dict[str, dict[str, int]] = {}
    for module, (shown, source) in own.items():
        lines = imported[module] = {}
        path = package.parent.parent / shown
        for name, line in _imports(path, package, source, for_types=False):
            if name in own and name != module:
                lines.setdefault(name, line)
    for component in _components(imported):
        way = _way_back(min(component), {at: imported[at].keys() & component for at in component})
        yield Violation(
            str(own[way[0]][0]),
            imported[way[0]][way[1]],
            f"modules import each other: {' -> '.join(way)}",
            "move what both need to a module of its own, or pass it in; an import in a function hides a cycle and does "
            "not cut it",
        )


def _components(imported: Mapping[str, Mapping[str, int]]) -> Iterator[set[str]]:
    """The groups of modules that all lead to each other, of two modules or more."""
    reached: dict[str, set[str]] = {}
    for module in imported:
        seen, waiting = set[str](), [module]
        while waiting:
            fresh = imported[waiting.pop()].keys() - seen
            seen |= fresh
            waiting += fresh
        reached[module] = seen
    done: set[str] = set()
    for module in sorted(imported):
        if module in reached[module] and module not in done:
            component = {other for other in reached[module] if module in reached[other]}
            done |= component
            yield component


def _way_back(start: str, imported: Mapping[str, Iterable[str]]) -> list[str]:
    """The shortest way from a module to itself, with the module at both ends."""
    ways = [[start]]
    for way in ways:
        for name in sorted(imported[way[-1]]):
            if name == start:
                return [*way, start]
            if all(name not in other for other in ways):
                ways.append([*way, name])
    raise AssertionError(start)


def _room(path: Path, shown: Path) -> Iterator[Violation]:
    first = min(path.parent.glob("*.py"))
    if path == first and not (path.parent / "__init__.py").exists():
        yield Violation(
            str(shown),
            1,
            f"{shown.parent} has no __init__.py, so import-linter and the wheel do not see it",
            "add one that says in its docstring what the folder is for",
        )


def _module(path: Path, package: Path) -> str:
    """The dotted name of a file of ours."""
    parts = path.relative_to(package).with_suffix("").parts
    return ".".join((PACKAGE, *(parts[:-1] if parts[-1] == "__init__" else parts)))


def _imports(
    path: Path, package: Path, source: str, *, for_types: bool = True
) -> Iterator[tuple[str, int]]:
    """The dotted names a file imports, at any depth, relative ones resolved; those for type checkers if `for_types`."""
    here = (PACKAGE, *path.relative_to(package).with_suffix("").parts)
    for node in _nodes(ast.parse(source, str(path)), for_types):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno
        elif isinstance(node, ast.ImportFrom):
            # One dot is the folder of the file, also for __init__.py.
            parents = here[: -node.level] if node.level else ()
            module = ".".join([*parents, *([node.module] if node.module else [])])
            for alias in node.names:
                name = f"{module}.{alias.name}"
                # `from riverrun import run` imports a module, `from riverrun import Run` a name.
                own = package.parent.joinpath(*name.split("."))
                is_name = name.startswith(f"{PACKAGE}.") and not (
                    own.is_dir() or own.with_suffix(".py").is_file()
                )
                yield module if is_name else name, node.lineno


def _nodes(tree: ast.AST, for_types: bool) -> Iterator[ast.AST]:
    """All nodes of a tree; without those below ``if TYPE_CHECKING:``, unless `for_types`."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        below: Iterable[ast.AST] = ast.iter_child_nodes(node)
        if not for_types and isinstance(node, ast.If) and ast.unparse(node.test) in TYPES_ONLY:
            below = node.orelse
        waiting += below


class _WithoutTypes(ast.NodeTransformer):
    """Takes the blocks under ``if TYPE_CHECKING:`` out of a tree, and keeps what was in them."""

    def __init__(self) -> None:
        self.taken: list[ast.stmt] = []

    def visit_If(self, node: ast.If) -> ast.AST:
        self.generic_visit(node)
        if ast.unparse(node.test) in TYPES_ONLY:
            self.taken += node.body
            node.body = [ast.copy_location(ast.Pass(), node)]
        return node


def _used_at_run_time(shown: Path, source: str) -> Iterator[Violation]:
    """Where a file uses a name at run time that it binds for type checkers alone, as the compiler resolves names."""
    types = _WithoutTypes()
    rest = compile(
        types.visit(ast.parse(source, str(shown))), str(shown), "exec", dont_inherit=True
    )
    bound = ast.Module(types.taken, type_ignores=[])
    names = _bound(compile(bound, str(shown), "exec", dont_inherit=True)) - _bound(rest)
    used: set[tuple[int, str]] = set()
    for code in _codes(rest) if names else ():
        own = set[str]() if code is rest else _bound(code)  # of a class
        for each in dis.get_instructions(code):
            if each.opname in GLOBAL_LOADS and each.argval in names - own:
                used.add(((each.positions and each.positions.lineno) or 1, each.argval))
    for line, name in sorted(used):
        yield Violation(
            str(shown),
            line,
            f"{name} is imported for type checkers alone, and used at run time",
            "import it outside of `if TYPE_CHECKING:`; where that makes a cycle, ask the object for it",
        )


def _codes(code: CodeType) -> Iterator[CodeType]:
    """A piece of compiled code, and all pieces in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _bound(code: CodeType) -> set[str]:
    """The names that compiled code binds in the module, or in the class, that it is the code of."""
    return {each.argval for each in dis.get_instructions(code) if each.opname == "STORE_NAME"}


def _looks_at_operators(shown: Path, source: str) -> Iterator[Violation]:
    """Where a file looks at the class of an operator: of `x.operator`, or of a name that stands for one."""
    tree = ast.parse(source, str(shown))
    names = {"operator"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.NamedExpr):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                names |= {
                    name.id for name, value in _pairs(target, node.value)
                    if isinstance(name, ast.Name) and _is_operator(value, ())
                }  # fmt: skip
    for node in ast.walk(tree):
        looked_at = None
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args:
            if node.func.id in ("isinstance", "issubclass", "type"):
                (looked_at, *_) = node.args
        elif isinstance(node, ast.Match):
            looked_at = node.subject
        elif isinstance(node, ast.Attribute) and node.attr == "__class__":
            looked_at = node.value
        if looked_at is not None and _is_operator(looked_at, names):
            yield Violation(
                str(shown),
                looked_at.lineno,
                "the class of an operator is looked at",
                "ask the operator: what is to be known of it is a method or a property of Operator "
                "(src/riverrun/plan/operator.py), answered by each class in its own file",
            )


def _is_operator(value: ast.expr, names: Container[str]) -> bool:
    """Whether an expression is the operator of a node, as far as its name tells."""
    if isinstance(value, ast.Attribute):
        return value.attr == "operator"
    return isinstance(value, ast.Name) and value.id in names


def _pairs(target: ast.expr, value: ast.expr) -> Iterator[tuple[ast.expr, ast.expr]]:
    """What is assigned to what, tuples taken apart."""
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        yield from zip(target.elts, value.elts, strict=False)
    else:
        yield target, value


def _import(name: str, file: str, shown: Path, line: int) -> Iterator[Violation]:
    top = name.partition(".")[0]
    if top in sys.stdlib_module_names:
        return
    own = next((folder for folder in OWN if file.startswith(folder)), None)
    if top == PACKAGE:
        inside = f"{PACKAGE}.{own}".rstrip("/")
        if own and name not in OWN[own] and not f"{name}.".startswith(f"{inside}."):
            yield Violation(
                str(shown),
                line,
                f"{own} may not import {name}; of our own only: {', '.join(OWN[own])}",
                "pass the value in, or move this code to a later folder",
            )
        return
    parts = name.split(".")
    prefixes = (".".join(parts[:n]) for n in range(len(parts), 0, -1))
    package = next((prefix for prefix in prefixes if prefix in HOMES), None)
    if package is None:
        yield Violation(
            str(shown),
            line,
            f"{top} has no home in src/{PACKAGE}",
            "use what is there already; a new dependency needs a line in HOMES "
            "(tools/check_imports.py), in pyproject.toml and in requirements.lock",
        )
    elif not any(home in _homes(file) for home in HOMES[package]):
        yield Violation(
            str(shown),
            line,
            f"{package} may be imported only in: {', '.join(HOMES[package])}",
            f"call a function of ours that lives there, instead of {package} itself",
        )


def _folders(file: str) -> list[str]:
    return [f"{folder}/" for folder in map(Path.as_posix, Path(file).parents)]


def _homes(file: str) -> list[str]:
    """The ways in which a home can name a file: the file, a folder around it, or any folder of a name."""
    return [file, *_folders(file), *(f"*/{name}/" for name in Path(file).parent.parts)]


def main(arguments: list[str]) -> int:
    """Print the broken rules; the exit code is 1 if there are any."""
    root = Path(arguments[0]) if arguments else Path(__file__).resolve().parent.parent
    if not (root / "src" / PACKAGE).is_dir():
        print(f"no src/{PACKAGE} in {root}", file=sys.stderr)
        return 2
    broken = violations(root)
    for violation in broken:
        print(violation)
    print(f"house rules: {len(broken)} broken" if broken else "house rules: kept")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
