"""The house rules hold for this tree, and the script that checks them can fail."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tools.check_imports import main, violations

ROOT = Path(__file__).resolve().parent.parent


def test_this_tree_keeps_the_rules() -> None:
    assert [str(violation) for violation in violations(ROOT)] == []


def tree(root: Path, path: str, source: str) -> Path:
    """A repository with a few empty rooms and one file of interest."""
    package = root / "src" / "riverrun"
    for place in (path, "run.py", "engine/plan.py"):
        (package / place).parent.mkdir(parents=True, exist_ok=True)
        (package / place).touch()
    for folder in (package, *package.glob("**/")):
        (folder / "__init__.py").touch()
    (package / path).write_text(source)
    return root


LOOKED_AT = "the class of an operator is looked at"
REFUSED = [
    # file, source, words of the message
    ("progress/frontier.py", "import numpy", "numpy may be imported only in: algorithms/, state/"),
    ("progress/frontier.py", "from riverrun import run", "progress/ may not import riverrun.run"),
    ("progress/frontier.py", "import riverrun", "progress/ may not import riverrun;"),
    ("progress/frontier.py", "from ..engine import plan", "progress/ may not import riverrun."),
    ("progress/__init__.py", "from .. import run", "progress/ may not import riverrun.run"),
    ("algorithms/graph.py", "from riverrun.plan.plan import Plan", "algorithms/ may not import"),
    ("algorithms/graph.py", "from riverrun import engine", "algorithms/ may not import"),
    ("state/spine.py", "from numba import njit", "numba may be imported only in: */kernels/"),
    ("state/kernels_more.py", "import numba", "numba may be imported only in"),
    ("operators/kernels.py", "import numba", "numba may be imported only in"),
    ("state/spine.py", "import llvmlite.binding", "llvmlite may be imported only in"),
    ("state/log.py", "import obstore as obs", "obstore may be imported only in"),
    ("state/log.py", "import xxhash", "xxhash may be imported only in"),
    ("engine/worker.py", "def f():\n    import pyspark.sql", "pyspark may be imported only in"),
    ("spark/cluster.py", "import pyarrow.flight as fl", "pyarrow.flight may be imported only in"),
    ("spark/cluster.py", "from pyarrow import flight", "pyarrow.flight may be imported only in"),
    ("engine/worker.py", "import polars as pl", "polars may be imported only in"),
    ("engine/worker.py", "from rich.table import Table", "rich may be imported only in"),
    ("errors.py", "import pyarrow", "pyarrow may be imported only in"),
    ("run.py", "import requests", "requests has no home"),
    ("engine/utils.py", "", "the name 'utils' says nothing"),
    ("engine/_helpers/__init__.py", "", "the name '_helpers' says nothing"),
    ("plan/diff.py", "some = 1 if isinstance(node.operator, Join) else 2", LOOKED_AT),
    ("engine/run.py", "def f(operator):\n    return isinstance(operator, A | B)", LOOKED_AT),
    ("engine/run.py", "at, it = 0, node.operator\nassert isinstance(it, (A, B))", LOOKED_AT),
    ("run.py", "plain = type(node.operator) is Join", LOOKED_AT),
    ("run.py", "plain = node.operator.__class__.__name__", LOOKED_AT),
    ("run.py", "known = [n for n in nodes if issubclass(type(n.operator), Join)]", LOOKED_AT),
]


@pytest.mark.parametrize(("path", "source", "words"), REFUSED)
def test_a_broken_rule_is_refused(
    path: str, source: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tree(tmp_path, path, source))]) == 1
    printed = capsys.readouterr().out
    line = max(1, source.count("\n") + (not source.endswith("\n")) * bool(source))
    assert f"src/riverrun/{path}:{line}: {words}" in printed
    assert "Hint: " in printed
    assert "house rules: 1 broken" in printed


ACCEPTED = [
    ("progress/frontier.py", "import heapq\nfrom ..errors import X\nfrom .timestamp import Y"),
    ("progress/frontier.py", "from riverrun.errors import X\nfrom riverrun.progress import Y"),
    ("algorithms/graph.py", "import riverrun as rr\nfrom riverrun import Run"),
    ("state/kernels/sums.py", "import numpy as np\nfrom numba import njit"),
    ("state/kernels/sort.py", "import numba"),
    ("operators/shared/kernels/marks.py", "from numba import njit"),
    ("storage/store.py", "import obstore\nimport xxhash\nimport pyarrow.parquet"),
    ("runtime/codec/shapes.py", "import msgspec\nimport pyarrow.ipc"),
    ("operators/reshape.py", "import polars as pl\nfrom pyarrow import compute"),
    ("spark/sources.py", "from pyspark.sql import DataFrame"),
    ("engine/worker.py", "x = 1\n" * 3000),
    ("operators/join.py", "assert isinstance(self.node.operator, Join)"),
    ("engine/instance.py", "if node.operator.as_linear is None:\n    x = isinstance(actor, Tap)"),
    ("engine/instance.py", "whole = isinstance(node.operator.round_limit, int)"),
]


@pytest.mark.parametrize(("path", "source"), ACCEPTED)
def test_what_is_at_home_is_accepted(path: str, source: str, tmp_path: Path) -> None:
    assert violations(tree(tmp_path, path, source)) == []


def test_no_other_way_to_look_at_operators_is_left(tmp_path: Path) -> None:
    source = "match taker.operator:\n    case Join():\n        pass"
    [violation] = violations(tree(tmp_path, "engine/plan.py", source))
    assert (violation.line, violation.rule) == (1, LOOKED_AT)


def test_a_folder_without_init_is_refused(tmp_path: Path) -> None:
    package = tree(tmp_path, "state/spine.py", "") / "src" / "riverrun"
    (package / "state" / "batch.py").touch()
    (package / "state" / "__init__.py").unlink()
    [violation] = violations(tmp_path)
    assert "src/riverrun/state has no __init__.py" in violation.rule


def rooms(root: Path, sources: dict[str, str]) -> list[tuple[str, int, str]]:
    """The rules that a repository breaks, which has these files below ``src/riverrun``."""
    for path, source in sources.items():
        tree(root, path, source)
    return [(broken.path, broken.line, broken.rule) for broken in violations(root)]


CYCLES = [
    # imports at the top; one of them in a function; through a third module; of a package and of a module in it
    {"state/a.py": "from riverrun.state import b", "state/b.py": "import riverrun.state.a"},
    {
        "state/a.py": "from riverrun.state.b import x",
        "state/b.py": "x = 1\ndef f():\n    from .a import y",
    },
    {
        "state/a.py": "from .b import x",
        "state/b.py": "from .c import x",
        "state/c.py": "class C:\n    def f(self):\n        import riverrun.state.a as a",
    },
    {"state/__init__.py": "from .a import x", "state/a.py": "from riverrun.state import x"},
]


@pytest.mark.parametrize("sources", CYCLES)
def test_modules_that_import_each_other_are_refused(
    sources: dict[str, str], tmp_path: Path
) -> None:
    [(path, line, rule)] = rooms(tmp_path, sources)
    first, *_ = sorted(sources)
    modules = [f"riverrun.{path.removesuffix('.py').replace('/', '.')}" for path in sorted(sources)]
    way = " -> ".join([*modules, modules[0]]).replace(".__init__", "")
    assert (path, line, rule) == (f"src/riverrun/{first}", 1, f"modules import each other: {way}")


def test_every_group_of_modules_that_import_each_other_is_named_once(tmp_path: Path) -> None:
    sources = {"state/a.py": "from . import b, c", "state/b.py": "from . import a\nfrom . import c"}
    sources["state/c.py"] = "\nfrom . import d"
    sources["state/d.py"] = "from . import c"
    assert rooms(tmp_path, sources) == [
        (
            "src/riverrun/state/a.py",
            1,
            "modules import each other: riverrun.state.a -> riverrun.state.b -> riverrun.state.a",
        ),
        (
            "src/riverrun/state/c.py",
            2,
            "modules import each other: riverrun.state.c -> riverrun.state.d -> riverrun.state.c",
        ),
    ]


def test_imports_for_type_checkers_make_no_cycle(tmp_path: Path) -> None:
    types = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .b import x"
    sources = {"state/a.py": types, "state/b.py": "from .a import y"}
    assert rooms(tmp_path, sources) == []
    assert rooms(tmp_path, {"state/a.py": f"{types}\nelse:\n    from .b import x"}) != []


FOR_TYPES = """from __future__ import annotations
from typing import TYPE_CHECKING, cast
if TYPE_CHECKING:
    from .spine import Block, Spine
