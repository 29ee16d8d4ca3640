"""Fills in the parts of documentation pages that come from the code: the reference, and the programs of the cookbook.

A page is Markdown written by hand. The text between two comments is made from the code. It is part of the repository,
so that a page reads the same on a forge as on the site:

    <!-- entry: riverrun.Collection.join -->     heading, signature and docstring of a public name; several names
    <!-- end -->                                 share an entry, with () the constructor of a class is shown
    <!-- program: examples/cookbook/x.py -->     the source of a program, up to its `main`
    <!-- main: examples/cookbook/x.py -->        the body of its `main`
    <!-- names -->                               all entries of all pages, with links

Laws, which `--check` holds:

- **An entry for each public name.** Every public name has exactly one entry, and no other name has one. Public are the
  names in the ``__all__`` of `PACKAGES` and of the modules that these name, and the public methods and properties of
  their classes, except for `INTERNAL`.
- **Up to date.** The text between the comments is what the code says now.
- **Arguments named.** Every argument of an entry is named in the text of the entry.
- **Drawn by the code.** The drawings in `PICTURES` are what the code draws now, of figures that were measured once.

    python tools/pages.py           write the pages that have changed
    python tools/pages.py --check   print the broken laws, and change nothing; the exit code is 1 if there are any
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, get_args, get_origin

from riverrun.plan.loop_figures import RoundFigures
from riverrun.run import options
from riverrun.run.rounds import Rounds

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("riverrun", "riverrun.testing")

# Members of public classes that are for the engine: whoever writes programs never needs them.
INTERNAL = frozenset(
    {
        "riverrun.Aggregate.by",
        "riverrun.Aggregate.called",
        "riverrun.Aggregate.column",
        "riverrun.Aggregate.columns",
        "riverrun.Aggregate.order",
        "riverrun.Collection.scope",
        "riverrun.Grouped.of",
        "riverrun.Result.of",
        "riverrun.Sink.active",
        "riverrun.Sink.fail",
        "riverrun.Sink.give",
        "riverrun.Sink.status",
        "riverrun.Sink.wait_for_room",
        "riverrun.Vertex.bind",
    }
)
# What the rounds of the README's components did, round by round: rows touched, messages, milliseconds. First 26,000
# edges between 20,000 nodes are inserted, drawn at random; then 260 of them are deleted; then one comes back.
ROUNDS: tuple[tuple[tuple[int, int, float], ...], ...] = (
    (
        (159589, 18531, 45.76), (121135, 22588, 41.35), (101306, 21902, 86.43), (95549, 21886, 58.92),
        (93953, 21872, 89.19), (93878, 22004, 84.71), (93065, 21682, 62.35), (90906, 21252, 59.61),
        (85721, 19374, 119.99), (71809, 14770, 148.58), (48623, 7866, 78.48), (22872, 2698, 34.59),
        (7129, 722, 11.87), (1762, 184, 9.28), (444, 50, 0.56), (114, 10, 0.38), (28, 4, 0.24), (8, 0, 0.17),
    ),
    (
        (1370, 238, 11.96), (2008, 538, 11.95), (3306, 894, 10.01), (4908, 1302, 23.47), (6739, 1694, 32.69),
        (8356, 2094, 31.14), (9982, 2473, 34.35), (11428, 2723, 43.99), (12071, 2688, 25.68),
        (11277, 2295, 28.35), (8646, 1461, 35.77), (4750, 633, 22.67), (1835, 209, 11.41), (522, 45, 1.16),
        (100, 4, 0.41), (8, 0, 0.23),
    ),
    (
        (6, 2, 1.17), (14, 4, 0.37), (20, 4, 8.67), (18, 4, 0.44), (14, 2, 0.50), (8, 2, 0.73), (8, 0, 0.25),
        (4, 2, 0.20), (10, 2, 0.29), (12, 4, 0.29), (17, 0, 0.24), (2, 0, 0.14), (0, 0, 0.07), (0, 0, 0.05),
    ),
)  # fmt: skip
WIDTH = 88  # of a signature; a longer one has a line for each argument
MARK = re.compile(
    r"<!-- (entry|program|main|names)(?:: (.+?))? -->\n(.*?)<!-- end -->\n", re.DOTALL
)


@dataclass(frozen=True)
class Entry:
    """A place of a page that is about a public name, or about several that have one text."""

    page: str  # relative to docs/
    names: tuple[str, ...]  # in full: riverrun.Run.read
    constructor: bool = False

    @property
    def name(self) -> str:
        return self.names[0]

    @cached_property
    def value(self) -> Any:
        return resolve(self.name)

    @property
    def titles(self) -> list[str]:
        return [short(name) for name in self.names]

    @property
    def anchor(self) -> str:
        """As forges and the site make it of the heading."""
        return re.sub(r"[^\w -]", "", " ".join(self.titles).lower()).replace(" ", "-")

    @property
    def parameters(self) -> list[inspect.Parameter]:
        shown = self.value.__init__ if self.constructor and self.is_plain else self.value
        if isinstance(shown, (property, cached_property)) or not callable(shown):
            return []
        if inspect.isclass(shown) and not self.constructor:
            return []
        if self.is_rule:
            return []
        of = inspect.signature(shown).parameters.values()
        return [parameter for parameter in of if parameter.name not in {"self", "cls"}]

    @property
    def is_plain(self) -> bool:
        """Whether it is a class whose ``__init__`` is written out."""
        return inspect.isclass(self.value) and "__init__" in vars(self.value)

    @property
    def is_rule(self) -> bool:
        """Whether it is a value, not a function or a class."""
        return not inspect.isroutine(self.value) and not inspect.isclass(self.value)


def packages() -> list[str]:
    """The packages, and the modules that are public names: a namespace such as ``rr.rules``."""
    spaces = [
        f"{package}.{name}"
        for package in PACKAGES
        for name in import_module(package).__all__
        if isinstance(getattr(import_module(package), name), ModuleType)
    ]
    return [*PACKAGES, *spaces]


def split(name: str) -> tuple[str, str]:
    """The package of a full name, and the rest of it."""
    package = max((p for p in packages() if name.startswith(f"{p}.")), key=len)
    return package, name.removeprefix(f"{package}.")


def short(name: str) -> str:
    """What a name is called in programs: ``rr.sum``, ``Run.read``, ``check_operator``."""
    package, rest = split(name)
    if package in PACKAGES:
        return f"rr.{rest}" if package == "riverrun" and "." not in rest else rest
    return f"rr.{package.removeprefix('riverrun.')}.{rest}"


def resolve(name: str) -> Any:
    """The value of a full name; properties as they are."""
    package, rest = split(name)
    value: Any = import_module(package)
    for part in rest.split("."):
        value = (
            inspect.getattr_static(value, part) if inspect.isclass(value) else getattr(value, part)
        )
    return value.__func__ if isinstance(value, (classmethod, staticmethod)) else value


def public_names() -> Iterator[str]:
    """Everything that programs may use, by its full name."""
    for package in packages():
        module = import_module(package)
        for name in module.__all__:
            value = getattr(module, name)
            if isinstance(value, ModuleType):
                continue
            yield f"{package}.{name}"
            if not inspect.isclass(value) or issubclass(value, BaseException):
                continue
            for member in sorted(_members(value)):
                if f"{package}.{name}.{member}" not in INTERNAL:
                    yield f"{package}.{name}.{member}"


def _members(kind: type) -> set[str]:
    """Public methods and properties that are ours, not those of Polars or Python."""
    ours = [base for base in kind.__mro__ if base.__module__.partition(".")[0] == "riverrun"]
    return {
        name
        for base in ours
        for name, value in vars(base).items()
        if not name.startswith("_")
        and (
            inspect.isroutine(value)
            or isinstance(value, (property, cached_property, classmethod, staticmethod))
            or (
                inspect.ismemberdescriptor(value) and not is_dataclass(base)
            )  # its entry lists fields
        )
    }


# --- what an entry says -------------------------------------------------------------------------


def signature(entry: Entry) -> str:
    """The signature of an entry as a program would read it; without one, nothing."""
    value = entry.value
    if isinstance(value, (property, cached_property)):
        function = value.fget if isinstance(value, property) else value.func
        returns = getattr(function, "__annotations__", {}).get("return")
        return f"{entry.name.rpartition('.')[2]}: {_type(returns)}" if returns else ""
    if inspect.ismemberdescriptor(value):
        return ""
    if (inspect.isclass(value) and not entry.constructor) or entry.is_rule:
        return ""
    of_class = "." in split(entry.name)[1]
    name = entry.titles[0].rpartition(".")[2] if of_class else entry.titles[0]
    arguments, star = [], False
    for parameter in entry.parameters:
        if parameter.kind is parameter.KEYWORD_ONLY and not star:
            arguments.append("*")
        star = star or parameter.kind in {parameter.KEYWORD_ONLY, parameter.VAR_POSITIONAL}
        arguments += _short_forms(parameter) or [_argument(parameter)]
    positional = [p for p in entry.parameters if p.kind is p.POSITIONAL_ONLY]
    if positional:
        arguments.insert(len(positional), "/")
    returns = "" if inspect.isclass(value) else _type(inspect.signature(value).return_annotation)
    arrow = f" -> {returns}" if returns else ""
    line = f"{name}({', '.join(arguments)}){arrow}"
    if len(line) <= WIDTH:
        return line
    return f"{name}(\n" + "".join(f"    {argument},\n" for argument in arguments) + f"){arrow}"


def _short_forms(parameter: inspect.Parameter) -> list[str]:
    """Of ``**short: Unpack[ShortOptions]`` the arguments that it stands for, with the defaults of the options."""
    if (
        parameter.kind is not parameter.VAR_KEYWORD
        or parameter.annotation != "Unpack[ShortOptions]"
    ):
        return []
    groups = (options.Checkpoint, options.Recovery, options.Security)
    every = {each.name: each for group in groups for each in fields(group)}
    return [
        f"{name}: {_type(every[name].type)} = {_default(every[name].default)}"
        for name in options.ShortOptions.__annotations__
    ]


def _argument(parameter: inspect.Parameter) -> str:
    variadic = {"VAR_POSITIONAL": "*", "VAR_KEYWORD": "**"}
    stars = variadic.get(parameter.kind.name, "")
    kind = _type(parameter.annotation)
    text = f"{stars}{parameter.name}" + (f": {kind}" if kind else "")
    if parameter.default is parameter.empty:
        return text
    return (
        f"{text} = {_default(parameter.default)}"
        if kind
        else f"{text}={_default(parameter.default)}"
    )


def _type(annotation: Any) -> str:
    if annotation is inspect.Signature.empty or annotation is None:
        return ""
    text = (
        annotation
        if isinstance(annotation, str)
        else getattr(annotation, "__name__", repr(annotation))
    )
    text = re.sub(r"['\"](\w+)['\"](?!\s*[,\]])", r"\1", text)
    return re.sub(r"\b[A-Z]\w+\b", lambda word: _choices(word[0]), text)


def _choices(name: str) -> str:
    """The values among which a type of this name chooses, as Python writes them; the name, for every other type."""
    for module in [each for key, each in sys.modules.items() if key.startswith("riverrun.")]:
        found = getattr(module, name, None)
        if get_origin(found) is Literal:
            return " | ".join(_default(value) for value in get_args(found))
    return name


def _default(value: Any) -> str:
    for package in packages():
        module = import_module(package)
        for name in module.__all__:
            public = getattr(module, name)
            ours = type(value).__module__.partition(".")[0] == "riverrun"
            if public is value or (ours and public == value):
                return short(f"{package}.{name}")
    if inspect.isclass(value):
        return f"pl.{value.__name__}" if value.__module__.startswith("polars") else value.__name__
    text = repr(value).removeprefix("datetime.")
    return "..." if text.startswith("<") else text.replace("'", '"')


def text_of(entry: Entry, entries: dict[str, Entry]) -> str:
    """The docstring of an entry as Markdown, with links to other entries."""
    value = entry.value
    source = value if inspect.isclass(value) or hasattr(value, "__get__") else type(value)
    if isinstance(value, dict):
        return ""
    return markdown(inspect.cleandoc(source.__doc__ or ""), entry, entries) + _fields(entry)


def markdown(docstring: str, entry: Entry, entries: dict[str, Entry]) -> str:
    """A docstring of this project as Markdown: examples in fences, names as links."""
    parts, lines = [], docstring.splitlines()
    while lines:
        if lines[0].startswith(">>>"):
            end = next((n for n, line in enumerate(lines) if not line.strip()), len(lines))
            parts.append("```pycon\n" + "\n".join(lines[:end]) + "\n```\n")
        else:
            end = next((n for n, line in enumerate(lines) if line.startswith(">>>")), len(lines))
            prose = "\n".join(lines[:end]).rstrip() + "\n"
            prose = re.sub(r":\w+:`~?(.+?)`", r"`\1`", prose)
            prose = re.sub(r" ::\n", ":\n", prose).replace("``", "`")
            parts.append(re.sub(r"`([^`\n]+)`", lambda m: _link(m, entry, entries), prose))
        lines = lines[end:]
        while lines and not lines[0].strip():
            lines.pop(0)
    return "\n".join(parts)


def _link(code: re.Match[str], entry: Entry, entries: dict[str, Entry]) -> str:
    """A name in backticks as a link to its entry, unless it is this entry or an argument of it."""
    written = code[1]
    if written in {parameter.name for parameter in entry.parameters}:
        return code[0]
    owner = entry.name.rpartition(".")[0]
    if written.startswith("rr."):
        names = [f"riverrun.{written.removeprefix('rr.')}"]
    else:
        names = [f"{owner}.{written}", *(f"{package}.{written}" for package in PACKAGES)]
        if "." not in written and written.islower():
            names = [name for name in names if name.startswith(f"{owner}.")]
    target = next((entries[name] for name in names if name in entries), None)
    if target is None or target is entry:
        return code[0]
    page = "" if target.page == entry.page else Path(target.page).name
    return f"[{code[0]}]({page}#{target.anchor})"


def _fields(entry: Entry) -> str:
    """The fields of a class that are documented where they are declared, as a list."""
    if not inspect.isclass(entry.value):
        return ""
    [body] = ast.parse(textwrap.dedent(inspect.getsource(entry.value))).body
    assert isinstance(body, ast.ClassDef)
    known = {each.name: each for each in fields(entry.value)} if is_dataclass(entry.value) else {}
    items = []
    for field, note in zip(body.body, body.body[1:], strict=False):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(note, ast.Expr)
            and isinstance(note.value, ast.Constant)
        ):
            text = inspect.cleandoc(str(note.value.value)).replace("``", "`")
            items.append(f"- `{_field(field, known.get(field.target.id))}`: {text}\n")
    return "\n" + "".join(items) if items else ""


def _field(written: ast.AnnAssign, known: Field[Any] | None) -> str:
    """A field as its declaration reads, with the value of a default that has a name there."""
    assert isinstance(written.target, ast.Name)
    shown = f"{written.target.id}: {_type(ast.unparse(written.annotation))}"
    if known is None or known.default is MISSING:
        return shown
    return f"{shown} = {_default(known.default)}"


def written(entry: Entry, entries: dict[str, Entry]) -> str:
    """All that stands in a page for an entry."""
    level = (
        "###"
        if "." in entry.titles[0].removeprefix("rr.") or not inspect.isclass(entry.value)
        else "##"
    )
    heading = f"{level} " + " ".join(f"`{title}`" for title in entry.titles) + "\n"
    line = signature(entry)
    fence = f"```py\n{line}\n```\n" if line else ""
    return (
        "\n" + "\n".join(part for part in (heading, fence, text_of(entry, entries)) if part) + "\n"
    )


# --- the programs of the cookbook ---------------------------------------------------------------


def program(path: str) -> str:
    """The source of a program without its docstring and its `main`."""
    source = (ROOT / path).read_text(encoding="utf-8")
    tree = ast.parse(source)
    lines = source.splitlines()
    begin = next(node.lineno for node in tree.body if not _is_docstring(node)) - 1
    return "\n```python\n" + "\n".join(lines[begin : _main(tree).lineno - 1]).rstrip() + "\n```\n\n"


def main_of(path: str) -> str:
    """What the `main` of a program does, as a program."""
    source = (ROOT / path).read_text(encoding="utf-8")
    main = _main(ast.parse(source))
    begin, end = main.body[0].lineno - 1, main.end_lineno
    return (
        "\n```python\n" + textwrap.dedent("\n".join(source.splitlines()[begin:end])) + "\n```\n\n"
    )


def _main(tree: ast.Module) -> ast.FunctionDef:
    return next(n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == "main")


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


# --- drawings -----------------------------------------------------------------------------------


def drawn_rounds() -> str:
    """What `Rounds.to_svg` draws of `ROUNDS`."""
    epochs = [
        (epoch, tuple([RoundFigures((at,), *each[:2], each[2] / 1e3) for at, each in rounds]))
        for epoch, rounds in enumerate(map(enumerate, ROUNDS))
    ]
    return Rounds("components", (), epochs).to_svg() + "\n"


PICTURES: dict[str, Callable[[], str]] = {"rounds.svg": drawn_rounds}
"""By the name of the file in docs/."""


# --- pages --------------------------------------------------------------------------------------


def entries_of(pages: dict[str, str]) -> list[Entry]:
    """The entries of all pages, in their order."""
    entries = []
    for page, text in pages.items():
        for kind, argument, _ in MARK.findall(text):
            if kind == "entry":
                names = argument.split()
                constructor = names[0].endswith("()")
                entries.append(Entry(page, tuple(n.removesuffix("()") for n in names), constructor))
    return entries


def names_table(entries: list[Entry]) -> str:
    """All names with links to where they are explained."""
    rows = sorted(
        (short(name).removeprefix("rr.").lower(), short(name), entry)
        for entry in entries
        for name in entry.names
        if "." not in split(name)[1]
    )
    lines = [f"[`{name}`]({Path(entry.page).name}#{entry.anchor})" for _, name, entry in rows]
    return "\n" + ",\n".join(lines) + "\n\n"


def filled(page: str, text: str, entries: list[Entry]) -> str:
    """A page with everything between its comments made anew."""
    by_name = {name: entry for entry in entries for name in entry.names}

    def fill(mark: re.Match[str]) -> str:
        kind, argument = mark[1], mark[2]
        if kind == "entry":
            body = written(by_name[argument.split()[0].removesuffix("()")], by_name)
        elif kind == "names":
            body = names_table(entries)
        else:
            body = program(argument) if kind == "program" else main_of(argument)
        return f"{mark[0].partition(' -->')[0]} -->\n{body}<!-- end -->\n"

    return MARK.sub(fill, text)


def read_pages(folder: Path) -> dict[str, str]:
    """The text of all pages under a folder, by their path in it."""
    paths = sorted(folder.rglob("*.md"))
    return {path.relative_to(folder).as_posix(): path.read_text(encoding="utf-8") for path in paths}


def problems(pages: dict[str, str]) -> list[str]:
    """What breaks a law."""
    entries = entries_of(pages)
    places: dict[str, list[str]] = {}
    for entry in entries:
        for name in entry.names:
            places.setdefault(name, []).append(entry.page)
    public = set(public_names())
    broken = [f"{name} has no entry in docs/reference" for name in sorted(public - places.keys())]
    broken += [
        f"{name} is no public name, and has an entry in docs/{places[name][0]}"
        for name in sorted(places.keys() - public)
    ]
    broken += [
        f"{name} has several entries: {', '.join(at)}"
        for name, at in sorted(places.items())
        if len(at) > 1
    ]
    if broken:
        return broken
    for entry in entries:
        text = "" if isinstance(entry.value, dict) else text_of(entry, {})
        for parameter in entry.parameters:
            if not re.search(rf"`[^`\n]*\b{re.escape(parameter.name)}\b[^`\n]*`", text):
                broken.append(
                    f"{entry.name}: the docstring does not say what `{parameter.name}` is"
                )
    for name, draw in PICTURES.items():
        path = ROOT / "docs" / name
        if not path.exists() or path.read_text(encoding="utf-8") != draw():
            broken.append(f"docs/{name} is not what the code draws: make pages")
    for page, text in pages.items():
        if text.count("<!-- end -->") != len(MARK.findall(text)):
            broken.append(
                f"docs/{page}: a comment of tools/pages.py without its end, or the reverse"
            )
        elif filled(page, text, entries) != text:
            broken.append(f"docs/{page} is not what the code says: make pages")
    return broken


def main(arguments: list[str]) -> int:
    """Write the pages, or check them."""
    folder = ROOT / "docs"
    pages = read_pages(folder)
    if arguments != ["--check"]:
        entries = entries_of(pages)
        for page, text in pages.items():
            fresh = filled(page, text, entries)
            if fresh != text:
                (folder / page).write_text(fresh, encoding="utf-8")
                print(f"docs/{page}")
        for name, draw in PICTURES.items():
            (folder / name).write_text(draw(), encoding="utf-8")
        pages = read_pages(folder)
    broken = problems(pages)
    print("\n".join(broken) if broken else "pages: as the code says")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
