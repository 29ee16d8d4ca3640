"""The parts of a remote cluster, each by itself: peers, starts, questions; and the deadlines of a local one."""

from __future__ import annotations

import random
from typing import Any

import pytest

from riverrun.errors import TransportError
from riverrun.runtime.deadlines import Deadlines
from riverrun.runtime.peers import ConnectedPeers
from riverrun.runtime.questions import Audience, Questions
from riverrun.runtime.starts import STARTS, Starts
from riverrun.state.shards import Shards
from tests.soaking import seeds


class Closable:
    """A link, or a line, that is closed or not."""

    def __init__(self, address: str = "", answers: tuple[Any, ...] = ()) -> None:
        self.address = address
        self.answers = list(answers)
        self.closed = 0

    def close(self) -> None:
        self.closed += 1

    def ask(self, question: str, argument: Any, unheard: Any) -> Any:
        answer = self.answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return answer


# ---- peers


def process(number: int) -> dict[str, Any]:
    return {"pid": number, "host": "here", "address": f"tcp://127.0.0.1:{5000 + number}"}


def test_parting_ends_all_that_connects_and_leaves_what_is_known() -> None:
    peers, link, line = ConnectedPeers(), Closable(), Closable()
    peers.enter(1, process(1))
    assert peers.linked == {}
    peers.connect(1, link, line)  # type: ignore[arg-type]
    stream = object()
    assert peers.claim(1, stream)
    assert peers.linked == {1: process(1)["address"]}
    assert peers.part(1)
    assert not peers.part(1)
    assert (line.closed, peers.link(1), peers.line(1), peers.linked) == (1, None, None, {})
    assert peers.process(1)["pid"] == 1
    assert peers.is_from(1, object())  # nobody is known to be
    assert peers.claim(1, object())
    assert not peers.part(2)
    assert peers.process(2) == {}


def test_the_last_peer_at_an_address_counts() -> None:
    """A process of Spark's that was a worker may become another one."""
    peers = ConnectedPeers()
    for incarnation in (3, 4):
        peers.enter(incarnation, process(1))
    assert peers.incarnation_at(process(1)["address"]) == 4
    assert peers.incarnation_at("tcp://127.0.0.1:1") is None


def test_credit_is_given_for_every_byte_once() -> None:
    source, peers, stream = random.Random(1), ConnectedPeers(), object()
    sizes = [source.randrange(40) for _ in range(200)]
    due = [peers.incoming(stream).owe(size, window=100) for size in sizes]
    assert sum(due) + peers.incoming(stream).owed == sum(sizes)
    assert all(each == 0 or each >= 25 for each in due)
    peers.stream_ended(stream)
    assert peers.incoming(stream).owed == 0


# ---- starts


class Recorder:
    def __init__(self) -> None:
        self.tickets: list[int] = []

    def start(self, ticket: int) -> None:
        self.tickets.append(ticket)


def test_enough_false_starts_in_a_row_are_enough() -> None:
    recorder = Recorder()
    starts = Starts(recorder)
    starts.call(7)
    for turn in range(STARTS):
        assert starts.ended(recorder.tickets[-1]) is None
        assert starts.is_short
        again = starts.try_again()
        assert again == (turn < STARTS - 1)
        if again:
            starts.call_again()
    assert recorder.tickets == list(range(1, STARTS + 1))
    starts.call_off(7)
    assert not starts.is_short


def test_a_grant_ends_the_row() -> None:
    starts = Starts(Recorder())
    for incarnation in (7, 8):
        starts.call(incarnation)
    assert starts.ended(1) is None
    assert starts.try_again()
    starts.call_again()
    assert starts.grant(2) == 7
    for _ in range(STARTS - 1):
        assert starts.try_again()


