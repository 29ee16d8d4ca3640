"""Spellings of before: every one is refused with an error that names the spelling of today.

How names were at 7acd6ff, before there were namespaces: ``git show 7acd6ff:src/riverrun/__init__.py``.
"""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import polars as pl
import pytest

import riverrun as rr

NAMES = {
    **{
        name: f"rr.rules.{name}"
        for name in (
            "add", "append", "distinct", "drop_before", "fold", "keep_latest", "latest", "replace", "total", "within",
        )
    },
    "update_rule": "rr.rules.update(function)",
    "fetch_rule": "rr.rules.fetch(function, schema)",
    "compaction": "rr.rules.compact(function)",
}  # fmt: skip
"""Names of the package, and the hint for each."""

ALGORITHMS = {
    **{
        name: f"rr.graphs.{name}"
        for name in (
            "bfs", "clustering_coefficient", "components", "cycles", "k_core", "label_propagation", "nodes_of",
            "pagerank", "shortest_paths", "strongly_connected_components", "triangle_counts", "triangles", "undirected",
        )
    },
    "Model": "rr.learning.Model",
    "ftrl": "rr.learning.ftrl",
}  # fmt: skip
"""Names of riverrun.algorithms, and the hint for each."""

SPACES = ("graphs", "learning", "options", "rules", "testing")
PLAIN = {"insert", "delete", "upsert"}  # names of rr.testing that are meant of a run as a rule


def resolve(hint: str) -> Any:
    thing: Any = rr
    for part in hint.partition("(")[0].removeprefix("rr.").split("."):
        thing = getattr(thing, part)
    return thing


@pytest.mark.parametrize(
    ("module", "name", "hint"),
    [
        *(("riverrun", name, hint) for name, hint in (NAMES | ALGORITHMS).items()),
        *(("riverrun.algorithms", name, hint) for name, hint in ALGORITHMS.items()),
    ],
)
def test_a_name_that_moved_says_where(module: str, name: str, hint: str) -> None:
    package = importlib.import_module(module)
    assert resolve(hint) is not None
    assert not hasattr(package, name)
    with pytest.raises(AttributeError, match=re.escape(f"\nHint: {hint}")) as missing:
        getattr(package, name)
    assert missing.value.name == name
    with pytest.raises(ImportError, match=re.escape(f"\nHint: {hint}")) as refused:
        exec(f"from {module} import {name}")
    assert refused.value.name == module


@pytest.mark.parametrize("space", SPACES)
def test_a_name_of_a_namespace_says_which(space: str) -> None:
    names = importlib.import_module(f"riverrun.{space}").__all__
    assert sorted(rr._NAMES[space]) == sorted(names)
    for name in set(names) - set(rr.__all__):
        with pytest.raises(AttributeError, match=re.escape(f"rr.{space}.{name}")):
            getattr(rr, name)
        if name not in PLAIN:
            assert resolve(f"rr.{space}.{name}") is getattr(getattr(rr, space), name)
    assert set(rr.testing.__all__) >= PLAIN


def test_every_hint_is_seen_by_an_import_too() -> None:
    for name in set(rr._ELSEWHERE) - {"algorithms"}:
        with pytest.raises(ImportError, match="\nHint: "):
            exec(f"from riverrun import {name}")
    with pytest.raises(ImportError, match="cannot import name 'nothing'"):
        exec("from riverrun import nothing")


FRESH = {
    "import riverrun as rr; print(rr.testing.once)": "<function once",
    "import riverrun as rr; print(hasattr(rr, 'algorithms'))": "False",
    "from riverrun import algorithms; print(algorithms.__name__)": "riverrun.algorithms",
    "from riverrun import graphs, testing, errors; print(errors.PlanError)": "<class",
    "import riverrun as rr, sys; hasattr(rr, 'zzz'); hasattr(rr, 'bfs'); print('polars' in sys.modules)": "False",
    "import riverrun.algorithms as a; print(hasattr(a, '__all__'), hasattr(a, 'components'))": "False False",
}


@pytest.mark.parametrize("program", FRESH)
def test_in_a_fresh_process(program: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith(FRESH[program])


# -- arguments and methods


def flow() -> rr.Dataflow:
    flow = rr.Dataflow("old")
    flow.output("rows", flow.input("rows", {"k": pl.String, "t": pl.Int64}))
    return flow


def fetch(**options: Any) -> Any:
    old = flow()
    state = old.state("other", key={"k": pl.String}, value={"v": pl.Int64})
    return old.inputs["rows"].fetch(state, at="t", **options)


def read(**options: Any) -> Any:
    with flow().run() as run:
        run.commit()
        return run.read("rows", **options)


CALLS: dict[str, tuple[Callable[[], Any], type[Exception], str, str]] = {
    "run(patience=)": (
        lambda: flow().run(patience=5),
        rr.PlanError,
        "patience=5",
        "storage_timeout=",
    ),  # type: ignore[call-arg]
    "run.read(as_of=)": (lambda: read(as_of=0), TypeError, "as_of=", "run.read(name, epoch=...)"),
    "read_checkpoint(as_of=)": (
        lambda: rr.read_checkpoint("path", "rows", as_of=0),  # type: ignore[call-arg]
        TypeError,
        "as_of=",
        "rr.read_checkpoint(path, name, epoch=...)",
    ),
    "fetch(read=)": (lambda: fetch(read="now"), TypeError, "read=", "fetch_uncommitted(...)"),
    "fetch(wait=)": (
        lambda: fetch(wait="t"),
        TypeError,
        "wait=",
        "fetch_uncommitted(..., wait=...)",
    ),
    "as_state": (
        lambda: flow().inputs["rows"].as_state("k"),  # type: ignore[attr-defined]
        AttributeError,
        "as_state",
        "stream.lookup(collection, on=...)",
    ),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_call_that_changed_says_how(call: str) -> None:
    program, kind, said, hint = CALLS[call]
    with pytest.raises(kind) as refused:
        program()
    message, _, advice = str(refused.value).partition("Hint: ")
    assert said in message
    assert hint in advice
