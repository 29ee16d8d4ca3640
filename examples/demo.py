"""`make demo`: a ledger of a million accounts, changed epoch by epoch and read as of any of them.

Nothing here is prepared: the ledger is generated, changed at random, and every answer is compared with recomputing it
from the full history.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from rich.console import Console
from rich.table import Table

from riverrun import TimeViolation
from riverrun.progress import Antichain
from riverrun.state import Checkpoints, Schema, Spine

ACCOUNTS = 1_000_000
EPOCHS = 20
MOVED = 10_000  # accounts whose balance changes in an epoch

T = TypeVar("T")
console = Console()


def timed(run: Callable[[], T]) -> tuple[T, float]:
    start = time.perf_counter()
    result = run()
    return result, time.perf_counter() - start


def main() -> None:
    console.print("[bold]Riverrun[/]: a state that keeps its versions\n")
    rng = np.random.default_rng(7)
    accounts = np.arange(ACCOUNTS)
    history = [rng.integers(0, 10_000, ACCOUNTS)]  # every balance at every epoch: the slow way

    with console.status("compiling kernels (once for a checkout, about half a minute)"):
        _, warm = timed(warm_up)

    ledger = Spine("ledger", Schema.of({"account": pa.int64()}, {"balance": pa.int64()}))
    table = Table("step", "rows", "time", "rate")
    table.columns[1].justify = table.columns[2].justify = "right"
    first = pa.table({"account": accounts, "balance": history[0]})
    _, taken = timed(lambda: ledger.insert(first, time=(0,)))
    table.add_row("load epoch 0", f"{ACCOUNTS:,}", milliseconds(taken), rate(ACCOUNTS, taken))

    spent = 0.0
    for epoch in range(1, EPOCHS):
        moved = rng.choice(ACCOUNTS, MOVED, replace=False)
        old, new = history[-1][moved], rng.integers(0, 10_000, MOVED)
        history.append(history[-1].copy())
        history[-1][moved] = new
        # A new balance is two changes: the old one goes (-1), the new one comes (+1).
        changes = pa.table({"account": np.r_[moved, moved], "balance": np.r_[old, new]})
        diffs = np.repeat([-1, 1], MOVED)
        _, taken = timed(lambda c=changes, d=diffs, e=epoch: ledger.insert(c, (e,), d))  # type: ignore[misc]
        spent += taken
    changed = 2 * MOVED * (EPOCHS - 1)
    table.add_row(
        f"change it in {EPOCHS - 1} epochs",
        f"{changed:,}",
        milliseconds(spent),
        rate(changed, spent),
    )

    asked = rng.choice(ACCOUNTS, 100_000, replace=False)
    for epoch in (0, EPOCHS // 2, EPOCHS - 1):
        found, taken = timed(lambda e=epoch: balances(ledger, asked, e))  # type: ignore[misc]
        assert np.array_equal(found, history[epoch][asked])
        table.add_row(
            f"look up as of epoch {epoch}", "100,000", milliseconds(taken), rate(100_000, taken)
        )

    total, taken = timed(lambda: total_as_of(ledger, EPOCHS // 2))
    assert total == history[EPOCHS // 2].sum()
    table.add_row(
        f"add up all as of {EPOCHS // 2}", f"{ACCOUNTS:,}", milliseconds(taken), "= recomputed"
    )

    before = len(ledger)
    ledger.advance_since(Antichain([(EPOCHS - 1,)]))
    _, taken = timed(ledger.compact)
    table.add_row(
        "forget older epochs", f"{len(ledger):,}", milliseconds(taken), f"from {before:,}"
    )

    with tempfile.TemporaryDirectory() as place:
        checkpoints = Checkpoints(place)
        view = ledger.view()
        size = sum(batch.nbytes for batch in view.batches)
        _, taken = timed(lambda: checkpoints.save({"ledger": view}))
        table.add_row(
            "checkpoint", f"{len(ledger):,}", milliseconds(taken), f"{size / taken / 1e6:,.0f} MB/s"
        )
        restored, taken = timed(lambda: Spine.from_view(Checkpoints(place).restore("ledger")))
        table.add_row(
            "restore", f"{len(restored):,}", milliseconds(taken), f"{size / taken / 1e6:,.0f} MB/s"
        )
        assert np.array_equal(balances(restored, asked, EPOCHS - 1), history[-1][asked])

    console.print(table)
    console.print(
        f"\nEvery answer equals recomputation from the full history.\nKernels took {warm:.1f} s to load."
    )
    try:
        ledger.lookup(asked, as_of=(3,))
    except TimeViolation as refused:
        console.print("\nAsked for an epoch that was forgotten, it says so:")
        console.print(str(refused), style="dim", markup=False, highlight=False)


def warm_up() -> None:
    """Use every kind of operation once on a few rows, so that timings show work and not compilation."""
    schema = Schema.of({"k": pa.int64()}, {"v": pa.int64()})
    spine = Spine("warm", schema)
    for epoch in range(20):
        keys = np.arange(1000) + epoch
        spine.insert(pa.table({"k": keys, "v": keys}), (epoch,))
    balances_of = spine.lookup(np.arange(100), (3,))
    balances_of.column("v")
    spine.to_batch((3,))
    spine.advance_since(Antichain([(19,)]))
    spine.compact()
    with tempfile.TemporaryDirectory() as place:
        Checkpoints(place).save({"warm": spine.view()})
        Checkpoints(place).restore("warm")


def balances(ledger: Spine, accounts: np.ndarray[Any, Any], epoch: int) -> np.ndarray[Any, Any]:
    found = ledger.lookup(accounts, as_of=(epoch,))
    return found.column("balance").to_numpy()  # type: ignore[no-any-return]


def total_as_of(ledger: Spine, epoch: int) -> int:
    pieces = ledger.scan(as_of=(epoch,))
    return int(sum((piece.column("balance").to_numpy() * piece.counts).sum() for piece in pieces))


def milliseconds(taken: float) -> str:
    return f"{taken * 1e3:,.1f} ms"


def rate(rows: int, taken: float) -> str:
    return f"{rows / taken / 1e6:,.1f} M/s"


if __name__ == "__main__":
    main()
