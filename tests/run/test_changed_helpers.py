"""Law: a helper that changes rebuilds the states that depend on it, and no others; what was built is as from scratch.

The helper is in another module than the program, which is imported anew for each run, as it is when a process starts.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import riverrun as rr
from tests.plan.test_identity import modules

APP = """
import polars as pl
import riverrun as rr
from cleaning import normalise
import rules

STEP = 1


def score(row):
    return [{"item": normalise(row["item"]), "points": row["points"]}]


def weigh(rows):
    return rows["points"].sum() * rules.WEIGHT + STEP


class Count(rr.Vertex):
    deterministic = True

    def on_recv(self, port, rows, time):
        yield rows.select("item", n=rules.size(rows))


def program():
    flow = rr.Dataflow("shop")
    items = flow.input("items", {"item": pl.String, "points": pl.Int64})
    flow.output("rows", items)  # keeps the rows
    scored = items.flat_map(score, {"item": pl.String, "points": pl.Int64})
    flow.output("scores", scored.group_by("item").agg(points=rr.sum("points")))
    flow.output("weights", items.group_by("item").apply(weigh, {"weight": pl.Int64}))
    flow.output("plain", items.group_by("item").agg(points=rr.sum("points")))
    return flow
"""

CLEANING = """
import functools


def strip(text):
    return text.strip()


@functools.lru_cache
def normalise(text):
    return strip(text).lower()


def unused(text):
    return text
"""

RULES = """
WEIGHT = 2


def size(rows):
    return len(rows)
"""

BEFORE = {"app": APP, "cleaning": CLEANING, "rules": RULES}
ROWS = [(" Tea", 1), ("tea", 2), ("Ink ", 4)]
OUTPUTS = ("rows", "scores", "weights", "plain")


def read(run: Any) -> dict[str, Any]:
    return {name: sorted(run.read(name).rows()) for name in OUTPUTS}


def written(folder: Path) -> None:
    with modules(folder / "before", BEFORE) as find:
        flow = find("app:program")()
        with flow.run(checkpoint=folder / "kept", every=None) as run:
            run.insert("items", ROWS)
            run.commit()
            run.checkpoint()


def from_scratch(folder: Path, files: dict[str, str]) -> dict[str, Any]:
    with modules(folder / "scratch", files) as find, find("app:program")().run() as run:
        run.insert("items", ROWS)
        run.commit()
        return read(run)


CHANGES = {
    "a helper of a helper": (
        "cleaning", "text.strip()", "text.lstrip()", {"scores"},
        "function score in app.py calls strip in cleaning.py, by way of normalise, which has changed",
    ),
    "a helper": (
        "cleaning", ".lower()", ".upper()", {"scores"},
        "function score in app.py calls normalise in cleaning.py, which has changed",
    ),
    "a constant of another module": (
        "rules", "WEIGHT = 2", "WEIGHT = 3", {"weights"},
        "function weigh in app.py reads rules.WEIGHT, which has changed",
    ),
    "a constant": (
        "app", "STEP = 1", "STEP = 5", {"weights"},
        "function weigh in app.py reads STEP, which has changed",
    ),
    "the function itself": (
        "app", ".sum()", ".max()", {"weights"}, "function weigh in app.py has changed",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", CHANGES)
@pytest.mark.parametrize("workers", [1, 2])
def test_a_changed_helper_rebuilds_what_depends_on_it(
    what: str, workers: int, tmp_path: Path
) -> None:
    module, old, new, outputs, reason = CHANGES[what]
    written(tmp_path)
    assert BEFORE[module].count(old) == 1
    after = {**BEFORE, module: BEFORE[module].replace(old, new)}
    expected = from_scratch(tmp_path, after)
    with modules(tmp_path / "after", after) as find:
        with pytest.raises(rr.CheckpointError) as caught:
            find("app:program")().run(checkpoint=tmp_path / "kept")
        assert caught.value.code == "checkpoint.incompatible"
        assert f"\n    as {reason}\n" in caught.value.message
        assert {name.partition(":")[0] for name in caught.value.fields["keep"]} >= {"rows"}
        flow = find("app:program")()
        rebuilt = set(caught.value.fields["rebuild"])
        behind = {
            node.name.removesuffix(":output")
            for node in flow.plan.nodes
            if node.name.endswith(":output") and feeds(flow.plan, node) & rebuilt
        }
        assert behind == outputs  # and what does not depend on it goes on
        with flow.run(checkpoint=tmp_path / "kept", rebuild=True, workers=workers) as run:
            assert read(run) == expected
            run.insert("items", [(" Ink", 8)])
            run.commit()
            going_on = read(run)
    with modules(tmp_path / "again", after) as find, find("app:program")().run() as run:
        run.insert("items", [*ROWS, (" Ink", 8)])
        run.commit()
        assert going_on == read(run)


def feeds(plan: Any, node: Any) -> set[str]:
    """The names of the states that lead to a node."""
    names, waiting = set(), [node]
    while waiting:
        each = waiting.pop()
        names |= {f"{each.name}{suffix}" for suffix in each.operator.suffixes}
        waiting += [plan.nodes[port.node] for port in each.inputs]
    return names


@pytest.mark.parametrize(
    ("module", "old", "new"),
    [
        ("cleaning", "return text\n", "return text * 2\n"),  # nobody calls it
        ("cleaning", "def strip(text):", "def strip(text):  # both ends\n    '''Strips.'''\n"),
        ("rules", "WEIGHT = 2", "# the weight\nWEIGHT = 1 + 1\nOTHER = 3"),
        ("app", "STEP = 1\n", "STEP = 1\n\n\ndef more(row):\n    return []\n"),
    ],
)
def test_what_computes_the_same_goes_on(module: str, old: str, new: str, tmp_path: Path) -> None:
    written(tmp_path)
    assert BEFORE[module].count(old) == 1
    after = {**BEFORE, module: BEFORE[module].replace(old, new)}
    expected = from_scratch(tmp_path, BEFORE)
    with modules(tmp_path / "after", after) as find:
        flow = find("app:program")()
        with flow.run(checkpoint=tmp_path / "kept") as run:
            assert read(run) == expected


def test_a_program_that_was_moved_goes_on(tmp_path: Path) -> None:
    written(tmp_path)
    moved = {
        "shop.app": APP.replace("from cleaning", "from shop.text").replace(
            "import rules", "from shop import rules"
        ),
        "shop.text": CLEANING,
        "shop.rules": RULES,
    }
    with modules(tmp_path / "after", moved) as find:
        flow = find("shop.app:program")()
        with flow.run(checkpoint=tmp_path / "kept") as run:
            assert read(run)["scores"] == [("ink", 4), ("tea", 3)]


def test_a_vertex_counts_with_what_it_calls(tmp_path: Path) -> None:
    text = APP.replace(
        "    return flow\n",
        '    flow.output("sizes", flow.vertex(Count, {"rows": items}, {"item": pl.String, "n": pl.Int64}))\n'
        "    return flow\n",
    )
    words = []
    for size in ("len(rows)", "2 * len(rows)"):
        files = {**BEFORE, "app": text, "rules": RULES.replace("len(rows)", size)}
        with modules(tmp_path / f"{len(words)}", files) as find:
            plan = find("app:program")().plan
            words.append({name: said for name, said in plan.fingerprint.items() if "Count" in said})
    one, other = words
    assert one.keys() == other.keys()
    assert one != other


SCRIPT = """
import sys
import app

