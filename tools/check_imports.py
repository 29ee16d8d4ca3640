"""House rules that a linter does not know: where a package may be imported, names, lengths.

Each third-party package has a home under ``src/riverrun``: the files that may import it. A package
without a home is refused, so a new dependency is a line in ``HOMES`` that somebody reviews. The
order of our own folders is import-linter's business (``pyproject.toml``); here are only the two
rules it cannot state: ``progress`` uses nothing but the standard library and ``riverrun.errors``,
and ``algorithms`` uses nothing but the public names of ``riverrun``.

    python tools/check_imports.py [repository]
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PACKAGE = "riverrun"
DATA = ("state/", "engine/", "frontends/", "spark/", "run.py", "run/", "testing.py", "testing/")

# Package -> the files and folders of src/riverrun that may import it. The longest name decides:
# pyarrow.flight has a narrower home than pyarrow.
HOMES: dict[str, tuple[str, ...]] = {
    "cloudpickle": ("spark/",),
    "cryptography": ("spark/certificates.py",),
    "deltalake": ("run/sinks.py",),
    "llvmlite": ("state/kernels.py", "state/kernels/"),
    "msgspec": ("engine/wire.py", "engine/shapes.py", "engine/link.py", "engine/endpoint.py"),
    "numba": ("state/kernels.py", "state/kernels/"),
    "numpy": ("algorithms/", *DATA),
    "obstore": ("state/checkpoint.py", "state/storage.py"),
    "polars": ("algorithms/", "frontends/", "run.py", "run/", "engine/operators/"),
    "pyarrow": DATA,
    "pyarrow.flight": (),  # frames, questions and rows travel on connections of our own
    "pyspark": ("spark/",),
    "rich": ("cli/", "ui.py", "run.py", "run/"),
    "xxhash": ("state/checkpoint.py", "state/files.py", "state/storage.py"),
}

# Folder -> the modules of our own that it may import, besides itself.
OWN: dict[str, tuple[str, ...]] = {
    "algorithms/": ("riverrun",),
    "progress/": ("riverrun.errors",),
}

EMPTY_NAMES = {"base", "common", "core", "helpers", "manager", "misc", "utils"}
MAX_LINES = 1200
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
    found: list[Violation] = []
    package = root / "src" / PACKAGE
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*.py")):
            shown = path.relative_to(root)
            source = path.read_text(encoding="utf-8")
            found += _shape(shown, source)
            if path.is_relative_to(package):
                found += _room(path, shown)
                for name, line in _imports(path, package, source):
                    found += _import(name, path.relative_to(package).as_posix(), shown, line)
    return found


def _shape(shown: Path, source: str) -> Iterator[Violation]:
    for part in shown.with_suffix("").parts:
        if part.strip("_") in EMPTY_NAMES:
            yield Violation(
                str(shown),
                1,
                f"the name {part!r} says nothing about what is inside",
                "name it for the thing it holds, or move each part to the file that uses it",
            )
    lines = source.count("\n")
    if lines > MAX_LINES:
        yield Violation(
            str(shown),
            lines,
            f"{lines} lines; the limit is {MAX_LINES}",
            "a room is missing: find the second thing in the file and give it its own",
        )


def _room(path: Path, shown: Path) -> Iterator[Violation]:
    first = min(path.parent.glob("*.py"))
    if path == first and not (path.parent / "__init__.py").exists():
        yield Violation(
            str(shown),
            1,
            f"{shown.parent} has no __init__.py, so import-linter and the wheel do not see it",
            "add one that says in its docstring what the folder is for",
        )


def _imports(path: Path, package: Path, source: str) -> Iterator[tuple[str, int]]:
    """The dotted names a file imports, at any depth, relative ones resolved."""
    here = (PACKAGE, *path.relative_to(package).with_suffix("").parts)
    for node in ast.walk(ast.parse(source, str(path))):
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
    elif not any(file == home or home in _folders(file) for home in HOMES[package]):
        yield Violation(
            str(shown),
            line,
            f"{package} may be imported only in: {', '.join(HOMES[package])}",
            f"call a function of ours that lives there, instead of {package} itself",
        )


def _folders(file: str) -> list[str]:
    return [f"{folder}/" for folder in map(Path.as_posix, Path(file).parents)]


def main(arguments: list[str]) -> int:
    """Print what is wrong; the exit code says whether anything was."""
    root = Path(arguments[0]) if arguments else Path(__file__).resolve().parent.parent
    if not (root / "src" / PACKAGE).is_dir():
        print(f"no src/{PACKAGE} in {root}", file=sys.stderr)
        return 2
    found = violations(root)
    for violation in found:
        print(violation)
    print(f"house rules: {len(found)} broken" if found else "house rules: kept")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
