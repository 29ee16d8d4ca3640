"""Reachability: which times can still arrive at which port, as far as one worker knows.

A *pointstamp* is a location (a port, by its number: ``topology``) and a time at which something is
outstanding: at an input port a message that was sent and is not yet handled; at an output port a
capability, the right to send at that time or later. A node that asks for a *notification* at t, the
call that tells it that t is complete at an input port, keeps a capability until the call: that
capability is the pointstamp of the notification. A pointstamp *could result in* another one if some
path leads from the location of the first to the location of the second, and carries the time of the
first to a time at or before the time of the second. A :class:`Tracker` counts pointstamps and knows,
for every port, the frontier of all that these could result in. In a :class:`Ledger` one worker
writes down what it does to pointstamps; in batches, its entries go to all workers, itself included.

Where a run has several workers, ``engine.schedule`` has a ledger on each of them. ``crossing`` runs
trackers on a smaller graph, of the ports at which rows go from worker to worker. Laws:

- **Capability.** A worker never sends at a time that no capability it holds reaches. ``Ledger.record``
  refuses the event otherwise. (While a worker handles a message, the message gives the same rights
  as a capability would.)
- **Notification.** A notification at t is delivered only when no message at or before t can still
  reach the port, on any worker: when ``not tracker.could_arrive(port, t)``.

The capability that is kept for a notification does not delay the notification itself, if time passes
from the port to the output at which the capability is kept. For if the capability could result in a
message at or before t at the port, there would be a cycle from the port, by way of that output, back
to the port at or before t: *no early return* of ``topology`` excludes that. Where no time passes from
the port to that output (the summary is ``None``, as in a node that waits for several inputs), the
node has to see to it that its capability does not hold up its own notification.

>>> from riverrun.progress import TopologyBuilder
>>> builder = TopologyBuilder()
>>> source = builder.node("source", outputs=[1])
>>> count = builder.node("count", inputs=[1], outputs=[1])
>>> builder.edge(source.outputs[0], count.inputs[0])
>>> topology = builder.build()
>>> start = [(source.outputs[0], (0,))]
>>> ledger, tracker = Ledger(topology, start), Tracker(topology, start)
>>> source.outputs[0], count.inputs[0], count.outputs[0]  # locations
(0, 1, 2)
>>> ledger.record([(count.inputs[0], (0,), 1)])  # sends a message at epoch 0,
>>> ledger.record([(source.outputs[0], (1,), 1), (source.outputs[0], (0,), -1)])  # then moves on
>>> tracker.apply(ledger.take())
{0: [((0,), -1), ((1,), 1)]}
>>> tracker.could_arrive(count.inputs[0], (0,))
True
>>> ledger.record([(count.inputs[0], (0,), -1)])  # the message is handled
>>> tracker.apply(ledger.take())
{1: [((0,), -1), ((1,), 1)], 2: [((0,), -1), ((1,), 1)]}
>>> tracker.could_arrive(count.inputs[0], (0,)), tracker.frontier(count.inputs[0])
(False, Antichain([(1,)]))

Why the protocol is safe
------------------------
What a worker does is a sequence of events. An event handles a message or uses a capability; in one
stroke the event ends some pointstamps (the message handled, capabilities given up) and begins
others, each of which could result from one that the worker held (the *capability* law). The
conditions:

a. a batch is a run of whole, consecutive events of one worker, and is applied as one,
b. the batches of one sender are applied in the order in which they were sent,
c. a capability never moves to another worker (only messages do),
d. all views start with the initial capabilities of all workers.

The *view* V of a worker is all that the worker has applied. By the conditions V is the initial
capabilities and a prefix of every worker's events. Where one worker began a message and another
ended it, V may know the end and not the beginning; so counts may be negative, and the question is
whether a frontier can be wrong.

Several messages or capabilities may have one location and time: each of them is an *instance* of
that pointstamp, and is begun by one event and ended by one.

*Claim.* For every instance whose end V has not seen, be it outstanding or not even begun, there is a
pointstamp with a positive count in V that could result in the instance.

*Proof.* Let p be an instance whose end V has not seen. Call an instance *alive* in V if V has seen
its beginning and not its end. Some instance alive in V could result in p: follow the
causes of p back, event by event, to an initial capability, which is in V. If V has all of these
events, p itself is alive in V. Else take the earliest of these events that V lacks. The event used
an instance that V has seen begin; and V has not seen that instance end, since it ended in that
event, or later on the same worker (a, b, c).

Among the instances alive in V that could result in p, take an instance that none of the others is
strictly before; m is its pointstamp. (The instances are finitely many, and could-result-in is a
partial order: the *no early return* law of ``topology``.) The count of m in V is the number of
instances at m that are alive, less the number of instances at m whose end is in V and whose
beginning is not. Suppose there is an instance of the latter kind. It is no capability: a capability
begins and ends on one worker, so V, which has the end, would have the beginning (b, c). So it is a
message, begun by an event that V lacks. In that event its worker held something at another location,
strictly before m, that could result in m; and as above something alive in V could result in what the
worker held. That alive instance is strictly before m and could result in p, against the choice of m.
So the count of m is the number of its alive instances, at least one. QED.

It follows that the frontier of a view never passes what is outstanding anywhere: hence the
*notification* law. It follows too that the frontier of a view never goes back. For suppose that at
some moment an instance holds the frontier at a time. At any earlier moment the view had not seen the
end of that instance either, so by the claim some pointstamp held the frontier at or before that time.
When nothing is under way a view is exact: every beginning and every end is in it.

How the tracker works
---------------------
For each location the tracker keeps two counted frontiers. ``own`` counts the pointstamps at the
location. ``reach`` counts every time at which something can arrive: once for each element of the
frontier of ``own``, and once for each element of the ``reach`` frontier of each location with an arc
to this one, carried along the arc. When a frontier changes, its changes are carried along the arcs
as changes of counts.

The tracker is right when it comes to rest, because the equations have one solution. An element of a
frontier is there because of a pointstamp, or because of an element of the frontier one arc before,
which is earlier in ``Topology.order``. That order has no infinite descents, so in the end every
element is there because of a pointstamp, and nothing can keep itself alive around a cycle.

The tracker comes to rest, because it handles changes in that order, and first sums up the changes
for the same location and time. Why that is needed: take the end of a message in a loop at round 3.
The frontier of the loop loses 3. Since 3 had been carried around the loop, 4 then appears as the
least round, though no message is there that could come at 4: the 4 is taken back when the loss of 3
has come around. Handled one by one, lost rounds and rounds that appear would chase each other for
ever. In our order a change causes only changes later than itself. So when
the turn of a (location, time) comes, all changes for it have been summed up: the change applied is
the difference between the old solution and the new one, and each (location, time) has one turn. Both
solutions are finite. Changes that cancel are dropped, and with them all that they would cause.

Where there is no loop, every time is an epoch and stays the same along every arc. Then one walk over
the ports solves the same equations: the least epoch that can arrive at a port is the least of the
epochs at the port itself and of the epochs that can arrive at the ports before it.

Cost: about 5 us for each port whose frontier moves (a message once around a loop of six nodes,
propagated at every hop: 70 us). A change that moves no frontier costs a dictionary update.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from typing import TypeAlias

from riverrun.errors import PlanError, TimeViolation

from .frontier import Antichain, CountedFrontier, Counts, FrontierChange
from .summary import Summary
from .timestamp import Timestamp, as_timestamp, check_depth, less_equal
from .topology import Location, Topology

__all__ = ["Ledger", "Pointstamp", "ProgressChange", "Tracker"]

Pointstamp: TypeAlias = tuple[Location, Timestamp]

ProgressChange: TypeAlias = tuple[Location, Timestamp, int]
"""A location, a time, and how many more (or fewer) pointstamps are outstanding there."""

_MAX_CHECKED = 4096  # how many times are remembered as well-formed

Causes: TypeAlias = list[tuple[Location, list[tuple[Location, Summary | None]]]]
"""Outputs, each with the inputs of its node from which time passes to it, and the summary; None for the identity."""


class Tracker:
    """Counts pointstamps, and works out from the counts which times can still arrive at which port.

    ``initial`` are the pointstamps that are outstanding at the start, on all workers.

    >>> from riverrun.progress import TopologyBuilder
    >>> builder = TopologyBuilder()
    >>> back = builder.feedback("back", 2)
    >>> body = builder.node("body", inputs=[2], outputs=[2])
    >>> builder.edge(body.outputs[0], back.inputs[0])
    >>> builder.edge(back.outputs[0], body.inputs[0])
    >>> tracker = Tracker(builder.build())
    >>> tracker.update(body.inputs[0], (0, 3), 1)
    >>> tracker.propagate()[body.inputs[0]]
    [((0, 3), 1)]
    >>> tracker.frontier(back.outputs[0])
    Antichain([(0, 4)])
    >>> tracker.update(body.inputs[0], (0, 3), -1)
    >>> tracker.propagate()[body.inputs[0]]
    [((0, 3), -1)]
    """

    __slots__ = ("_arcs", "_checked", "_order", "_own", "_pending", "_reach", "_walk", "topology")

    def __init__(self, topology: Topology, initial: Iterable[Pointstamp] = ()) -> None:
        self.topology = topology
        self._order = topology.order
        self._own = [CountedFrontier() for _ in topology.depths]
        self._reach = [CountedFrontier() for _ in topology.depths]
        self._pending: dict[Pointstamp, int] = {}
        self._checked: set[Timestamp] = set()
        # Most summaries change nothing; None in their place saves a call.
        self._arcs: list[list[tuple[Location, Summary | None]]] = [
            [(to, None if s == Summary.identity(depth) else s) for to, s in arcs]
            for depth, arcs in zip(topology.depths, topology.arcs, strict=True)
        ]
        self._walk = self._without_loops()
        for location, time in initial:
            self.update(location, time, 1)
        self.propagate()

    def _without_loops(self) -> list[tuple[Location, tuple[Location, ...]]] | None:
        """All ports in order, each with the ports one arc before it; None if some arc changes times."""
        topology = self.topology
        if any(depth != 1 for depth in topology.depths):
            return None
        if any(summary is not None for arcs in self._arcs for _, summary in arcs):
            return None
        ordered = sorted(range(len(topology.depths)), key=lambda at: self._order(at, (0,)))
        return [(at, tuple([source for source, _ in topology.back[at]])) for at in ordered]

    def update(self, location: Location, time: Timestamp, delta: int) -> None:
        """Add ``delta`` to the count of a pointstamp; the change takes effect with ``propagate``."""
        pointstamp, pending = (location, time), self._pending
        if pointstamp in pending:
            pending[pointstamp] += delta
        else:
            _check(self.topology, location, time, self._checked)
            pending[pointstamp] = delta

    def apply(self, batch: Iterable[ProgressChange]) -> dict[Location, list[FrontierChange]]:
        """Apply a batch from a :class:`Ledger` as one, and propagate.

        >>> from riverrun.progress import TopologyBuilder
        >>> builder = TopologyBuilder()
        >>> (port,) = builder.node("sink", inputs=[1]).inputs
        >>> Tracker(builder.build()).apply([(port, (0,), 1), (port, (2,), 1), (port, (0,), -1)])
        {0: [((2,), 1)]}
        """
        for location, time, delta in batch:
            self.update(location, time, delta)
        return self.propagate()

    def propagate(self) -> dict[Location, list[FrontierChange]]:
        """Let updates take effect; return the changes of the frontier for each port whose frontier changed."""
        if not self._pending:
            return {}
        pending, self._pending = self._pending, {}
        if self._walk is not None:
            return self._propagate_along(self._walk, pending)
        order, reach, arcs_of = self._order, self._reach, self._arcs
        # The summed changes whose turn has not come, and the order of these turns.
        work: dict[Pointstamp, int] = {}
        turns: list[tuple[tuple[int, ...], Pointstamp]] = []
        for (location, time), delta in pending.items():
            if delta:
                for moved, sign in self._own[location].change(time, delta):
                    pointstamp = location, moved
                    if pointstamp in work:
                        work[pointstamp] += sign
                    else:
                        work[pointstamp] = sign
                        turns.append((order(location, moved), pointstamp))
        heapify(turns)
        changed: dict[Location, dict[Timestamp, int]] = {}
        while turns:
            pointstamp = heappop(turns)[1]
            delta = work.pop(pointstamp)
            if not delta:
                continue
            location, time = pointstamp
            changes = reach[location].change(time, delta)
            if not changes:
                continue
            net = changed.setdefault(location, {})
            for moved, sign in changes:
                net[moved] = net.get(moved, 0) + sign
            for target, summary in arcs_of[location]:
                for moved, sign in changes:
                    if summary is not None:
                        moved = summary.results_in(moved)
                    pointstamp = target, moved
                    if pointstamp in work:
                        work[pointstamp] += sign
                    else:
                        work[pointstamp] = sign
                        heappush(turns, (order(target, moved), pointstamp))
        result = {}
        for location, net in changed.items():
            frontier_changes = [(time, sign) for time, sign in net.items() if sign]
            if frontier_changes:
                result[location] = frontier_changes
        return result

    def _propagate_along(
        self, walk: list[tuple[Location, tuple[Location, ...]]], pending: dict[Pointstamp, int]
    ) -> dict[Location, list[FrontierChange]]:
        """The same where no arc changes times: frontiers then have at most one element."""
        own, reach = self._own, self._reach
        moved = {
            location
            for (location, time), delta in pending.items()
            if delta and own[location].change(time, delta)
        }
        changed: dict[Location, list[FrontierChange]] = {}
        if not moved:
            return changed
        for location, sources in walk:
            if location not in moved and changed.keys().isdisjoint(sources):
                continue
            candidates = [*own[location].elements]
            for source in sources:
                candidates += reach[source].elements
            old, new = reach[location].elements, [min(candidates)] if candidates else []
            if old != new:
                changed[location] = [(time, -1) for time in old] + [(time, 1) for time in new]
                reach[location].hold(new)
        return changed

    def frontier(self, location: Location) -> Antichain:
        """Return the times that can still arrive at an input, or be sent from an output."""
        _check_place(self.topology, location)
        return self._reach[location].frontier

    def could_arrive(self, location: Location, time: Timestamp) -> bool:
        """Whether something at or before ``time`` can still arrive at an input, or be sent from an output.

        At a port inside a loop ``time`` has a round too; whether a whole epoch is complete is asked at a port outside.
        """
        _check(self.topology, location, time, set())
        return self._reach[location].less_equal(time)

    def reach(self, location: Location) -> CountedFrontier:
        """Return the counted frontier behind ``frontier`` itself: it goes on to change with every ``propagate``."""
        _check_place(self.topology, location)
        return self._reach[location]

    def outstanding(self) -> dict[Pointstamp, int]:
        """Return the counts of pointstamps that are not zero, as of the last ``propagate``."""
        return {
            (location, time): count for location, own in enumerate(self._own) for time, count in own
        }


class Ledger:
    """The capabilities that one worker holds, and what the worker has done since ``take`` was last called.

    ``held`` are the capabilities with which this worker starts.

    >>> from riverrun.progress import TopologyBuilder
    >>> builder = TopologyBuilder()
    >>> source = builder.node("source", outputs=[1])
    >>> sink = builder.node("sink", inputs=[1])
    >>> builder.edge(source.outputs[0], sink.inputs[0])
    >>> ledger = Ledger(builder.build(), held=[(source.outputs[0], (3,))])
    >>> ledger.record([(sink.inputs[0], (3,), 1)])
    >>> ledger.record([(sink.inputs[0], (2,), 1)])
    Traceback (most recent call last):
    ...
    riverrun.errors.TimeViolation: cannot send to input 0 of 'sink' at (2,): ...
    Hint: send before the capability is released or moved on, or at a later time
    >>> ledger.take()
    ((1, (3,), 1),)
    """

    __slots__ = ("_causes", "_checked", "_held", "_topology", "_untold")

    def __init__(self, topology: Topology, held: Iterable[Pointstamp] = ()) -> None:
        self._topology = topology
        self._held = [CountedFrontier() for _ in topology.depths]
        self._causes: dict[Location, Causes] = {}
        self._checked: set[Timestamp] = set()  # times that were found well-formed lately
        self._untold: Counts[Pointstamp] = Counts()
        for location, time in held:
            _check(topology, location, time, self._checked)
            self._held[location].change(time, 1)

    def record(self, event: Iterable[ProgressChange]) -> None:
        """Write down one whole event: what the event ended (-1) and what it began (+1), in any order.

        At an input, -1 is a message that this worker handled and +1 a message that this worker sent, to
        whichever worker. 0 is a message that was both sent and handled in this event: no other worker
        hears of it, but it has to keep the *capability* law. At an output, +1 and -1 are capabilities of
        this worker. An event that breaks the *capability* law, or ends a capability that is not held, is
        refused, and nothing of the event is written. (A ledger cannot see whether a message that was
        handled was ever sent.)
        """
        topology, checked, held = self._topology, self._checked, self._held
        is_input = topology.is_input
        begun: dict[Pointstamp, None] = {}
        handled: dict[Location, list[Timestamp]] = {}
        net: dict[Pointstamp, int] = {}
        for location, time, delta in event:
            pointstamp = location, time
            _check(topology, location, time, checked)
            if delta <= 0 and is_input[location]:
                handled.setdefault(location, []).append(time)
            if delta >= 0:
                begun[pointstamp] = None
            if delta:
                net[pointstamp] = net.get(pointstamp, 0) + delta
        for location, time in begun:
            if not self._may_begin(location, time, handled):
                raise self._refused(location, time, begins=True)
        for (location, time), delta in net.items():
            if delta < 0 and not is_input[location] and held[location].count(time) < -delta:
                raise self._refused(location, time, begins=False)
        for pointstamp, delta in net.items():
            if delta:
                self._untold.add(pointstamp, delta)
                location, time = pointstamp
                if not is_input[location]:
                    held[location].change(time, delta)

    def _may_begin(
        self, location: Location, time: Timestamp, handled: dict[Location, list[Timestamp]]
    ) -> bool:
        """Whether the *capability* law allows a pointstamp: by what is held, or by a message handled in this event."""
        for output, inputs in self._causes.get(location) or self._before(location):
            if self._held[output].less_equal(time):
                return True
            for source, summary in inputs:
                if source in handled:
                    for t in handled[source]:
                        if less_equal(t if summary is None else summary.results_in(t), time):
                            return True
        return False

    def _before(self, location: Location) -> Causes:
        """The outputs that can begin something at a port (an output: itself), with the inputs that lead to them."""
        back = self._topology.back
        into = self._topology.is_input[location]
        outputs = [source for source, _ in back[location]] if into else [location]
        causes = self._causes[location] = [
            (
                output,
                [
                    (at, None if s == Summary.identity(s.input_depth) else s)
                    for at, s in back[output]
                ],
            )
            for output in outputs
        ]
        return causes

    def _refused(self, location: Location, time: Timestamp, *, begins: bool) -> TimeViolation:
        place = self._topology.describe(location)
        if not begins:
            message = f"cannot release a capability for {place} at {time}: none is held there"
            hint = "release a capability once, at the time for which it is held"
        elif self._topology.is_input[location]:
            message = (
                f"cannot send to {place} at {time}: no capability held by the sender reaches it"
            )
            hint = "send before the capability is released or moved on, or at a later time"
        else:
            message = f"cannot take a capability for {place} at {time}: nothing held reaches it"
            hint = "take it while handling a message, or from one held, at that time or later"
        return TimeViolation(
            "time.not_held",
            message,
            hint=hint,
            place=place,
            time=time,
            held={self._topology.describe(at): t for at, t in self.held()},
        )

    def held(self) -> list[Pointstamp]:
        """Return the capabilities held now, each pointstamp once.

        >>> from riverrun.progress import TopologyBuilder
        >>> builder = TopologyBuilder()
        >>> (port,) = builder.node("source", outputs=[1]).outputs
        >>> Ledger(builder.build(), [(port, (3,)), (port, (3,)), (port, (5,))]).held()
        [(0, (3,)), (0, (5,))]
        """
        return [(location, time) for location, held in enumerate(self._held) for time, _ in held]

    def take(self) -> tuple[ProgressChange, ...]:
        """Return all changes since the last ``take``, to be sent to all workers; maybe none.

        The batch is a run of whole events (conditions a and b above); so changes that cancel inside of it
        are left out.
        """
        return tuple([(location, time, delta) for (location, time), delta in self._untold.drain()])


def _check(
    topology: Topology, location: Location, time: Timestamp, checked: set[Timestamp]
) -> None:
    """Refuse a location that is no port, and a time that does not fit there.

    ``checked`` are times that were found well-formed lately.
    """
    if (
        time in checked
        and location.__class__ is int
        and 0 <= location < len(topology.depths)
        and len(time) == topology.depths[location]
    ):
        return
    _check_place(topology, location)
    if len(time) != topology.depths[location]:
        place = topology.describe(location)
        check_depth([time], topology.depths[location], f"count or ask for a time at {place}")
    for coordinate in time:
        if coordinate.__class__ is not int or coordinate < 0:
            as_timestamp(time, f"count or ask for a time at {topology.describe(location)}")
            break
    if len(checked) >= _MAX_CHECKED:
        checked.clear()
    checked.add(time)


def _check_place(topology: Topology, location: Location) -> None:
    if location.__class__ is not int or not 0 <= location < len(topology.depths):
        raise PlanError(
            "plan.port",
            f"cannot find port {location!r}: the topology has the ports 0 to {len(topology.depths) - 1}",
            hint="take a port from the inputs or outputs of what node() returned",
            port=location,
        )
