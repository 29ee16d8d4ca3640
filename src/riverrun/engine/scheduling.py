"""Which actor is run next, and at which time.

An actor that was given changes asks to be run at their times, and holds the right to send at those
times until it has been run: a capability. It may be run at t when nothing that is outstanding could
still bring it a change at or before t (law 2 of DESIGN). Two ways to know:

- :class:`Alone`: with one worker everything outstanding is here, and the least request, in an order
  that extends could-result-in (``Topology.order``), has nothing before it. A heap is enough.
- :class:`Together`: with several, each worker writes down what it does in a ``Ledger`` and tells all;
  a ``Tracker`` knows what can still arrive. Every hop is written down, so law 1 is checked too.

An actor is run at t with an `upper`: no change at a time that is not at or after it will come any
more. Alone, times at a port come in lexicographic order, so that is what comes after t in that
order.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from riverrun.engine.plan import Plan
from riverrun.progress import Antichain, Ledger, Timestamp, Tracker
from riverrun.progress.reachability import Pointstamp, ProgressChange

if TYPE_CHECKING:
    from riverrun.engine.operator import Actor

Turn = tuple["Actor", Timestamp, Antichain]


class Alone:
    """The schedule of a worker that has no peers."""

    def __init__(self, plan: Plan, epoch: int) -> None:
        self._topology = plan.topology
        self._order = plan.topology.order
        self._sources = plan.sources
        self._fed = epoch
        self._outputs = [ports.outputs[0] if ports else -1 for ports in plan.ports]
        self._summaries = [
            node.operator.summary(node.depth) if node.operator.is_feedback else None
            for node in plan.nodes
        ]
        self._heap: list[tuple[tuple[int, ...], int, Timestamp]] = []
        self._actors: dict[int, Actor] = {}
        self.completed = epoch

    def request(self, actor: Actor, time: Timestamp) -> None:
        """Have `actor` run at `time`."""
        number = actor.node.number
        self._actors[number] = actor
        summary = self._summaries[number]
        held = time if summary is None else summary.results_in(time)
        # What can still reach any of its inputs comes before its output, in this order.
        heappush(self._heap, (self._order(self._outputs[number], held), number, time))

    def next(self) -> Turn | None:
        """The next to be run, if any."""
        if not self._heap:
            return None
        _, number, time = heappop(self._heap)
        return self._actors[number], time, after(time)

    def ran(self, actor: Actor, time: Timestamp) -> None:
        """`actor` has been run at `time`."""

    def frontier(self, location: int) -> Antichain:
        """The times that can still come to a port. Looked up from all that is outstanding: for people."""
        outstanding: list[Pointstamp] = [(source, (self._fed,)) for source in self._sources]
        for _, number, time in self._heap:
            summary = self._summaries[number]
            held = time if summary is None else summary.results_in(time)
            outstanding.append((self._outputs[number], held))
        return Tracker(self._topology, outstanding).frontier(location)

    def close(self, epoch: int) -> None:
        """All input of `epoch` has been fed."""
        self._fed = epoch + 1

    def settle(self) -> None:
        """Take note of what has happened so far."""
        if not self._heap and self._fed > self.completed:
            self.completed = self._fed


@lru_cache(maxsize=1024)  # several actors are run at one time
def after(time: Timestamp) -> Antichain:
    """The frontier of all times that come after `time` in lexicographic order.

    >>> after((2, 5))
    Antichain([(2, 6), (3, 0)])
    """
    depth = len(time)
    return Antichain([(*time[:at], time[at] + 1, *(0,) * (depth - at - 1)) for at in range(depth)])


class Together:
    """The schedule of one of several workers."""

    def __init__(self, plan: Plan, epoch: int, workers: int) -> None:
        topology = plan.topology
        self._plan = plan
        self._ports = plan.ports
        sources = plan.sources
        mine = [(location, (epoch,)) for location in sources]
        self._sources = sources
        self._ledger = Ledger(topology, mine)
        self._tracker = Tracker(topology, mine * workers)
        self._event: list[ProgressChange] = []
        self._pending: dict[int, tuple[Actor, set[Timestamp]]] = {}
        self.untold: list[tuple[ProgressChange, ...]] = []
        """What the other workers are to be told."""
        self.completed = epoch

    def request(self, actor: Actor, time: Timestamp) -> None:
        """Have `actor` run at `time`; until then it may send at that time."""
        self._hold(actor, time, 1)
        self._pending.setdefault(actor.node.number, (actor, set()))[1].add(time)

    def _hold(self, actor: Actor, time: Timestamp, delta: int) -> None:
        """Take (1) or give up (-1) the right to send at a time from each output."""
        ports = self._ports[actor.node.number]
        assert ports is not None
        summary = actor.node.operator.summary(len(time))
        held = time if summary is None else summary.results_in(time)
        self._event += [(location, held, delta) for location in ports.outputs]

    def passes(self, location: int, times: Iterable[Timestamp]) -> None:
        """Changes pass a port, on their way, on this worker."""
        for time in times:
            self._event.append((location, time, 1))
            self._event.append((location, time, -1))

    def sends(self, location: int, times: Iterable[Timestamp]) -> None:
        """A message is on its way to a port, on another worker."""
        for time in times:
            self._event.append((location, time, 1))

    def takes(self, location: int, times: Iterable[Timestamp]) -> None:
        """A message from another worker is handled."""
        for time in times:
            self._event.append((location, time, -1))

    def next(self) -> Turn | None:
        """The next to be run, if any."""
        best: tuple[tuple[int, ...], Actor, Timestamp] | None = None
        for number, (actor, times) in self._pending.items():
            if not times:
                continue
            ports = self._ports[number]
            assert ports is not None
            location = ports.inputs[0]
            time = min(times)
            for time in sorted(times):
                waits = actor.waits and any(
                    self._tracker.could_arrive(port, time) for port in ports.inputs
                )
                if not waits:
                    order = self._plan.topology.order(location, time)
                    if best is None or order < best[0]:
                        best = order, actor, time
                    break
        if best is None:
            return None
        _, actor, time = best
        times = self._pending[actor.node.number][1]
        times.discard(time)
        return actor, time, self._upper(actor, time, times)

    def _upper(self, actor: Actor, time: Timestamp, waiting: set[Timestamp]) -> Antichain:
        """What can still arrive, or has arrived and is not complete.

        All of the next epoch, even where its first rounds cannot be reached: states end at its start
        when this one is complete.
        """
        ports = self._ports[actor.node.number]
        assert ports is not None
        times: set[Timestamp] = {*waiting, (time[0] + 1, *(0,) * (len(time) - 1))}
        for port in ports.inputs:
            times.update(self._tracker.frontier(port))
        return Antichain(times)

    def ran(self, actor: Actor, time: Timestamp) -> None:
        """`actor` has been run at `time`, and gives up the right to send at it."""
        self._hold(actor, time, -1)

    def frontier(self, location: int) -> Antichain:
        """The times that can still come to a port, as far as is known here."""
        return self._tracker.frontier(location)

    def close(self, epoch: int) -> None:
        """All input of `epoch` has been fed."""
        for location in self._sources:
            self._event.append((location, (epoch,), -1))
            self._event.append((location, (epoch + 1,), 1))

    def settle(self) -> None:
        """End an event: write it down, and let it be told."""
        if not self._event:
            return
        event, self._event = self._event, []
        self._ledger.record(event)
        batch = self._ledger.take()
        if batch:
            self.untold.append(batch)
            self.apply(batch)

    def apply(self, batch: Iterable[ProgressChange]) -> None:
        """Take note of what a worker has told."""
        tracker = self._tracker
        tracker.apply(batch)
        # All input of an epoch is fed before any of it is complete: the inputs are the first to move on.
        for location in (*self._sources, *range(len(self._plan.topology.depths))):
            for time in tracker.frontier(location):
                if time[0] <= self.completed:
                    return
        self.completed += 1
