"""Progress among workers by what crosses between them, simulated, against following everything.

Two to four workers run one random nested graph, some nodes of which are crossings. What happens between
crossings happens on one worker, at once; at a crossing a message goes to a worker of chance. Workers keep
capabilities and ask for notifications. They tell of what they did when ``Border.tell`` finds that worth
telling, and hear of each other at any pace: only the order of one sender's batches is kept.

The truth is known to the test: a graph with two copies of every port, *here* and *elsewhere*, where an edge into
a crossing leads to both. Checked on every worker after every step: whatever can truly come from elsewhere,
the border says so; of an epoch that is past on a worker nothing is there and nothing can come, and of one that
is past on all of them nothing is outstanding; and nothing comes at or before a time that was notified. In the
end all notifications have come without help: no worker kept to itself what another one waited for. That these
checks can fail is checked as well.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from riverrun.progress import (
    Antichain,
    Border,
    Ledger,
    Location,
    NodePorts,
    ProgressChange,
    Timestamp,
    TopologyBuilder,
)
from riverrun.progress.crossing import MAX_WAYS
from tests.progress.model import Place, at_or_before, earliest
from tests.strategies import Graph, nested_graph, seeds, take_step

SOURCE = 0  # the first port of every graph: the output of a node without inputs
Batch = tuple[ProgressChange, ...]


@dataclass
class Wish:
    """A notification asked for at a port, with the capabilities kept to answer it."""

    port: Location
    time: Timestamp
    held: list[Place]


@dataclass
class Peer:
    """One worker, and what it really has."""

    number: int
    ledger: Ledger
    border: Border
    capabilities: list[Place]
    mail: list[tuple[int, Timestamp]] = field(default_factory=list)
    wishes: list[Wish] = field(default_factory=list)
    notified: list[Place] = field(default_factory=list)
    past: int = 0

    @property
    def held(self) -> list[Place]:
        return [*self.capabilities, *(place for wish in self.wishes for place in wish.held)]


def crossings_of(graph: Graph, rng: random.Random) -> list[NodePorts]:
    """Some of the nodes that pass on what comes as it is."""
    return [
        node
        for node in graph.nodes
        if len(node.inputs) == len(node.outputs) == 1
        and graph.steps.get(node.inputs[0]) == [(node.outputs[0], ("same",))]
        and rng.random() < 0.9
    ]


class World:
    """All workers, what is under way between them, and the truth."""

    def __init__(
        self,
        seed: int,
        size: int,
        workers: int,
        kind: type[Border] = Border,
        max_ways: int = MAX_WAYS,
    ) -> None:
        self.story = f"seed={seed} size={size} workers={workers} max_ways={max_ways}"
        self.rng = rng = random.Random(seed)
        self.graph = nested_graph(seed, size)
        self.crossings = crossings_of(self.graph, rng)
        self.entered = {node.inputs[0]: at for at, node in enumerate(self.crossings)}
        self.ports = len(self.graph.depths)
        self.doubled = self.double()
        starts: list[list[Place]] = [[] for _ in range(workers)]
        rng.choice(starts).append((SOURCE, (0,)))
        for output in self.graph.outputs:
            for start in starts:
                if rng.random() < (0.4 if output == SOURCE else 0.03):
                    start.append((output, self.later((0,) * self.graph.depths[output])))
        topology = self.graph.topology
        self.peers = [
            Peer(
                at,
                Ledger(topology, start),
                kind(topology, self.crossings, at, starts, max_ways),
                list(start),
            )
            for at, start in enumerate(starts)
        ]
        self.channels: dict[tuple[int, int], deque[Batch]] = {
            (a, b): deque() for a in range(workers) for b in range(workers) if a != b
        }
        self.batches = 0
        self.sending = True
        self.check()

    def double(self) -> Graph:
        """Here, and the same elsewhere: what enters a crossing goes to either."""
        steps: dict[Location, list[tuple[Location, tuple[str]]]] = {}
        for source, arcs in self.graph.steps.items():
            for side in (0, self.ports):
                steps[source + side] = [
                    (target + other, step)
                    for target, step in arcs
                    for other in ((0, self.ports) if target in self.entered else (side,))
                ]
        return Graph(depths=self.graph.depths * 2, steps=steps)

    def from_elsewhere(self, peer: Peer) -> list[Antichain]:
        """What can truly come to each port of a worker, but for what it holds itself."""
        places = [
            (self.crossings[at].outputs[0] + (0 if other is peer else self.ports), time)
            for other in self.peers
            for at, time in other.mail
        ]
        for other in self.peers:
            if other is not peer:
                places += [(location + self.ports, time) for location, time in other.held]
        return earliest(self.doubled, places)[: self.ports]

    def check(self) -> None:
        for peer in self.peers:
            peer.border.catch_up()
            there = [time for _, time in (*peer.mail, *peer.held)]
            for port, frontier in enumerate(self.from_elsewhere(peer)):
                if port in self.entered:  # a message comes out of it, to somebody
                    continue
                there += frontier
                for time in frontier:
                    assert peer.border.could_come(port, time), (
                        f"{time} can come to {self.graph.topology.describe(port)}: {self.story}"
                    )
                    assert any(at_or_before(t, time) for t in peer.border.coming(port))
            peer.border.settle(peer.ledger.take())
            while peer.past < 50 and peer.border.is_past(peer.past):
                peer.past += 1
            for time in there:
                assert time[0] >= peer.past, f"{peer.past} is not past: {self.story}"
        past = min(peer.past for peer in self.peers)
        for peer in self.peers:
            for _, time in (*peer.mail, *peer.held):
                assert time[0] >= past, f"{past} is not past anywhere: {self.story}"

    # What workers do.

    def later(self, time: Timestamp) -> Timestamp:
        """``time``, or at times one after it."""
        while self.rng.random() < 0.3:
            i = self.rng.randrange(len(time))
            time = (*time[:i], time[i] + 1, *time[i + 1 :])
        return time

    def send(
        self, peer: Peer, event: list[ProgressChange], output: Location, time: Timestamp
    ) -> None:
        """Send along every edge of an output; what stays on this worker is handled at once."""
        for target, _ in self.graph.steps.get(output, ()):
            if target not in self.entered:
                event.append((target, time, 0))
                self.arrive(peer, event, target, time)
                continue
            crossing = self.entered[target]
            to = self.rng.choice(self.peers)
            if to is peer:
                event.append((target, time, 0))
                self.arrive(peer, event, target, time)
            else:
                event.append((target, time, 1))
                peer.border.sends(crossing, to.number, [time])
                to.mail.append((crossing, time))

    def arrive(
        self, peer: Peer, event: list[ProgressChange], port: Location, time: Timestamp
    ) -> None:
        for notified, until in peer.notified:
            assert notified != port or not at_or_before(time, until), (
                f"{time} comes to {self.graph.topology.describe(port)} after {until}: {self.story}"
            )
        rng, outputs = self.rng, self.graph.steps.get(port, [])
        if not self.sending:
            return
        if port not in self.entered and rng.random() < 0.3:
            asked = self.later(time)
            held = [(output, take_step(step, asked)) for output, step in outputs]
            peer.wishes.append(Wish(port, asked, held))
            event += [(*place, 1) for place in held]
        for output, step in outputs:
            reached = take_step(step, time)
            if max(reached) < 9 and (port in self.entered or rng.random() < 0.6):
                self.send(
                    peer, event, output, reached if port in self.entered else self.later(reached)
                )
            if port not in self.entered and rng.random() < 0.05:
                capability = output, self.later(reached)
                peer.capabilities.append(capability)
                event.append((*capability, 1))

    def finish(self, peer: Peer, event: list[ProgressChange]) -> None:
        self.rng.shuffle(event)
        peer.ledger.record(event)

    def handle(self, peer: Peer) -> None:
        crossing, time = peer.mail.pop(self.rng.randrange(len(peer.mail)))
        port = self.crossings[crossing].inputs[0]
        event = [(port, time, -1)]
        peer.border.takes(crossing, [time])
        self.arrive(peer, event, port, time)
        self.finish(peer, event)

    def use(self, peer: Peer) -> None:
        """Use a capability: send, move on or drop."""
        rng = self.rng
        index = rng.randrange(len(peer.capabilities))
        output, time = peer.capabilities[index]
        event: list[ProgressChange] = []
        weights = (5, 5, 1) if output == SOURCE else (2, 1, 4)
        action = rng.choices(("send", "move", "drop"), weights)[0] if self.sending else "drop"
        if action == "send":
            self.send(peer, event, output, self.later(time))
        else:
            del peer.capabilities[index]
            event.append((output, time, -1))
            if action == "move":
                moved = output, self.later(time)
                peer.capabilities.append(moved)
                event.append((*moved, 1))
        self.finish(peer, event)

    def notify(self, peer: Peer) -> bool:
        """Deliver a notification that nothing can precede as far as the worker knows, if there is one."""
        peer.border.catch_up()
        own = earliest(self.graph, peer.held)
        for index, wish in enumerate(peer.wishes):
            if own[wish.port].less_equal(wish.time):
                continue
            if peer.border.could_come(wish.port, wish.time):
                continue
            del peer.wishes[index]
            truth = self.from_elsewhere(peer)[wish.port]
            assert not truth.less_equal(wish.time), f"notified early: {self.story}"
            peer.notified.append((wish.port, wish.time))
            event: list[ProgressChange] = [(*place, -1) for place in wish.held]
            for output, time in wish.held:
                if self.sending and self.rng.random() < 0.5:
                    self.send(peer, event, output, self.later(time))
            self.finish(peer, event)
            return True
        return False

    # What passes between them.

    def flush(self, sender: Peer) -> None:
        sender.border.settle(sender.ledger.take())
        batch = sender.border.tell()
        if batch:
            self.batches += 1
            for (a, _), channel in self.channels.items():
                if a == sender.number:
                    channel.append(batch)

    def deliver(self) -> bool:
        waiting = [pair for pair, channel in self.channels.items() if channel]
        if waiting:
            pair = self.rng.choice(waiting)
            self.peers[pair[1]].border.hear(self.channels[pair].popleft())
        return bool(waiting)

    # A life.

    def step(self) -> None:
        rng = self.rng
        peer = rng.choice(self.peers)
        action = rng.random()
        if action < 0.25 and peer.mail:
            self.handle(peer)
        elif action < 0.45 and peer.capabilities:
            self.use(peer)
        elif action < 0.6:
            self.flush(peer)
        elif action < 0.8:
            self.notify(peer)
        else:
            self.deliver()
        self.check()

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.step()
        self.sending = False
        while True:
            moved = False
            for peer in self.peers:
                while peer.mail:
                    self.handle(peer)
                while peer.capabilities:
                    self.use(peer)
                while self.notify(peer):
                    moved = True
                self.flush(peer)
            while self.deliver():
                moved = True
            self.check()
            if not moved:
                break
        assert not any(peer.wishes for peer in self.peers), f"they never come: {self.story}"
        assert all(peer.past == 50 for peer in self.peers), f"an epoch never ends: {self.story}"


@given(seeds, st.integers(2, 4), st.integers(2, 4), st.sampled_from([0, 1, 2, MAX_WAYS]))
def test_nothing_comes_too_early_and_nobody_waits_in_vain(
    seed: int, size: int, workers: int, max_ways: int
) -> None:
    """With few hubs, and with a hub wherever there can be one."""
    World(seed, size, workers, max_ways=max_ways).run(steps=60)


def test_the_simulation_does_all_it_can_do() -> None:
    happened: Counter[str] = Counter()
    for seed in range(16):
        world = World(seed, 5, 3)
        for _ in range(100):
            world.step()
            happened["mail"] += any(peer.mail for peer in world.peers)
        happened["notified"] += sum(len(peer.notified) for peer in world.peers)
        happened["batches"] += world.batches
        happened["crossings"] += len(world.crossings) > 1
    for what in ("mail", "notified", "batches", "crossings"):
        assert happened[what] > 5, happened


class TellsNothing(Border):
    """Whoever holds anything tells nothing."""

    def _stands_in(self, place: int, time: Timestamp) -> bool:
        return any(frontier.frontier for frontier in self._leaving)


class TellsOfItsMessagesLate(Border):
    """What was sent is told with the batch after."""

    def tell(self) -> Batch:
        late = getattr(self, "_late", ())
        batch = super().tell()
        self._late = tuple(
            change for change in batch if change[0] >= self._messages and change[2] > 0
        )
        return tuple(change for change in batch if change not in self._late) + late


class ForgetsWhatIsForIt(Border):
    """A message on its way here is thought to hold up nothing."""

    def could_come(self, port: Location, time: Timestamp) -> bool:
        return any(
            self._tracker.could_arrive(2 * crossing, t)
            for crossing, summary in self._entries[port]
            for t in [time]
            if summary is None
        )


class LooksAway(Border):
    """A message that was sent is not taken into account until it is told."""

    def catch_up(self) -> bool:
        return False

    def settle(self, changes: Iterable[ProgressChange]) -> None:
        super().catch_up()
        super().settle(changes)


class IsDeafToHubs(Border):
    """What is held before a hub holds up nothing behind it."""

    def _count(self, place: int, time: Timestamp, delta: int) -> None:
        if not self._crossings <= place < self._messages:
            super()._count(place, time, delta)


class PassesHubsBy(Border):
    """What comes through a hub is not seen behind it."""

    def could_come(self, port: Location, time: Timestamp) -> bool:
        entries = self._entries[port]
        self._entries[port] = [way for way in entries if way[0] < self._crossings]
        try:
            return super().could_come(port, time)
        finally:
            self._entries[port] = entries


@pytest.mark.parametrize(
    ("kind", "notices"),
    [
        (IsDeafToHubs, ["can come", "is not past", "early"]),
        (PassesHubsBy, ["can come", "early"]),
        (TellsNothing, ["never"]),
        (TellsOfItsMessagesLate, ["can come", "is not past", "early"]),
        (ForgetsWhatIsForIt, ["can come"]),
        (LooksAway, ["can come", "early"]),
    ],
)
def test_a_broken_border_is_noticed(kind: type[Border], notices: Sequence[str]) -> None:
    noticed = []
    for seed in range(200):
        try:
            World(seed, 3, 3, kind, max_ways=1 if "Hubs" in kind.__name__ else MAX_WAYS).run(
                steps=80
            )
        except AssertionError as error:
            noticed.append(str(error))
            break
    assert any(notice in error for error in noticed for notice in notices), noticed


def pair() -> tuple[list[NodePorts], list[Border], list[Ledger]]:
    """A loop with one exchange on two workers: enter -> keep -> swap -> back -> keep."""
    builder = TopologyBuilder()
    enter = builder.node("enter", outputs=[2])
    keep = builder.node("keep", inputs=[2], outputs=[2])
    swap = builder.node("swap", inputs=[2], outputs=[2])
    back = builder.feedback("back", 2)
    for a, b in ((enter, keep), (keep, swap), (swap, back), (back, keep)):
        builder.edge(a.outputs[0], b.inputs[0])
    topology = builder.build()
    starts = [[(keep.outputs[0], (0, 0))]] * 2
    borders = [Border(topology, [swap], me, starts) for me in (0, 1)]
    return [enter, keep, swap, back], borders, [Ledger(topology, start) for start in starts]


def test_a_round_takes_one_hop() -> None:
    """Both send to each other and are done with the round: what they tell with it lets both go on."""
    (_, keep, swap, back), borders, ledgers = pair()
    (output,), (into,), (port,) = keep.outputs, swap.inputs, keep.inputs
    for turn in range(5):
        batches = []
        for me, (border, ledger) in enumerate(zip(borders, ledgers, strict=True)):
            ledger.record([(into, (0, turn), 1), (output, (0, turn), -1)])
            border.sends(0, 1 - me, [(0, turn)])
            border.settle(ledger.take())
            batches.append(border.tell())
        for me, (border, ledger) in enumerate(zip(borders, ledgers, strict=True)):
            assert border.could_come(port, (0, turn + 1))
            border.hear(batches[1 - me])
            border.takes(0, [(0, turn)])
            ledger.record(
                [
                    (into, (0, turn), -1),
                    (back.inputs[0], (0, turn), 0),
                    (port, (0, turn + 1), 0),
                    (output, (0, turn + 1), 1),
                ]
            )
            border.catch_up()
            assert not border.could_come(port, (0, turn + 1))
            assert border.could_come(port, (0, turn + 2))


def test_what_stays_between_two_tellings_is_not_told() -> None:
    (_, keep, _, _), (border, _), (ledger, _) = pair()
    (output,) = keep.outputs
    for turn in range(1, 6):
        ledger.record([(output, (0, turn), 1)])
        border.settle(ledger.take())
        assert border.tell() == ()  # behind what it still has
    for turn in range(4):
        ledger.record([(output, (0, turn), -1)])
    border.settle(ledger.take())
    assert border.tell() == ((0, (0, 0), -1), (0, (0, 4), 1))
