"""The progress protocol, simulated: workers that do random things and hear of each other late.

Two to four workers run one random nested graph. They send messages, handle them, keep, move on,
copy and drop capabilities, and ask for notifications. What each does is written in its ledger, told
in batches, and heard by each worker at any pace: only the order of one sender's batches is kept.
The truth, what is outstanding anywhere at this very moment, is known to the test alone.

Checked after every delivery, on every worker:

- no port's frontier has passed the true one,
- no port's frontier has gone back,

at every message: it is not at or before a time that was notified at its port, on any worker (the
*notification* law); and whenever all has been told and heard: all views are the truth, exactly. In
the end every notification has come without help, and nothing is left.

That these checks can fail is checked as well, with protocols that are broken on purpose.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from riverrun.progress import (
    Antichain,
    Ledger,
    Location,
    ProgressChange,
    Timestamp,
    Tracker,
)
from tests.progress.model import Place, at_or_before, earliest
from tests.strategies import Graph, nested_graph, seeds, take_step

SOURCE = 0  # the first port of every graph: the output of a node without inputs
Batch = tuple[ProgressChange, ...]
Tell = Callable[[random.Random, Batch], Iterable[Batch]]
Hear = Callable[[random.Random, deque[Batch]], Batch]


def as_one(rng: random.Random, batch: Batch) -> Iterable[Batch]:
    return [batch]


def in_order(rng: random.Random, channel: deque[Batch]) -> Batch:
    return channel.popleft()


@dataclass
class Wish:
    """A notification asked for at a port, with the capabilities kept to answer it."""

    port: Location
    time: Timestamp
    held: list[Place]


@dataclass
class Peer:
    """One worker: its ledger and view, and what it really has."""

    ledger: Ledger
    tracker: Tracker
    capabilities: list[Place]
    messages: list[Place] = field(default_factory=list)
    wishes: list[Wish] = field(default_factory=list)
    seen: list[Antichain] = field(default_factory=list)


class World:
    """All workers, what is under way between them, and the truth."""

    def __init__(
        self, seed: int, size: int, workers: int, tell: Tell = as_one, hear: Hear = in_order
    ) -> None:
        self.story = f"seed={seed} size={size} workers={workers}"
        self.rng = rng = random.Random(seed)
        self.graph: Graph = nested_graph(seed, size)
        self.tell, self.hear = tell, hear
        starts: list[list[Place]] = [[] for _ in range(workers)]
        # Few, often one: what all hold, nobody can pass.
        rng.choice(starts).append((SOURCE, (0,)))
        for output in self.graph.outputs:
            for start in starts:
                if rng.random() < (0.2 if output == SOURCE else 0.03):
                    start.append((output, self.later((0,) * self.graph.depths[output])))
        everyone = [place for start in starts for place in start]
        self.truth = Counter(everyone)
        topology = self.graph.topology
        self.peers = [
            Peer(Ledger(topology, start), Tracker(topology, everyone), list(start))
            for start in starts
        ]
        self.channels: dict[tuple[int, int], deque[Batch]] = {
            (a, b): deque() for a in range(workers) for b in range(workers)
        }
        self.notified: list[Place] = []
        self.sending = True
        self.eager = rng.choice((0.0, 0.5, 1.0))  # how often an event is told at once
        self.check()

    # What workers do.

    def later(self, time: Timestamp) -> Timestamp:
        """``time``, or at times one after it."""
        while self.rng.random() < 0.3:
            i = self.rng.randrange(len(time))
            time = (*time[:i], time[i] + 1, *time[i + 1 :])
        return time

    def send(self, event: list[ProgressChange], output: Location, time: Timestamp) -> None:
        """Send at ``time`` along every edge of an output, each to a worker of chance."""
        for target, _ in self.graph.steps.get(output, ()):
            event.append((target, time, 1))
            self.refuse_notified(target, time)
            self.rng.choice(self.peers).messages.append((target, time))

    def finish(self, peer: Peer, event: list[ProgressChange]) -> None:
        self.rng.shuffle(event)  # in any order: it is written as one
        peer.ledger.record(event)
        for location, time, delta in event:
            self.truth[location, time] += delta
        self.truth = +self.truth

    def refuse_notified(self, location: Location, time: Timestamp) -> None:
        for port, notified in self.notified:
            assert port != location or not at_or_before(time, notified), (
                f"a message at {time} for {self.graph.topology.describe(port)}, where {notified} "
                f"has been notified: {self.story}"
            )

    def handle(self, peer: Peer) -> None:
        """Handle a message: send, keep capabilities, ask for notifications."""
        rng = self.rng
        # Often the earliest, since a view is in danger only where little holds it back.
        chosen = min(peer.messages) if rng.random() < 0.5 else rng.choice(peer.messages)
        peer.messages.remove(chosen)
        location, time = chosen
        self.refuse_notified(location, time)
        event = [(location, time, -1)]
        outputs = self.graph.steps.get(location, [])
        if self.sending:
            for output, step in outputs:
                if rng.random() < 0.5:
                    self.send(event, output, self.later(take_step(step, time)))
                if rng.random() < 0.08:
                    held = output, self.later(take_step(step, time))
                    peer.capabilities.append(held)
                    event.append((*held, 1))
            if rng.random() < 0.3:
                asked = self.later(time)
                wish = Wish(
                    location,
                    asked,
                    [(output, take_step(step, asked)) for output, step in outputs],
                )
                peer.wishes.append(wish)
                event += [(*held, 1) for held in wish.held]
        self.finish(peer, event)

    def use(self, peer: Peer) -> None:
        """Use a capability: send, copy, move on or drop."""
        rng = self.rng
        index = rng.randrange(len(peer.capabilities))
        output, time = peer.capabilities[index]
        event: list[ProgressChange] = []
        # The source goes on for long; other capabilities are soon given up.
        actions = ("send", "move", "copy", "drop")
        weights = (12, 12, 1, 1) if output == SOURCE else (3, 2, 1, 4)
        action = rng.choices(actions, weights)[0] if self.sending else "drop"
        if action == "send":
            self.send(event, output, self.later(time))
        elif action == "copy":
            copy = output, self.later(time)
            peer.capabilities.append(copy)
            event.append((*copy, 1))
        else:
            del peer.capabilities[index]
            event.append((output, time, -1))
            if self.sending and rng.random() < 0.2:  # a last message, in the same event
                self.send(event, output, self.later(time))
            if action == "move":
                moved = output, self.later(time)
                peer.capabilities.append(moved)
                event.append((*moved, 1))
        self.finish(peer, event)

    def notify(self, peer: Peer) -> bool:
        """Deliver a notification whose time has come in the worker's own view, if there is one."""
        for index, wish in enumerate(peer.wishes):
            if peer.tracker.could_arrive(wish.port, wish.time):
                continue
            del peer.wishes[index]
            assert not self.true[wish.port].less_equal(wish.time), f"notified early: {self.story}"
            self.notified.append((wish.port, wish.time))
            event: list[ProgressChange] = []
            for output, time in wish.held:
                event.append((output, time, -1))
                if self.sending and self.rng.random() < 0.5:
                    self.send(event, output, self.later(time))
            self.finish(peer, event)
            return True
        return False

    # What passes between them.

    def flush(self, sender: int) -> None:
        batch = self.peers[sender].ledger.take()
        if batch:
            for part in self.tell(self.rng, batch):
                for receiver in range(len(self.peers)):
                    self.channels[sender, receiver].append(part)

    def deliver(self, sender: int, receiver: int) -> None:
        channel = self.channels[sender, receiver]
        tracker = self.peers[receiver].tracker
        for _ in range(self.rng.choice((1, 1, 1, 2, 3))):  # several heard at once
            if channel:
                for change in self.hear(self.rng, channel):
                    tracker.update(*change)
        tracker.propagate()
        self.check()

    def settle(self) -> None:
        """Let all be told and heard; then every view is the truth."""
        for sender in range(len(self.peers)):
            self.flush(sender)
        while waiting := [pair for pair, channel in self.channels.items() if channel]:
            self.deliver(*self.rng.choice(waiting))
        for peer in self.peers:
            assert peer.tracker.outstanding() == dict(self.truth), self.story
            assert [peer.tracker.frontier(at) for at in range(len(self.true))] == self.true, (
                self.story
            )

    def check(self) -> None:
        self.true = earliest(self.graph, self.truth)
        for peer in self.peers:
            view = [peer.tracker.frontier(at) for at in range(len(self.true))]
            for location, frontier in enumerate(view):
                place = self.graph.topology.describe(location)
                assert frontier.dominates(self.true[location]), (
                    f"{place}: {frontier} has passed {self.true[location]}: {self.story}"
                )
                if peer.seen and peer.seen[location] is not frontier:
                    assert peer.seen[location].dominates(frontier), (
                        f"{place}: from {peer.seen[location]} back to {frontier}: {self.story}"
                    )
            peer.seen = view

    # A life.

    def step(self) -> None:
        rng = self.rng
        number = rng.randrange(len(self.peers))
        peer = self.peers[number]
        action = rng.random()
        if action < 0.5:
            if peer.messages and (rng.random() < 0.7 or not peer.capabilities):
                self.handle(peer)
            elif peer.capabilities:
                self.use(peer)
            if rng.random() < self.eager:
                self.flush(number)
        elif action < 0.6:
            self.flush(number)
        else:
            for _ in range(rng.choice((1, 3, 6))):
                if waiting := [pair for pair, channel in self.channels.items() if channel]:
                    self.deliver(*rng.choice(waiting))
            self.notify(peer)

    def run(self, steps: int) -> None:
        for number in range(steps):
            self.step()
            if number % 40 == 39:
                self.settle()
        self.sending = False
        while any(peer.messages or peer.capabilities or peer.wishes for peer in self.peers):
            for peer in self.peers:
                while peer.messages:
                    self.handle(peer)
                while peer.capabilities:
                    self.use(peer)
            self.settle()
            came = [self.notify(peer) for peer in self.peers]
            assert any(came) or not any(peer.wishes for peer in self.peers), (
                f"notifications that never come: {self.story}"
            )
        self.settle()
        assert not self.truth
        assert not any(self.true), self.story


