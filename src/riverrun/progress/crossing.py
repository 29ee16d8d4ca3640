"""Crossings: progress among workers, where only what crosses between them is told.

Most ports of a dataflow are a worker's own business: what happens there concerns others when it leads to a
message for them, and messages cross between workers at few nodes, the *crossings*. So workers tell each
other three things, and nothing of what lies between:

- the *leaving* frontier of each crossing: the earliest times at which something that this worker holds may
  still be sent into it;
- each message that was sent, with the worker it is for, the crossing and the time;
- each message that was handled.

This is the protocol of ``reachability`` on a smaller graph (``Topology.contracted``), where the input of a
crossing holds the rights to send and its output the messages on their way; what holds there holds here:

*It is the protocol.* An event ends elements of leaving frontiers and messages, and begins others. Each that
begins could result from one that the worker had: something held now came of something held before or of a
message handled, whose times at every crossing are at or before its own, or was hidden behind an element that
ended; and a message is sent by right of what is held. A batch is what a run of whole events changed in total
(a), and a leaving frontier is never anybody else's (c). Hence the claim: for everything whose end a view has
not seen, there is a pointstamp with a positive count that could result in it.

*Messages for others do not hold up what happens here.* All messages count alike for what can come of them.
But of those that are already on their way, only the ones for this worker can arrive here: so what can come
out of a crossing *here* is what can still be sent into it, by whomever, and the messages for this worker.
(Take what a view with messages for here and for elsewhere counted apart would say. If a message for here
is positive in it, that is seen. Else something that can still lead to a sending is; that has not been seen
to end, so by the claim for the coarser view, which adds the two up, something positive there leads to it.)
So a round of a loop with one exchange takes one hop: what was sent in it and the news that nothing more
will be sent in it travel together.

*Hubs.* Where many ports lead into one, and that to many crossings, the ways are as many as pairs of them. Such a port
is told of in the place of all crossings behind it: what is held before it counts as the right to reach it, until it
has been passed. A path from what is held to a crossing comes to a hub or a crossing first, and from a hub it goes on
likewise, so all that was said of leaving frontiers holds with hubs among them. The same is done with the ways on
which things come: what can come to a port of many crossings is known to a hub there, by a tracker of its own.

*What is held here is not in it*: its owner knows it, and has it in order (``engine.scheduling``).

*An epoch ends on each worker by itself*: when nothing of it is held here, and nothing of it can come out of any
crossing here. When it has ended on all of them nothing of it is left anywhere; who has to know that counts them,
and they need not tell each other (``engine.coordinator``).

When to tell
------------
:meth:`Border.tell` gives a batch when something ended in it that nothing held here stands in for: at some
crossing its time has been passed. Otherwise it keeps on adding up. It may be
called between any two events, and is called at rest. Rights begun and ended in between are never heard of.
Told early, while there is more to do here, it lets the others go on meanwhile: told only at rest, two
workers would take turns in a loop, each two rounds ahead and then waiting for the other.

*Nobody waits in vain.* Suppose all are at rest, nothing is on its way, and something is outstanding. Of all
notifications that are asked for take one, at p, that nothing else outstanding could result in. It does not
come: so in its worker's view something that could result in p has not ended, but it has ended in truth, on
some worker that did not tell. That one holds something that stands in for it, which is outstanding, and could
result in p, since whatever comes to another worker does so through a crossing. That is against the choice
of p. The same with the end of an epoch on a worker for p, when nothing of the epoch is outstanding.

>>> from riverrun.progress import Ledger, TopologyBuilder
>>> builder = TopologyBuilder()
>>> source, swap, count = (
...     builder.node(name, inputs=[1] * (name != "source"), outputs=[1])
...     for name in ("source", "swap", "count")
... )
>>> builder.edge(source.outputs[0], swap.inputs[0])
>>> builder.edge(swap.outputs[0], count.inputs[0])
>>> topology = builder.build()
>>> start = [(source.outputs[0], (0,))]
>>> one, two = (Border(topology, [swap], me, [start, start]) for me in (0, 1))
>>> ledger = Ledger(topology, start)
>>> ledger.record(
...     [(swap.inputs[0], (0,), 1), (source.outputs[0], (0,), -1), (source.outputs[0], (1,), 1)]
... )
>>> one.sends(0, to=1, times=[(0,)])  # what was recorded, with the worker that it is for
>>> one.settle(ledger.take())
>>> told = one.tell()
>>> two.could_come(count.inputs[0], (0,))
True
>>> two.hear(told)
>>> two.look(), two.could_come(count.inputs[0], (0,))  # there is a message
(True, True)
>>> two.takes(0, times=[(0,)])
>>> two.look()
True
>>> two.could_come(count.inputs[0], (0,)), two.could_come(count.inputs[0], (1,))
(False, True)

Cost: 1 to 3 us for each change of what is held and each message, where they have not cancelled; all that is
heard between two looks is one walk of a tracker over the crossings. Making a border takes time linear in the number of
arcs, times the most ways of a port (`MOST`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import TypeAlias

from .frontier import CountedFrontier, Counts
from .reachability import Pointstamp, ProgressChange, Tracker
from .summary import Summary
from .timestamp import Timestamp, less_equal
from .topology import Location, NodePorts, Topology, Ways

__all__ = ["Border"]

MOST = 16
"""A port from which more ways lead to crossings, or to which more lead from them, is a hub."""

Links: TypeAlias = list[tuple[int, Summary | None]]
"""Crossings and hubs, and how time gets there or comes from there; None where it stays what it is."""


class Border:
    """What worker `me` knows of the others, and what they are to know of it.

    ``crossings`` are nodes with one input and one output, which time passes unchanged; ``held`` are the
    capabilities with which each worker starts. In a batch, a right to send into a crossing has the number
    of that, a right to reach a hub one of those after them, and after these comes one for each crossing and worker:
    the messages.
    """

    def __init__(
        self,
        topology: Topology,
        crossings: Sequence[NodePorts],
        me: int,
        held: Sequence[Sequence[Pointstamp]],
        most: int = MOST,
    ) -> None:
        self._topology = topology
        self._workers = len(held)
        self._me = me
        self._crossings = len(crossings)
        inputs = [node.inputs[0] for node in crossings]
        outputs = [node.outputs[0] for node in crossings]
        ports = {*inputs, *outputs}
        hubs = [port for port in topology.hubs(inputs, most) if port not in ports]
        self._messages = len(crossings) + len(hubs)
        """The first place of messages."""
        self._exits = _links(topology.ways, [*inputs, *hubs])
        """From every port, the crossings and hubs that come next."""
        joins = [port for port in topology.hubs_from(outputs, most) if port not in ports]
        self._entries = _links(topology.ways_from, [*outputs, *joins])
        """To every port, the crossings and hubs from which something comes."""
        self._after = [self._exits[port] for port in outputs]
        # Of this worker.
        self._leaving: list[CountedFrontier] = []
        """Of crossings, then of hubs."""
        self._epochs = CountedFrontier()  # of all that is held
        self._coming = [CountedFrontier() for _ in crossings]
        self._passed: list[ProgressChange] = []  # messages that are not counted yet
        self._untold: Counts[Pointstamp] = Counts()
        # Of the others: input and output of crossing n are 2n and 2n + 1, and hubs come after them.
        self._tracker = Tracker(topology.contracted(crossings, hubs))
        self._sent = [self._tracker.reach(2 * at) for at in range(len(crossings))]
        # What comes out of crossings, on its way to hubs here.
        self._joining = (
            Tracker(topology.contracted(crossings, joins, cut=inputs)) if joins else None
        )
        self._joined = [
            self._joining.reach(2 * len(crossings) + at)
            for at in range(len(joins))
            if self._joining
        ]
        self._heard = False  # something that is not weighed yet
        for worker in (*range(me), *range(me + 1, len(held)), me):  # itself at last
            self._leaving = [CountedFrontier() for _ in range(self._messages)]
            self._epochs = CountedFrontier()
            self._project((location, time, 1) for location, time in held[worker])
            told = self._untold.drain()
            if worker != me:
                self.hear([(place, time, delta) for (place, time), delta in told])
        self.look()

    # ---- what happens here

    def sends(self, crossing: int, to: int, times: Iterable[Timestamp]) -> None:
        """A message for another worker is sent."""
        place = self._messages + crossing * self._workers + to
        self._passed += [(place, time, 1) for time in times]

    def takes(self, crossing: int, times: Iterable[Timestamp]) -> None:
        """A message from another worker is handled."""
        place = self._messages + crossing * self._workers + self._me
        self._passed += [(place, time, -1) for time in times]

    def look(self) -> bool:
        """Take messages and what was heard into account; whether there was any of it.

        To be called before it is asked what could come: of a message sent something may come back. What is
        heard of together is weighed together: a message, its beginning heard of and its end our own, costs
        next to nothing.
        """
        if self._passed:
            for place, time, delta in self._passed:
                self._untold.add((place, time), delta)
                self._count(place, time, delta)
            self._passed.clear()
        if not self._heard:
            return False
        self._heard = False
        changed = self._tracker.propagate()
        if self._joining is not None:
            for crossing in range(self._crossings):
                for time, sign in changed.get(2 * crossing, ()):
                    self._joining.update(2 * crossing + 1, time, sign)
            self._joining.propagate()
        return True

    def settle(self, changes: Iterable[ProgressChange]) -> None:
        """Take whole events into account: messages, and what a ledger says was done to what is held."""
        self.look()
        self._project(changes)

    def tell(self) -> tuple[ProgressChange, ...]:
        """What all the others are to be told now; empty when that would help nobody."""
        untold = self._untold
        for (place, time), delta in untold:
            if delta < 0 and not self._stands_in(place, time):
                return tuple([(place, time, delta) for (place, time), delta in untold.drain()])
        return ()

    def _stands_in(self, place: int, time: Timestamp) -> bool:
        """Whether something held here could result in all that what ended could have."""
        leaving = self._leaving
        if place < self._messages:
            return leaving[place].less_equal(time)
        return all(
            leaving[way].less_equal(time if summary is None else summary.results_in(time))
            for way, summary in self._after[(place - self._messages) // self._workers]
        )

    def _project(self, changes: Iterable[ProgressChange]) -> None:
        """Carry changes of what is held on to where it leaves."""
        is_input = self._topology.is_input
        for location, time, delta in changes:
            if is_input[location]:
                continue
            self._epochs.change(time[:1], delta)
            for way, summary in self._exits[location]:
                moved = time if summary is None else summary.results_in(time)
                for element, sign in self._leaving[way].change(moved, delta):
                    self._untold.add((way, element), sign)

    # ---- what happens elsewhere

    def hear(self, batch: Iterable[ProgressChange]) -> None:
        """Take note of what a worker has told; it counts from the next ``look`` on."""
        for place, time, delta in batch:
            self._count(place, time, delta)

    def _count(self, place: int, time: Timestamp, delta: int) -> None:
        if place < self._crossings:
            self._tracker.update(2 * place, time, delta)
        elif place < self._messages:
            self._tracker.update(self._crossings + place, time, delta)
        else:
            crossing, to = divmod(place - self._messages, self._workers)
            self._tracker.update(2 * crossing + 1, time, delta)
            if to == self._me:
                changes = self._coming[crossing].change(time, delta)
                if self._joining is not None:
                    for moved, sign in changes:
                        self._joining.update(2 * crossing + 1, moved, sign)
        self._heard = True

    def could_come(self, port: Location, time: Timestamp) -> bool:
        """Whether something at or before a time may yet come to a port here from another worker."""
        for source, summary in self._entries[port]:
            if summary is not None:
                if any(less_equal(summary.results_in(t), time) for t in self._arriving(source)):
                    return True
            elif source >= self._crossings:
                if self._joined[source - self._crossings].less_equal(time):
                    return True
            elif self._coming[source].less_equal(time) or self._sent[source].less_equal(time):
                return True
        return False

    def coming(self, port: Location) -> Iterator[Timestamp]:
        """The earliest times at which something may yet come to a port here from another worker."""
        for source, summary in self._entries[port]:
            for time in self._arriving(source):
                yield time if summary is None else summary.results_in(time)

    def _arriving(self, source: int) -> Iterator[Timestamp]:
        """What comes out of a crossing, or through a hub, here."""
        if source >= self._crossings:
            yield from self._joined[source - self._crossings].elements
        else:
            yield from self._coming[source].elements
            yield from self._sent[source].elements

    def is_past(self, epoch: int) -> bool:
        """Whether nothing of an epoch, or of one before, is held here or may yet come here.

        What is held here counts as of the last ``settle``.
        """
        if self._epochs.less_equal((epoch,)):
            return False
        return not any(
            time[0] <= epoch
            for crossing in range(self._crossings)
            for time in self._arriving(crossing)
        )


def _links(
    walk: Callable[[Collection[Location]], list[Ways]], ends: Sequence[Location]
) -> list[Links]:
    """For every port, the ends that ways between it and them lead to, by their index."""
    number = {end: at for at, end in enumerate(ends)}
    return [
        [(number[end], _unless_identity(each)) for end, some in ways.items() for each in some]
        for ways in walk(number)
    ]


def _unless_identity(summary: Summary) -> Summary | None:
    return None if summary == Summary.identity(summary.input_depth) else summary
