"""Ordinals: words of text, binary and decimals have the order of their values, also when labels run out."""

from __future__ import annotations

import random
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from riverrun.operators.iterations import ordinals as module
from riverrun.operators.iterations.ordinals import Moves, Ordinals, has_ordinals
from riverrun.operators.iterations.spreading import Message, Spreading
from riverrun.state.kernels.iterations.messages import NULL, VALUE, WORST
from tests.operators.iterations.test_spreading import Drawn
from tests.soaking import seeds

LETTERS = "ab\0~\u00e9\uffff\U0001f600"


def text(draw: random.Random) -> str:
    return "".join(draw.choices(LETTERS, k=draw.randint(0, 4)))


DRAWS: dict[str, tuple[pa.DataType, Callable[[random.Random], Any]]] = {
    "text": (pa.large_string(), text),
    "binary": (pa.large_binary(), lambda draw: text(draw).encode()),
    "digests": (pa.binary(2), lambda draw: draw.randbytes(2)),
    "decimals": (pa.decimal128(12, 3), lambda draw: Decimal(draw.randint(-999, 999)).scaleb(-3)),
}


@pytest.fixture(params=["room", "crowded", "few"])
def room(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Much room for labels; hardly any; or some, and values that are merged often."""
    if request.param == "crowded":
        monkeypatch.setattr(module, "_STEP", 4)
        monkeypatch.setattr(module, "_END", 1 << 14)
    if request.param == "few":
        monkeypatch.setattr(module, "_FEW", 3)
        monkeypatch.setattr(module, "_BY_HAND", 1)
    return request.param


@pytest.mark.parametrize("name", DRAWS)
@pytest.mark.parametrize("seed", seeds(6, soak=200))
@pytest.mark.parametrize("greatest", [False, True])
def test_words_have_the_order_of_values(name: str, seed: int, greatest: bool, room: str) -> None:
    draw = random.Random(seed)
    kind, make = DRAWS[name]
    kept: dict[Any, int] = {}
    held = np.zeros(0, np.int64)
    moves_seen = 0

    def moved(moves: Moves) -> None:
        nonlocal moves_seen
        moves_seen += 1
        moves(held)

    ordinals = Ordinals(kind, greatest=greatest, moved=moved)
    for _ in range(40):
        count = draw.choice([1, 1, 2, 9, 60])
        given = [None if draw.random() < 0.1 else make(draw) for _ in range(count)]
        held = np.array([*kept.values(), WORST], np.int64)  # what somebody keeps, and no word
        words, ranks = ordinals.read(pa.array(given, kind))
        assert held[-1] == WORST
        kept = dict(zip(kept, held.tolist(), strict=False))
        for value, word, rank in zip(given, words.tolist(), ranks.tolist(), strict=True):
            assert rank == (NULL if value is None else VALUE)
            assert (word == WORST) == (value is None)
            if value is not None:
                assert kept.setdefault(value, word) == word
        in_order = sorted(kept, reverse=greatest)
        assert [kept[value] for value in in_order] == sorted(kept.values())
        assert len({*kept.values()}) == len(kept)
        assert ordinals.write(words, ranks).to_pylist() == given
        every = np.array(list(kept.values()), np.int64)
        assert ordinals.write(every, np.zeros(len(every), np.int8)).to_pylist() == list(kept)
    if room == "few":
        assert moves_seen


def test_values_between_the_same_two_come_one_by_one() -> None:
    """The pattern that uses up labels soonest: names that count up, in front of another name."""
    moves_seen = []
    ordinals = Ordinals(pa.large_string(), greatest=False, moved=moves_seen.append)
    ordinals.read(pa.array([f"a{at:05}" for at in range(3000)] + ["z"], pa.large_string()))
    names = [f"m{at:03}" for at in range(130)]
    for name in names:
        ordinals.read(pa.array([name], pa.large_string()))
    words, _ = ordinals.read(pa.array(["a00000", *names, "z"], pa.large_string()))
    assert (np.diff(words) > 0).all()
    assert 1 <= len(moves_seen) <= 4


@pytest.mark.parametrize("seed", seeds(12, soak=400))
def test_values_spread_as_before_where_their_words_move(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_END", 64)
    monkeypatch.setattr(module, "_STEP", 2)
    drawn = Drawn(seed)
    while not has_ordinals(drawn.case.kind):
        seed += 10_000
        drawn = Drawn(seed)
    seen = {drawn.epoch() for _ in range(25)}
    assert "refused" not in seen


def test_words_that_move_within_an_epoch_can_be_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_END", 16)
    monkeypatch.setattr(module, "_STEP", 1)
    kind = pa.large_string()
    spreading = Spreading([pa.int64()], kind, Message("copy"))

    def start(keys: list[int], values: list[str], diff: int = 1) -> None:
        columns = [pa.array(keys)], pa.array(values, kind)
        spreading.change_solution(*columns, np.full(len(keys), diff))

    ones = np.ones(2, np.int64)
    start([1, 2, 3], ["b", "d", "f"])
    spreading.change_edges([pa.array([1, 2])], [pa.array([2, 3])], None, ones)
    assert [row[1] for row in spreading.converge().rows()] == ["b", "b", "b"]
    start([1], ["b"], -1)
    start([1], ["c"])
    start([2], ["bb"])
    start([2], ["ba"])
    start([3], ["a"])
    assert sorted(row[1:] for row in spreading.converge().rows()) == [
        ("a", 1), ("b", -1), ("b", -1), ("b", -1), ("ba", 1), ("c", 1)
    ]  # fmt: skip
    spreading.undo()
    start([3], ["az"])
    assert spreading.converge().rows() == [((3,), "b", -1), ((3,), "az", 1)]
