"""Which actor is run next, and at which time.

An actor that was given changes asks to be run at their times, and holds the right to send at those
times until it has been run: a capability. It may be run at t when nothing that is outstanding could
still bring it a change at or before t (law 2 of DESIGN). That is what a :class:`Schedule` answers, and an instance
asks nothing else. Two ways to know:

- :class:`Alone`: with one worker everything outstanding is here, and the least request, in an order
  that extends could-result-in (``Topology.order``), has nothing before it. A heap is enough.
- :class:`Together`: with several, each worker writes down what it does in a ``Ledger``, every hop of it, so
  law 1 is checked too. They tell each other what crosses between them (``Border``); each knows from that
  what can still come from elsewhere, and from its own heap what can come from here.

An actor is run at t with an `upper`: no change at a time that is not at or after it will come any
more. Alone, times at a port come in lexicographic order, so that is what comes after t in that
order.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import lru_cache, partial
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, ClassVar

from riverrun.errors import BadMessage
from riverrun.plan.operator import Role
from riverrun.plan.placement import staying
from riverrun.plan.plan import Plan, Port
from riverrun.progress import (
    Antichain,
    Border,
    Ledger,
    NodePorts,
    Timestamp,
    Tracker,
)
from riverrun.progress.reachability import Pointstamp, ProgressChange

if TYPE_CHECKING:
    from riverrun.plan.operator import Actor

Turn = tuple["Actor", Timestamp, Antichain]
_NOWHERE = NodePorts("", (), ())


class Schedule(ABC):
    """Which actor is run next, and what is told of that, and heard of it, between workers.

    Laws: **Least first.** `next` gives what may be run by law 2 of DESIGN, and each request once. **Complete.**
    `completed` grows to e when nothing of the epochs before e is left, here or on its way here, and none of them can
    come any more; it is looked at after `settle`, and after `tell`. **Silence alone.** A schedule without peers has
    nothing watched, nothing cross, and nothing to tell.
    """

    has_peers: ClassVar[bool]
    """Whether there are other workers, who could go on with a part of an epoch while the next part is fed here."""
    completed: int
    """All epochs below are complete, as far as is known here."""

    @abstractmethod
    def request(self, actor: Actor, time: Timestamp) -> None:
        """Have `actor` run at `time`; until then it may send at that time."""

    @abstractmethod
    def next(self) -> Turn | None:
        """The next to be run, if any."""

    @abstractmethod
    def ran(self, actor: Actor, time: Timestamp) -> None:
        """`actor` has been run at `time`, and gives up the right to send at it."""

    @abstractmethod
    def frontier(self, location: int) -> Antichain:
        """The times that can still come to a port here, as far as is known. Looked up: for people."""

    @abstractmethod
    def close(self, epoch: int) -> None:
        """All input of `epoch` has been fed."""

    @abstractmethod
    def settle(self) -> None:
        """End an event: take note of what has happened."""

    def watcher(self, location: int) -> Callable[[Iterable[Timestamp]], None] | None:
        """Who is to be told of the times of changes that pass a port, on their way, on this worker; None: nobody."""
        return None

    def crosses(self, exchange: int) -> bool:
        """Whether rows may go to other workers at the exchange with this number."""
        return False

    def sends(self, location: int, to: int, times: Iterable[Timestamp]) -> None:
        """A message is on its way to a port, on another worker."""
        raise _no_peers()

    def takes(self, location: int, times: Iterable[Timestamp]) -> None:
        """A message from another worker is handled."""
        raise _no_peers()

    def apply(self, batch: Iterable[ProgressChange]) -> None:
        """Take note of what a worker has told."""
        raise _no_peers()

    def tell(self) -> tuple[ProgressChange, ...]:
        """What the other workers are to be told now, if anything; to be asked after work was done."""
        return ()


def _no_peers() -> BadMessage:
    return BadMessage("a worker without peers has nobody to send to, and nobody to hear from")


def schedule_of(
    plan: Plan, epoch: int, index: int, workers: int, giving: Iterable[Port] = ()
) -> Schedule:
    """The schedule of worker `index` of so many, from `epoch` on; of `giving`, see `Together`."""
    return Alone(plan, epoch) if workers == 1 else Together(plan, epoch, index, workers, giving)


class Alone(Schedule):
    """The schedule of a worker that has no peers."""

    has_peers: ClassVar[bool] = False

    def __init__(self, plan: Plan, epoch: int) -> None:
        self._topology = plan.topology
        self._order = plan.topology.order
        self._sources = plan.sources
        self._fed = epoch
        self._outputs = [ports.outputs if ports else () for ports in plan.ports]
        self._summaries = [
            node.operator.summary(node.depth) if node.operator.is_feedback else None
            for node in plan.nodes
        ]
        self._heap: list[tuple[tuple[int, ...], int, Timestamp]] = []
        self._actors: dict[int, Actor] = {}
        self.completed = epoch

    def request(self, actor: Actor, time: Timestamp) -> None:
        number = actor.node.number
        self._actors[number] = actor
        summary = self._summaries[number]
        held = time if summary is None else summary.results_in(time)
        # What can still reach any of its inputs comes before all of its outputs, in this order.
        order = min([self._order(output, held) for output in self._outputs[number]])
        heappush(self._heap, (order, number, time))

    def next(self) -> Turn | None:
        if not self._heap:
            return None
        _, number, time = heappop(self._heap)
        return self._actors[number], time, after(time)

    def ran(self, actor: Actor, time: Timestamp) -> None:
        pass

    def frontier(self, location: int) -> Antichain:
        outstanding: list[Pointstamp] = [(source, (self._fed,)) for source in self._sources]
        for _, number, time in self._heap:
            summary = self._summaries[number]
            held = time if summary is None else summary.results_in(time)
            outstanding += [(output, held) for output in self._outputs[number]]
        return Tracker(self._topology, outstanding).frontier(location)

    def close(self, epoch: int) -> None:
        self._fed = epoch + 1

    def settle(self) -> None:
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


@dataclass(order=True, slots=True)
class _Request:
    """An actor to be run at a time; `order` puts it after all that could result in it."""

    order: tuple[int, ...]
    number: int
    time: Timestamp
    held: Timestamp
    """The time at which it may send until then."""
    actor: Actor = field(compare=False)


class Together(Schedule):
    """The schedule of one of several workers.

    What is outstanding here is in a heap, in the order of :class:`Alone`; what can come from others is
    known to a ``Border``. The least request runs, unless something from elsewhere could come to it at or
    before its time: then it is *blocked*, and the next one is looked at. It does not matter to that one: if
    what is blocked could result in it, so could what blocks, since time passes from every input of a node to
    every output. Blocked requests stay so until a worker tells something, a message is handled, or rows are
    fed.

    Law 2 of DESIGN, as it holds here: an actor is run at t when no change at or before t can come to it, here,
    from whichever worker; that of the same node elsewhere may still be waiting for some.

    Cost: some microseconds for a turn and for each port that changes pass; a batch that is told or heard, 20
    to 50 us. Workers tell what crosses between them only, and when that may help somebody: a round of a loop
    with one exchange is one batch and one hop.
    """

    has_peers: ClassVar[bool] = True

    def __init__(
        self, plan: Plan, epoch: int, index: int, workers: int, giving: Iterable[Port] = ()
    ) -> None:
        """`giving` are outputs at which something comes in besides the sources, in the first epoch."""
        topology = plan.topology
        self._topology = topology
        self._sources = plan.sources
        self._ports: list[NodePorts] = [ports or _NOWHERE for ports in plan.ports]
        self._summaries = [
            node.operator.summary(node.depth) if node.operator.is_feedback else None
            for node in plan.nodes
        ]
        self._staying = staying(plan)
        """The exchanges through which nothing goes to other workers."""
        crossings = [
            node.number
            for node in plan.nodes
            if node.operator.role is Role.EXCHANGE and node.number not in self._staying
        ]
        self._crossings = {self._ports[number].inputs[0]: at for at, number in enumerate(crossings)}
        self._outs = [self._ports[number].outputs[0] for number in crossings]
        given = {
            self._ports[origin.node].outputs[origin.output]
            for port in giving
            for origin in plan.origins(port)
        }
        self._giving = sorted(given.difference(self._sources))
        mine = [(location, (epoch,)) for location in (*self._sources, *self._giving)]
        self._ledger = Ledger(topology, mine)
        self._border = Border(
            topology, [self._ports[number] for number in crossings], index, [mine] * workers
        )
        self._event: list[ProgressChange] = []
        self._heap: list[_Request] = []
        self._blocked: list[_Request] = []
        self._uppers: dict[int, Antichain] = {}
        self._fed = epoch
        self._quiet = False  # nothing has happened since others were told
        self.completed = epoch

    def request(self, actor: Actor, time: Timestamp) -> None:
        number = actor.node.number
        summary = self._summaries[number]
        held = time if summary is None else summary.results_in(time)
        outputs = self._ports[number].outputs
        self._event += [(location, held, 1) for location in outputs]
        order = min([self._topology.order(output, held) for output in outputs])
        heappush(self._heap, _Request(order, number, time, held, actor))

    def watcher(self, location: int) -> Callable[[Iterable[Timestamp]], None]:
        return partial(self.passes, location)

    def crosses(self, exchange: int) -> bool:
        return exchange not in self._staying

    def passes(self, location: int, times: Iterable[Timestamp]) -> None:
        """Changes pass a port, on their way, on this worker."""
        self._event += [(location, time, 0) for time in times]

    def sends(self, location: int, to: int, times: Iterable[Timestamp]) -> None:
        self._event += [(location, time, 1) for time in times]
        self._border.sends(self._crossings[location], to, times)

    def takes(self, location: int, times: Iterable[Timestamp]) -> None:
        self._event += [(location, time, -1) for time in times]
        self._border.takes(self._crossings[location], times)

    def next(self) -> Turn | None:
        heap, blocked = self._heap, self._blocked
        self._look()
        while heap:
            request = heappop(heap)
            if request.actor.waits and self._must_wait(request):
                blocked.append(request)
            else:
                return request.actor, request.time, self._upper(request)
        return None

    def _look(self) -> None:
        """Take what was heard, sent and handled into account.

        Whenever the border may say something else all is looked at again, in order: nothing may be run
        before what is blocked and need not be.
        """
        if self._border.catch_up():
            self._unblock()

    def _unblock(self) -> None:
        if self._blocked:
            self._heap += self._blocked
            self._blocked.clear()
            heapify(self._heap)

    def _must_wait(self, request: _Request) -> bool:
        """Whether something could still come at or before its time."""
        time, could_come = request.time, self._border.could_come
        if time[0] >= self._fed:
            return True
        return any(could_come(port, time) for port in self._ports[request.number].inputs)

    def _upper(self, request: _Request) -> Antichain:
        """What can still come, or has come and is not complete.

        What is in the heap, and all that it leads to, comes later in lexicographic order, as with one
        worker. What is blocked, and all that it leads to, comes after something from elsewhere. An upper
        never goes back: what was ruled out before stays so.
        """
        time, number = request.time, request.number
        upper, last = after(time), self._uppers.get(number)
        one_after_another = len(time) < 2 or (len(time) == 2 and self._fed == self.completed + 1)
        if one_after_another and last is None:  # whatever does not come at or before, comes after
            return upper
        others = [t for port in self._ports[number].inputs for t in self._border.coming(port)]
        if min(others, default=time) < time:
            upper = Antichain([*upper, *others])
        if last is not None and not last.dominates(upper):
            upper = upper.join(last)
        self._uppers[number] = upper
        return upper

    def ran(self, actor: Actor, time: Timestamp) -> None:
        number = actor.node.number
        summary = self._summaries[number]
        held = time if summary is None else summary.results_in(time)
        self._event += [(location, held, -1) for location in self._ports[number].outputs]

    def frontier(self, location: int) -> Antichain:
        self._look()
        outstanding = self._ledger.held()
        for output in self._outs:
            outstanding += [(output, time) for time in self._border.coming(output)]
        return Tracker(self._topology, outstanding).frontier(location)

    def close(self, epoch: int) -> None:
        self._fed = epoch + 1
        self._unblock()
        for location in self._sources:
            self._event += [(location, (epoch,), -1), (location, (epoch + 1,), 1)]
        self._event += [(location, (epoch,), -1) for location in self._giving]
        self._giving = []

    def settle(self) -> None:
        """Write the event down. It is told some time later."""
        if self._event:
            event, self._event = self._event, []
            self._ledger.record(event)
            self._quiet = False

    def apply(self, batch: Iterable[ProgressChange]) -> None:
        self._border.hear(batch)
        self._quiet = False

    def tell(self) -> tuple[ProgressChange, ...]:
        if self._quiet:
            return ()
        self._quiet = True
        border = self._border
        self._look()
        border.settle(self._ledger.take())
        while border.is_past(self.completed):
            self.completed += 1
        return border.tell()
