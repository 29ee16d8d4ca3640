"""Schedules: which actor is run next, and at which time.

Each instance has one `Schedule`, and asks it nothing else. An actor that was given changes requests to be run at their
times, and holds a capability, the right to send at those times, until it has been run. It may be run at t when nothing
outstanding can still bring it a change at or before t (the *notification* law of ARCHITECTURE). There are two ways to
know:

- :class:`Alone`: with one worker everything outstanding is here. The least request, in an order that extends
  could-result-in (``Topology.order``), has nothing before it, so a heap is enough.
- :class:`Together`: with several workers, each worker records all its steps in a ``Ledger``, hop by hop, which also
  checks the *capability* law. Workers tell each other which messages cross between them (``Border``). So the border of
  a worker shows the times that can still come from its peers, and its heap the times that can come from itself.

An actor is run at t with an `upper`: every change that can still come is at or after some time of `upper`. Alone, times
at a port come in lexicographic order, so `upper` is everything after t in that order.
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
    """Which actor is run next, and what workers tell each other about that.

    Laws:

    - **Least first.** `next` gives a request that may be run by the notification law of ARCHITECTURE, and each
      request once.
    - **Complete.** `completed` grows to e when nothing of the epochs before e is left on this worker or on its way
      here, and nothing of them can come any more. Its value is valid after `settle` and after `tell`.
    - **Silence alone.** A schedule without peers watches no port, has no exchange that crosses, and tells nothing.
    """

    has_peers: ClassVar[bool]
    """Whether there are other workers: they can work on a part of an epoch while the next part is fed here."""
    completed: int
    """All epochs below this one are complete, as far as is known here."""

    @abstractmethod
    def request(self, actor: Actor, time: Timestamp) -> None:
        """Have `actor` run at `time`; until then it may send at that time."""

    @abstractmethod
    def next(self) -> Turn | None:
        """The actor to be run next, with its time and its `upper`; None where none may be run."""

    @abstractmethod
    def ran(self, actor: Actor, time: Timestamp) -> None:
        """`actor` has been run at `time`, and gives up the right to send at it."""

    @abstractmethod
    def frontier(self, location: int) -> Antichain:
        """The times that can still come to a port here, as far as is known. Slow: for people only."""

    @abstractmethod
    def close(self, epoch: int) -> None:
        """All input of `epoch` has been fed."""

    @abstractmethod
    def settle(self) -> None:
        """End an event: take note of everything that has happened since the last call."""

    def watcher(self, location: int) -> Callable[[Iterable[Timestamp]], None] | None:
        """The function to call with the times of changes that pass a port on this worker; None: no function."""
        return None

    def crosses(self, exchange: int) -> bool:
        """Whether rows may go to other workers at the exchange with this number."""
        return False

    def sends(self, location: int, to: int, times: Iterable[Timestamp]) -> None:
        """A message goes to a port on another worker."""
        raise _no_peers()

    def takes(self, location: int, times: Iterable[Timestamp]) -> None:
        """A message from another worker to a port here is handled."""
        raise _no_peers()

    def apply(self, batch: Iterable[ProgressChange]) -> None:
        """Take in the news of another worker."""
        raise _no_peers()

    def tell(self) -> tuple[ProgressChange, ...]:
        """The news for the other workers, if there is any; to be called after work was done."""
        return ()


def _no_peers() -> BadMessage:
    return BadMessage("a worker without peers has nobody to send to, and nobody to hear from")


def schedule_of(
    plan: Plan, epoch: int, index: int, workers: int, giving: Iterable[Port] = ()
) -> Schedule:
    """The schedule of worker `index` of so many, from `epoch` on; `Together` explains `giving`."""
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
        # In this order, everything that can still reach an input of the actor comes before all its outputs.
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
    """An actor to be run at a time; `order` puts the request behind every request that could result in it."""

    order: tuple[int, ...]
    number: int
    time: Timestamp
    held: Timestamp
    """The time at which the actor may send until it has been run."""
    actor: Actor = field(compare=False)


class Together(Schedule):
    """The schedule of one of several workers.

    The requests of this worker are in a heap, in the order of :class:`Alone`; a ``Border`` knows what can come from
    other workers. The least request runs, unless a change from another worker could come to it at or before its time:
    then the request is *blocked*, and the next request is looked at. The next request need not wait for a blocked
    request B. If B could result in the next request, so could the change that blocks B, since time passes from every
    input of a node to every output, and the next request would be blocked too. Requests stay blocked until a worker
    tells news, a message is handled, or rows are fed.

    The *notification* law of ARCHITECTURE, as it holds here: an actor is run at t when no change at or before t can
    come to it on this worker, from whichever worker. The actor of the same node on another worker may still wait for
    changes.

    Cost: some microseconds for a turn and for each port that changes pass; 20 to 50 us for a batch of news, told or
    heard. Workers tell only what crosses between them, and only when that may help a peer: a round of a loop with one
    exchange is one batch and one hop.
    """

    has_peers: ClassVar[bool] = True

    def __init__(
        self, plan: Plan, epoch: int, index: int, workers: int, giving: Iterable[Port] = ()
    ) -> None:
        """`giving` are the outputs at which changes come in besides the sources, in the first epoch (`backfill`)."""
        topology = plan.topology
        self._topology = topology
        self._sources = plan.sources
        self._ports: list[NodePorts] = [ports or _NOWHERE for ports in plan.ports]
        self._summaries = [
            node.operator.summary(node.depth) if node.operator.is_feedback else None
            for node in plan.nodes
        ]
        self._staying = staying(plan)
        """The exchanges at which no row goes to another worker."""
        crossings = [
            node.number
            for node in plan.nodes
            if node.operator.role is Role.EXCHANGE and node.number not in self._staying
        ]
        self._crossings = {self._ports[number].inputs[0]: at for at, number in enumerate(crossings)}
        self._outs = [self._ports[number].outputs[0] for number in crossings]
        content_outputs = {
            self._ports[origin.node].outputs[origin.output]
            for port in giving
            for origin in plan.origins(port)
        }
        self._giving = sorted(content_outputs.difference(self._sources))
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
        self._quiet = False  # nothing has happened since the last news was told
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
        """Changes pass a port on this worker."""
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
        """Take news that was heard, and messages that were sent and handled, into account.

        Whenever the border may have changed, all requests are looked at again, in order: a request that is no longer
        blocked must be run before later ones.
        """
        if self._border.catch_up():
            self._unblock()

    def _unblock(self) -> None:
        if self._blocked:
            self._heap += self._blocked
            self._blocked.clear()
            heapify(self._heap)

    def _must_wait(self, request: _Request) -> bool:
        """Whether a change could still come to the actor at or before the time of the request."""
        time, could_come = request.time, self._border.could_come
        if time[0] >= self._fed:
            return True
        return any(could_come(port, time) for port in self._ports[request.number].inputs)

    def _upper(self, request: _Request) -> Antichain:
        """The times that can still come to the actor, or have come and are not complete.

        Requests in the heap, and all times that they lead to, come later in lexicographic order, as with one worker.
        Blocked requests, and all times that they lead to, come after a time that can come from another worker. An upper
        never goes back: a time that was ruled out once stays ruled out.
        """
        time, number = request.time, request.number
        upper, last = after(time), self._uppers.get(number)
        one_after_another = len(time) < 2 or (len(time) == 2 and self._fed == self.completed + 1)
        if one_after_another and last is None:  # every other time comes after
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
        """Write the event down; `tell` gives it to the other workers some time later."""
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
