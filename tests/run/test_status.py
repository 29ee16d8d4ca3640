"""What a run says of itself is what docs/running.md says that it does."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import polars as pl

import riverrun as rr
from riverrun.engine.events import KINDS

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "running.md").read_text()


def rows_of(header: str) -> dict[str, list[str]]:
    """The rows of the table with this header: what stands in backquotes in the first cell, and in all others."""
    _, _, table = PAGE.partition(f"| {header} |")
    rows = {}
    for line in table.partition("\n\n")[0].splitlines()[2:]:
        _, keys, *cells = line.split("|")
        named = re.findall(r"`([^`]+)`", " ".join(cells))
        rows.update(dict.fromkeys(re.findall(r"`([^`]+)`", keys), named))
    return rows


def status_of(tmp_path: Path, **options: Any) -> dict[str, Any]:
    flow = rr.Dataflow("told")
    words = flow.input("words", {"word": pl.String})
    flow.output("counts", words.group_by("word").count())
    with flow.run(checkpoint=tmp_path, **options) as run:
        run.for_each_epoch("counts", lambda changes, epoch: None)
        run.insert("words", [("sea",)])
        run.commit()
        run.checkpoint()
        return run.status()


def test_the_page_has_each_key_of_the_status(tmp_path: Path) -> None:
    here = status_of(tmp_path / "here")
    processes = status_of(tmp_path / "processes", on="processes", workers=1)
    rows = rows_of("key | value")
    assert set(rows) == set(processes)
    far = list(rows)[list(rows).index("address") :]
    assert set(rows) - set(far) == set(here)
    for key in ("checkpoint", "log", "recovery", "commit"):
        assert set(processes[key]) == set(rows[key]) & set(processes[key])
        assert set(rows[key]) <= {*processes[key], "commit", "Commit.wait"}
    assert set(rows["processes"]) == set(processes["processes"][0])
    assert set(rows["sinks"]) == set(processes["sinks"][0])
    assert {"rows", "bytes"} <= set(rows["states"])


def test_the_page_has_each_kind_of_event() -> None:
    assert sorted(rows_of("kind | what has happened | fields")) == sorted(KINDS)
