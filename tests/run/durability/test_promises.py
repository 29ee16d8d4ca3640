"""Law: what a run is promised at its start is durable before its first epoch is, and later runs keep it.

A life here may end at any moment: after it was opened, after an epoch, after a checkpoint; by `close`, or as a process
does that is killed. What later lives rely on must not depend on that.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import riverrun as rr
from riverrun.storage.log import Log
from riverrun.storage.store import open_storage
from tests.soaking import draws, first_seed


def words(least: int = 1) -> rr.Dataflow:
    flow = rr.Dataflow("words")
    given = flow.input("words", {"word": pl.String})
    long = given.filter(pl.col("word").str.len_chars() >= least)
    flow.output("counts", long.group_by("word").count())
    return flow


def commit(run: Any, word: str) -> None:
    run.insert("words", [(word,)])
    run.commit()


def is_whole(path: Path) -> bool:
    positions = Log(open_storage(path)).positions()
    return positions == list(range(len(positions)))


def abandon(run: Any) -> None:
    """What is left when a process is killed: nothing is closed, the lease is as it was."""
    run._cluster._lease.stop()


def test_the_log_is_kept_though_the_first_run_ended_before_its_first_checkpoint(
    tmp_path: Path,
) -> None:
    with words().run(checkpoint=tmp_path, every=None, keep_inputs=True) as run:
        commit(run, "a")
    with words().run(checkpoint=tmp_path, every=None) as run:  # nothing is said: as it was
        for word in ("sea", "sky"):
            commit(run, word)
            run.checkpoint()
            run.checkpoint()
        commit(run, "sea")
        run.checkpoint()
    assert is_whole(tmp_path)
    with words(3).run(checkpoint=tmp_path, rebuild=True) as run:
        assert sorted(run.read("counts").rows()) == [("sea", 2), ("sky", 1)]


@pytest.mark.parametrize("epochs", [0, 1])
def test_a_promise_is_taken_back_by_who_says_so(tmp_path: Path, epochs: int) -> None:
    with words().run(checkpoint=tmp_path, every=None, keep_inputs=True) as run:
        commit(run, "a")
        run.checkpoint()
    with words().run(checkpoint=tmp_path, every=None, keep_inputs=False) as run:
        for _ in range(epochs):
            commit(run, "b")
    with words().run(checkpoint=tmp_path, every=None, retain=1) as run:
        commit(run, "sea")
        run.checkpoint()
        commit(run, "sky")
        run.checkpoint()
    assert not is_whole(tmp_path)


def test_promises_in_every_order_of_lives(tmp_path: Path) -> None:
    """Lives that are promised the log, or not, or nothing, and that end at any point: the last word counts."""
    first = first_seed(7)
    for seed in range(first, first + draws(12, sample=40, soak=120)):
        source = random.Random(seed)
        path = tmp_path / str(seed)
        promised = False  # by the last who said something
        whole = True  # whether it was promised by all so far
        story = []
        lives = source.randint(2, 6)
        for life in range(lives):
            asked = source.choice((None, None, True, False))
            promised = promised if asked is None else asked
            whole = whole and promised
            steps = [
                source.choice(("commit", "commit", "checkpoint"))
                for _ in range(source.randint(0, 4))
            ]
            end = source.choice((abandon, lambda run: run.close()))
            story.append((asked, steps))
            run = words().run(
                checkpoint=path, every=None, keep_inputs=asked, retain=source.choice((1, 2)),
                workers=source.choice((1, 2)),
            )  # fmt: skip
            assert (run._cluster._coordinator.opening.whole_from is not None) == promised, (
                seed,
                story,
            )
            for number, step in enumerate(steps):
                if step == "commit":
                    commit(run, f"{life} {number}")
                else:
                    run.checkpoint()
            end(run)
        if whole:
            assert is_whole(path), (seed, story)
            with words(3).run(checkpoint=path, rebuild=True) as run:
                expected = [
                    f"{life} {number}"
                    for life, (_, steps) in enumerate(story)
                    for number, step in enumerate(steps)
                    if step == "commit"
                ]
                assert run.completed == len(expected)
                if expected:
                    assert [row[0] for row in run.read("counts").rows()] == sorted(expected)


def test_the_number_of_a_refused_epoch_that_is_never_given_again_stays_so(tmp_path: Path) -> None:
    """Clients that do not wait know epochs by their numbers: workers elsewhere promise that."""
    from tests.chaos.besieged import ProcessRun
    from tests.runtime.launchers import Threads

    def check(row: Any) -> Any:
        if row["word"] == "poison":
            raise ValueError("poison")
        return [row]

    flow = rr.Dataflow("words")
    flow.output(
        "rows", flow.input("words", {"word": pl.String}).flat_map(check, {"word": pl.String})
    )
    with ProcessRun(flow.plan, Threads, checkpoint=tmp_path, every=None, workers=1) as run:
        commit(run, "sea")
        with pytest.raises(rr.OperatorFailed):
            commit(run, "poison")
        assert run._cluster.epoch == 2
    with flow.run(checkpoint=tmp_path, every=None) as run:
        assert run._cluster.epoch == 2
        commit(run, "sky")
        assert run.epoch == 2
        assert run.read("rows").rows() == [("sea",), ("sky",)]