@pytest.mark.drawn
@pytest.mark.parametrize("seed", seeds(30, soak=500))
def test_whatever_processes_do_each_incarnation_is_granted_once(seed: int) -> None:
    source, recorder = random.Random(seed), Recorder()
    starts = Starts(recorder)
    called, off, granted, over = list[int](), set[int](), dict[int, int](), set[int]()
    for _ in range(60):
        act = source.randrange(4)
        alive = [ticket for ticket in recorder.tickets if ticket not in over]
        if act == 0:
            called.append(len(called) + 1)
            starts.call(called[-1])
        elif act == 1 and alive:
            nobody = [ticket for ticket in alive if starts.incarnation_of(ticket) is None]
            if nobody:
                ticket = source.choice(nobody)
                waiting = starts.ungranted
                incarnation = starts.grant(ticket)
                assert incarnation == (waiting[0] if waiting else None)
                if incarnation is not None:
                    assert incarnation not in granted
                    assert incarnation not in off
                    granted[incarnation] = ticket
        elif act == 2 and alive:
            ticket = source.choice(alive)
            over.add(ticket)
            who = starts.incarnation_of(ticket)
            assert starts.ended(ticket) == who
            if who is not None:
                assert starts.tickets_of(who) == []
        elif called:
            incarnation = source.choice(called)
            starts.call_off(incarnation)
            if incarnation not in granted:
                off.add(incarnation)
        assert len(starts) == len(recorder.tickets) - len(over)
        assert set(starts.ungranted) == set(called) - off - granted.keys()
        for incarnation, ticket in granted.items():
            expected = [] if ticket in over else [ticket]
            assert starts.tickets_of(incarnation) == expected


# ---- questions


def questions(lines: list[Any], executions: list[int]) -> Questions:
    def audience() -> Audience:
        return Audience(executions[0], Shards.even(len(lines)), lines)

    return Questions(None, audience, lambda: executions[-1], lambda address: False)  # type: ignore[arg-type]


def test_what_some_have_lent_is_given_back_when_another_is_lost() -> None:
    lost = TransportError("transport.given_up", "cannot hear from the worker: it was given up")
    one = Closable("one", (([11], b""), ([12], b"")))
    other = Closable("other", (lost, ([21], b"")))
    asked = questions([one, other], [1])
    assert asked.ask_all("read", ("out", 0, [None])) == [
        ("one", ([12], b"")),
        ("other", ([21], b"")),
    ]
    assert list(asked.released()) == [("one", 11)]
    assert list(asked.released()) == []


def test_answers_of_two_executions_are_not_mixed() -> None:
    executions = [1, 2]
    one = Closable("one", (([11], b""), ([12], b"")))
    asked = questions([one], executions)

    with pytest.raises(TransportError, match="beginning again"):
        asked._ask_each("read", None, None)
    assert list(asked.released()) == [("one", 11)]
    del executions[0]
    assert asked.ask_all("read") == [("one", ([12], b""))]


def test_a_worker_without_a_line_was_given_up() -> None:
    asked = questions([None], [1])
    with pytest.raises(TransportError, match="given up"):
        asked._ask_each("stats", None, None)


# ---- deadlines


def test_deadlines_are_met_in_order_and_in_one_round() -> None:
    deadlines, done = Deadlines(), list[str]()

    def add() -> None:
        done.append("first")
        deadlines.once(0.5, lambda: done.append("added"))

    deadlines.once(2.0, lambda: done.append("third"))
    deadlines.once(1.0, add)
    deadlines.once(1.0, lambda: done.append("second"))
    deadlines.meet(0.9)
    assert done == []
    deadlines.meet(2.0)
    assert done == ["first", "second", "third"]
    assert (deadlines.pending, deadlines.first) == (1, 0.5)
    deadlines.meet(2.0)
    assert done[3:] == ["added"]
    assert deadlines.pending == 0


def test_what_is_done_again_is_not_pending() -> None:
    deadlines, done = Deadlines(), list[int]()
    deadlines.every(1.0, lambda: done.append(1), start=0.0)
    for now in (0.0, 0.5, 1.0, 5.0, 5.5, 6.0):
        deadlines.meet(now)
    assert len(done) == 4
    assert deadlines.pending == 0
    deadlines.clear()
    deadlines.meet(100.0)
    assert len(done) == 4