with app.program().run(checkpoint=sys.argv[1], every=None) as run:
    if sys.argv[2] == "1":
        run.insert("items", [("tea", 1)])
        run.commit()
        run.checkpoint()
    print(run.completed, run.read("scores").rows())
"""


def test_another_process_goes_on(tmp_path: Path) -> None:
    for module, text in {**BEFORE, "main": SCRIPT}.items():
        (tmp_path / f"{module}.py").write_text(text)
    said = [
        subprocess.run(
            [sys.executable, str(tmp_path / "main.py"), str(tmp_path / "kept"), seed],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert said == ["1 [('tea', 1)]\n"] * 2


def test_a_checkpoint_that_does_not_say_what_functions_were_is_refused_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from riverrun.runtime import cluster

    monkeypatch.setattr(cluster, "_about", lambda durability: durability.about)
    written(tmp_path)
    after = {**BEFORE, "rules": RULES.replace("WEIGHT = 2", "WEIGHT = 3")}
    with modules(tmp_path / "after", after) as find:
        flow = find("app:program")()
        with pytest.raises(rr.CheckpointError, match="changed:") as caught:
            flow.run(checkpoint=tmp_path / "kept")
    assert "which has changed" not in caught.value.message


def test_what_too_much_counts_for_is_refused_when_the_program_is_run() -> None:
    everything = [object() for _ in range(300_000)]
    flow = rr.Dataflow("large")
    rows = flow.input("rows", {"n": pl.Int64})
    flow.output("out", rows.flat_map(lambda row: [row] * len(everything), {"n": pl.Int64}))
    with pytest.raises(rr.PlanError, match="closure everything") as caught:
        flow.run()
    assert caught.value.code == "plan.identity"
