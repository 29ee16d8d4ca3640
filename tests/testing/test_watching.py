"""What watches a run raises when the engine, or an operator of its own kind, breaks a promise."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from riverrun.errors import OperatorFailed
from riverrun.progress import Antichain
from riverrun.state.changes import Changes
from riverrun.testing.watching import Strike, Watch, _Eye

NODE = SimpleNamespace(name="node", line="line", operator=SimpleNamespace(describe=lambda: "it"))


def rows(*time: int) -> Changes:
    return Changes.of([pa.array([1])], time)


def actor(waits: bool = True, **handlers: Any) -> Any:
    nothing = lambda *arguments: None  # noqa: E731
    context = SimpleNamespace(push=nothing, request=nothing)
    made = SimpleNamespace(node=NODE, context=context, waits=waits)
    for verb in ("receive", "run", "boundary"):
        setattr(made, verb, handlers.get(verb, nothing))
    return made


def watching(some: Any, patience: int = 1_000) -> Any:
    _Eye(some, Watch(patience))
    return some


UPPER = Antichain([(9, 9)])


def test_nothing_arrives_at_or_before_a_time_that_is_complete() -> None:
    some = watching(actor())
    some.run((1, 2), UPPER)
    some.receive(0, rows(1, 3))
    some.receive(0, rows(2, 0))
    with pytest.raises(OperatorFailed, match=r"receives rows at \(1, 1\), after it was told"):
        some.receive(0, rows(1, 1))
    patient = watching(actor(waits=False))
    patient.run((1, 2), UPPER)
    patient.receive(0, rows(1, 1))


def test_every_request_of_an_epoch_is_answered_before_it_is_complete() -> None:
    some = watching(actor(receive=lambda port, changes: some.context.request((0,))))
    some.receive(0, rows(0))
    with pytest.raises(OperatorFailed, match=r"asked to be run at \(0,\), and epoch 0 is complete"):
        some.boundary(1)
    some.run((0,), UPPER)
    some.boundary(1)


def test_nothing_is_sent_while_nothing_is_handled() -> None:
    some = watching(actor(boundary=lambda epoch: some.context.push(rows(5), 0)))
    some.run((0,), UPPER)  # from here on what it sends is looked at
    with pytest.raises(OperatorFailed, match="while it handles nothing"):
        some.boundary(1)


def test_patience_ends() -> None:
    some = watching(actor(), patience=40)
    some.run((0,), UPPER)
    some.run((0,), UPPER)
    with pytest.raises(OperatorFailed, match=r"run 2 times at \(0,\) and asks for more"):
        some.run((0,), UPPER)
    other = watching(actor(), patience=40)
    for number in range(40):
        other.run((0, number), UPPER)
    with pytest.raises(OperatorFailed, match="has taken 41 turns"):
        other.run((0, 40), UPPER)


def test_a_strike_comes_once_and_at_its_turn() -> None:
    watch = Watch()
    some = actor()
    _Eye(some, watch)
    watch.strike(2)
    some.receive(0, rows(0))
    with pytest.raises(Strike):
        some.receive(0, rows(0))
    some.receive(0, rows(0))
    watch.strike(1)
    assert watch.calm()
    assert not watch.calm()
    some.receive(0, rows(0))