"""
USED_AT_RUN_TIME = [
    "x = Spine()",
    "def f(x: Block) -> bool:\n    return isinstance(x, Spine)",
    "def f(x: Spine = Spine()) -> None: ...",
    "class Longer(Spine): ...",
    "class Chain:\n    def f(self):\n        return [each for each in self.all if each is Spine]",
    "Either = Spine | None",
    "x = cast(Spine, 1)",
    "def f(Spine):\n    return Spine\ny = Spine",
]


@pytest.mark.parametrize("source", USED_AT_RUN_TIME)
def test_a_name_for_type_checkers_is_not_used_at_run_time(source: str, tmp_path: Path) -> None:
    [(path, line, rule)] = rooms(tmp_path, {"state/a.py": FOR_TYPES + source})
    rest = source.splitlines()
    assert (path, line) == ("src/riverrun/state/a.py", 4 + len(rest))
    assert rule == "Spine is imported for type checkers alone, and used at run time"


def test_annotations_and_names_of_its_own_may_be_those_for_type_checkers(tmp_path: Path) -> None:
    source = (
        "def f(x: Spine, *, y: list[Block]) -> Spine | None:\n    z: Block = y[0]\n    return z\n"
        "class Chain:\n    all: list[Spine]\n    Block = 1\n    Other = Block\n"
        "def g(Spine):\n    Block = Spine\n    return [Block for Spine in Block], lambda: Block\n"
        "x = cast('Spine', 1)\n"
    )
    assert rooms(tmp_path, {"state/a.py": FOR_TYPES + source}) == []
    both = f"{FOR_TYPES}else:\n    Spine = object\nx = Spine()\n"
    assert rooms(tmp_path, {"state/a.py": both}) == []


@pytest.mark.parametrize("other", ["Spine", "_Spine"])
def test_two_classes_of_one_name_are_refused(other: str, tmp_path: Path) -> None:
    sources = {
        "engine/worker.py": "class Spine: ...",
        "state/spine.py": f"x = 1\nclass {other}: ...",
    }
    rule = f"the class {other} has the name of a class at src/riverrun/engine/worker.py:1"
    assert rooms(tmp_path, sources) == [("src/riverrun/state/spine.py", 2, rule)]


def test_a_folder_has_room_for_20_modules(tmp_path: Path) -> None:
    tree(tmp_path, "run.py", "")
    for folder in ("src/riverrun/state", "tests/state", "bench"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "__init__.py").touch()
        for number in range(20):
            (tmp_path / folder / f"test_{number}.py").touch()
    assert violations(tmp_path) == []
    for folder in ("src/riverrun/state", "tests/state", "bench"):
        (tmp_path / folder / "test_20.py").touch()
    crowded = [(broken.path, broken.rule) for broken in violations(tmp_path)]
    rule = "21 modules beside each other; at most 20 have room in a folder"
    assert crowded == [("src/riverrun/state", rule), ("tests/state", rule)]


def test_a_wrong_directory_is_not_a_clean_one(tmp_path: Path) -> None:
    assert main([str(tmp_path)]) == 2


def locked(file: str) -> dict[str, str]:
    """Name -> version of a lock; anything but `name==version` and comments is refused."""
    pins = {}
    for line in (ROOT / file).read_text().splitlines():
        if line and not line.startswith("#"):
            match = re.fullmatch(r"([A-Za-z0-9._-]+)==([A-Za-z0-9.]+)", line)
            assert match, f"{file}: not a plain pin: {line!r}"
            pins[canonicalize_name(match[1])] = match[2]
    return pins


def test_the_locks_pin_what_the_project_asks_for() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    main_lock, bench_lock = locked("requirements.lock"), locked("requirements-bench.lock")
    docs_lock = locked("requirements-docs.lock")
    for asked, pins in (
        (project["dependencies"] + extras["dev"], main_lock),
        (extras["bench"], bench_lock),
        (extras["docs"], docs_lock),
    ):
        for requirement in map(Requirement, asked):
            assert requirement.specifier.contains(pins[canonicalize_name(requirement.name)])
    assert not main_lock.keys() & (bench_lock.keys() | docs_lock.keys())