@settings(max_examples=2 * settings.default.max_examples)
@given(seeds, st.integers(1, 4), st.integers(2, 4))
@example(seed=1, size=5, workers=4)
def test_a_view_never_passes_the_truth(seed: int, size: int, workers: int) -> None:
    World(seed, size, workers).run(steps=160)


def test_the_simulation_does_all_it_can_do() -> None:
    """Notifications, negative counts, frontiers with several elements: all of it happens."""
    happened: Counter[str] = Counter()
    for seed in range(30):
        world = World(seed, 4, 3)
        for _ in range(120):
            world.step()
            for peer in world.peers:
                counts = peer.tracker.outstanding().values()
                happened["negative"] += any(count < 0 for count in counts)
                happened["late"] += peer.seen != world.true
                happened["several"] += any(len(frontier) > 1 for frontier in peer.seen)
                happened["deep"] += any(len(time) == 4 for _, time in peer.messages)
        happened["notified"] += len(world.notified)
    for what in ("negative", "late", "several", "deep", "notified"):
        assert happened[what] > 20, happened


def ends_first(rng: random.Random, batch: Batch) -> Iterable[Batch]:
    return [tuple(c for c in batch if c[2] < 0), tuple(c for c in batch if c[2] > 0)]


def in_pieces(rng: random.Random, batch: Batch) -> Iterable[Batch]:
    return [(change,) for change in rng.sample(batch, len(batch))]


def last_first(rng: random.Random, channel: deque[Batch]) -> Batch:
    return channel.pop()


@pytest.mark.parametrize(
    ("tell", "hear"),
    [(ends_first, in_order), (in_pieces, in_order), (as_one, last_first)],
    ids=["ends first", "in pieces", "last first"],
)
def test_a_broken_protocol_is_noticed(tell: Tell, hear: Hear) -> None:
    """A tenth to two thirds of the seeds notice; here the first that does ends the search."""
    noticed = []
    for seed in range(50):
        try:
            World(seed, 3, 3, tell, hear).run(steps=160)
        except AssertionError as error:
            noticed.append(str(error))
            break
    assert noticed
    assert "has passed" in noticed[0] or "back to" in noticed[0]
