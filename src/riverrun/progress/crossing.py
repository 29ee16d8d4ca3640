"""Crossings: the progress protocol among workers, who tell each other only what crosses between them.

Most ports of a dataflow are a worker's own business: what happens there concerns other workers only when it leads to
a message for them. Messages go from worker to worker at few nodes, the *crossings* (exchanges that move rows). On each
of several workers, ``engine.schedule`` has a :class:`Border`: it says what this worker tells the others, and works out
from what they tell which times can still come to a port from another worker. Workers tell each other three things,
and nothing of what lies between crossings:

- the *leaving frontier* of each crossing: the earliest times at which something that this worker holds may still be
  sent into the crossing;
- each message that was sent, with the worker it is for, the crossing and the time;
- each message that was handled.

What this worker holds itself is not in its border: the schedule knows that, and runs it in order.

Why it is right
---------------
*It is the protocol of* ``reachability``, on a smaller graph (``Topology.contracted``). In that graph the input of a
crossing holds the rights to send into the crossing, and the output of a crossing holds its messages on their way. The
proof there needs three things. First, everything that an event begins could result from something that the worker
had. A new element of a leaving frontier belongs to a capability; either the capability came of something held before
or of a message handled, whose times at every crossing are at or before its own; or the element was hidden behind an
element that ended. And a message is sent by right of what is held. Second (condition a), a batch is the total change
of a run of whole events. Third (condition c), a leaving frontier is never another worker's. Hence the claim of
``reachability``: for everything whose end a view has not seen, there is a pointstamp with a positive count that could
result in it.

*Messages for other workers do not hold up what happens here.* All messages count alike for what they can lead to. But
of the messages already on their way, only those for this worker can arrive here. So what can come out of a crossing
*here* is what any worker can still send into the crossing, and the messages for this worker. (Take a finer view, in
which messages for here and messages for elsewhere are counted apart. If a message for here has a positive count in the
finer view, the border sees it. Otherwise the message, as far as the view knows, is still to be sent by right of some
pointstamp q whose end has not been seen. By the claim for the coarser view, which adds both kinds of messages up, a
pointstamp with a positive count there could result in q.) So a round of a
loop with one exchange takes one hop: the messages sent in the round, and the news that nothing more will be sent in
it, travel together.

*Hubs.* Where many ports lead into one port, and that port leads to many crossings, there are as many ways as pairs.
Such a port, a *hub*, stands in for all crossings behind it: what is held before the hub counts as a right to reach the
hub, until the hub has been passed. Every path from what is held to a crossing comes to a hub or a crossing first, and
goes on from a hub in the same manner, so all that was said of leaving frontiers holds with hubs among the crossings.
The same is done on the ways from crossings: a hub there knows, by a tracker of its own, what can come to a port that
many crossings lead to.

*An epoch ends on each worker by itself*: when this worker holds nothing of the epoch, and nothing of it can come out of
any crossing here. When the epoch has ended on all workers, nothing of it is left anywhere. ``engine.coordinator``
counts the workers on which an epoch has ended; the workers need not tell each other.

When a worker tells
-------------------
:meth:`Border.tell` gives a batch when something ended for which nothing held here stands in: at some crossing, a time
that this worker held back before can be passed. Otherwise changes go on adding up, and rights that begin and end in
between are never heard of. ``tell`` may be called between any two events, and must be called when a worker is at rest.
To call it while there is more to do lets the other workers go on meanwhile: if they told only at rest, two workers
would take turns in a loop, each two rounds ahead and then waiting for the other.

*Nobody waits in vain.* Suppose all workers are at rest, no batch or message is on its way, and something is
outstanding. Of all notifications that are asked for take one, at p, that nothing else outstanding could result in.
Suppose it does not come. Then in its worker's view something that could result in p has not ended; in truth that has
ended, on some worker that did not tell. So this other worker holds something that stands in for what ended. What it
holds is outstanding and could result in p, since whatever comes to another worker does so through a crossing. That is
against the choice of p. The same argument, with the end of an epoch on a worker for p, shows that an epoch ends on
every worker when nothing of it is outstanding.

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
>>> one.sends(0, to=1, times=[(0,)])  # the message that was recorded, and the worker that it is for
>>> one.settle(ledger.take())
>>> batch = one.tell()
>>> two.could_come(count.inputs[0], (0,))
True
>>> two.hear(batch)
>>> two.catch_up(), two.could_come(count.inputs[0], (0,))  # there is a message
(True, True)
>>> two.takes(0, times=[(0,)])
>>> two.catch_up()
True
>>> two.could_come(count.inputs[0], (0,)), two.could_come(count.inputs[0], (1,))
(False, True)

Cost: 1 to 3 us for each change of what is held and for each message, where these have not cancelled. All that is heard
between two calls of ``catch_up`` is one walk of a tracker over the crossings. Making a border takes time linear in the
number of arcs, times the most ways of a port (`MAX_WAYS`).
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

MAX_WAYS = 16
"""A port with more ways to crossings than this, or with more ways from crossings, is a hub."""

Links: TypeAlias = list[tuple[int, Summary | None]]
"""Crossings and hubs by their index, each with the summary of a way to it or from it; None for the identity."""


class Border:
    """The progress of the other workers, as far as worker `me` knows it, and the news that `me` has yet to tell them.

    ``crossings`` are nodes with one input and one output, which time passes unchanged. ``held`` are, for each worker,
    the capabilities with which it starts. ``max_ways`` bounds the ways of a port, by hubs.

    A batch consists of (place, time, delta). With c crossings, h hubs and w workers, place n < c is the right to send
    into crossing n, place c + n the right to reach hub n, and place c + h + n * w + k a message at crossing n for
    worker k.
    """

    def __init__(
        self,
        topology: Topology,
        crossings: Sequence[NodePorts],
        me: int,
        held: Sequence[Sequence[Pointstamp]],
        max_ways: int = MAX_WAYS,
    ) -> None:
        self._topology = topology
        self._workers = len(held)
        self._me = me
        self._crossings = len(crossings)
        inputs = [node.inputs[0] for node in crossings]
        outputs = [node.outputs[0] for node in crossings]
        ports = {*inputs, *outputs}
        hubs = [port for port in topology.hubs(inputs, max_ways) if port not in ports]
        self._messages = len(crossings) + len(hubs)
        """The first place that stands for messages."""
        self._exits = _links(topology.ways, [*inputs, *hubs])
        """For every port, the crossings and hubs to which ways lead from it."""
        joins = [port for port in topology.hubs_from(outputs, max_ways) if port not in ports]
        self._entries = _links(topology.ways_from, [*outputs, *joins])
        """For every port, the crossings and hubs from which ways lead to it."""
        self._after = [self._exits[port] for port in outputs]
        """For every crossing, the crossings and hubs to which ways lead from its output."""
        # What this worker holds, and the messages on their way to it.
        self._leaving: list[CountedFrontier] = []
        """The leaving frontiers of the crossings, then of the hubs."""
        self._epochs = CountedFrontier()  # the epochs of all that is held
        self._incoming = [CountedFrontier() for _ in crossings]
        """For every crossing, the times of messages for this worker."""
        self._uncounted: list[ProgressChange] = []  # messages sent and handled since `catch_up`
        self._untold: Counts[Pointstamp] = Counts()
        # All workers. The ports of this tracker: 2n and 2n + 1 are input and output of crossing n, then come the hubs.
        self._tracker = Tracker(topology.contracted(crossings, hubs))
        self._sendable = [self._tracker.reach(2 * at) for at in range(len(crossings))]
        """For every crossing, the times at which some worker may still send into it."""
        # From the outputs of crossings to the hubs on the ways behind them.
        self._joining = (
            Tracker(topology.contracted(crossings, joins, cut=inputs)) if joins else None
        )
        self._joined = [
            self._joining.reach(2 * len(crossings) + at)
            for at in range(len(joins))
            if self._joining
        ]
        self._tracker_lags = False  # whether changes were counted since the tracker was propagated
        for worker in (*range(me), *range(me + 1, len(held)), me):  # this worker last
            self._leaving = [CountedFrontier() for _ in range(self._messages)]
            self._epochs = CountedFrontier()
            self._project((location, time, 1) for location, time in held[worker])
            changes = self._untold.drain()
            if worker != me:
                self.hear([(place, time, delta) for (place, time), delta in changes])
        self.catch_up()

    # ---- what happens here

    def sends(self, crossing: int, to: int, times: Iterable[Timestamp]) -> None:
        """This worker has sent messages at ``times`` to worker ``to``."""
        place = self._messages + crossing * self._workers + to
        self._uncounted += [(place, time, 1) for time in times]

    def takes(self, crossing: int, times: Iterable[Timestamp]) -> None:
        """This worker has handled messages at ``times`` from another worker."""
        place = self._messages + crossing * self._workers + self._me
        self._uncounted += [(place, time, -1) for time in times]

    def catch_up(self) -> bool:
        """Take into account the messages sent and handled here, and all that was heard; whether there was anything.

        To be called before ``could_come`` and ``coming``, since a message that was sent may cause another to come
        back. All that has gathered is taken into account at once: a message whose beginning was heard of, and whose
        end is our own, cancels and costs next to nothing.
        """
        if self._uncounted:
            for place, time, delta in self._uncounted:
                self._untold.add((place, time), delta)
                self._count(place, time, delta)
            self._uncounted.clear()
        if not self._tracker_lags:
            return False
        self._tracker_lags = False
        changed = self._tracker.propagate()
        if self._joining is not None:
            for crossing in range(self._crossings):
                for time, sign in changed.get(2 * crossing, ()):
                    self._joining.update(2 * crossing + 1, time, sign)
            self._joining.propagate()
        return True

    def settle(self, changes: Iterable[ProgressChange]) -> None:
        """Take whole events of this worker into account: messages sent and handled, and ``changes`` from its ledger."""
        self.catch_up()
        self._project(changes)

    def tell(self) -> tuple[ProgressChange, ...]:
        """Return the batch that all other workers are to be told now; empty when it would help nobody."""
        untold = self._untold
        for (place, time), delta in untold:
            if delta < 0 and not self._stands_in(place, time):
                return tuple([(place, time, delta) for (place, time), delta in untold.drain()])
        return ()

    def _stands_in(self, place: int, time: Timestamp) -> bool:
        """Whether something held here could result in all that could result from `time` at `place`, which has ended."""
        leaving = self._leaving
        if place < self._messages:
            return leaving[place].less_equal(time)
        return all(
            leaving[way].less_equal(time if summary is None else summary.results_in(time))
            for way, summary in self._after[(place - self._messages) // self._workers]
        )

    def _project(self, changes: Iterable[ProgressChange]) -> None:
        """Carry changes of what this worker holds on to the leaving frontiers."""
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
        """Take note of the batch of another worker; it counts from the next ``catch_up`` on."""
        for place, time, delta in batch:
            self._count(place, time, delta)

    def _count(self, place: int, time: Timestamp, delta: int) -> None:
        """Add a change of a batch, of this worker or another, to the tracker."""
        if place < self._crossings:
            self._tracker.update(2 * place, time, delta)
        elif place < self._messages:
            self._tracker.update(self._crossings + place, time, delta)
        else:
            crossing, to = divmod(place - self._messages, self._workers)
            self._tracker.update(2 * crossing + 1, time, delta)
            if to == self._me:
                changes = self._incoming[crossing].change(time, delta)
                if self._joining is not None:
                    for moved, sign in changes:
                        self._joining.update(2 * crossing + 1, moved, sign)
        self._tracker_lags = True

    def could_come(self, port: Location, time: Timestamp) -> bool:
        """Whether something at or before ``time`` may yet come to a port of this worker from another worker."""
        for source, summary in self._entries[port]:
            if summary is not None:
                if any(less_equal(summary.results_in(t), time) for t in self._arriving(source)):
                    return True
            elif source >= self._crossings:
                if self._joined[source - self._crossings].less_equal(time):
                    return True
            elif self._incoming[source].less_equal(time) or self._sendable[source].less_equal(time):
                return True
        return False

    def coming(self, port: Location) -> Iterator[Timestamp]:
        """The earliest times at which something may yet come to a port of this worker from another worker."""
        for source, summary in self._entries[port]:
            for time in self._arriving(source):
                yield time if summary is None else summary.results_in(time)

    def _arriving(self, source: int) -> Iterator[Timestamp]:
        """The earliest times at which something may come out of a crossing, or through a hub, on this worker."""
        if source >= self._crossings:
            yield from self._joined[source - self._crossings].elements
        else:
            yield from self._incoming[source].elements
            yield from self._sendable[source].elements

    def is_past(self, epoch: int) -> bool:
        """Whether this worker holds nothing of ``epoch`` or an epoch before, and nothing of them may yet come here.

        What this worker holds counts as of the last ``settle``.
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
    """For every port, the ways that ``walk`` finds between it and ``ends``: the index of the end, and the summary."""
    number = {end: at for at, end in enumerate(ends)}
    return [
        [
            (number[end], _unless_identity(summary))
            for end, summaries in ways.items()
            for summary in summaries
        ]
        for ways in walk(number)
    ]


def _unless_identity(summary: Summary) -> Summary | None:
    return None if summary == Summary.identity(summary.input_depth) else summary
