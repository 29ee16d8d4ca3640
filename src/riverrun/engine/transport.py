"""The in-process transport: a coordinator and its workers in one thread.

A `LocalCluster` carries messages, has storage instructions executed, and starts workers when the
coordinator asks for them. It runs while somebody waits: `submit` queues an epoch, `wait` works until
it is complete. Laws:

1. **Order.** Messages between two actors arrive in the order in which they were sent; with a `seed`,
   that is all: who is next is drawn at random, the same for the same seed.
2. **Beside.** Checkpoints are written, published, read and collected by one other thread, in the
   order in which that was asked for, while epochs go on; the log is written by a second one. So a
   storage that hangs holds up whoever waits for it, and nobody else: `close` leaves it alone.

The laws of `cluster` hold besides.

>>> class Sum:
...     def __init__(self, index, shards, epoch, states):
...         self.completed, self.sum = epoch, 0
...
...     def feed(self, epoch, inputs):
...         self.sum += sum(batch.num_rows for batch in inputs.values())
...         self.completed = epoch + 1
...
...     receive = work = lambda self, *_: False
...     take = pin = lambda self: {}
...     notes = lambda self: ()
>>> import pyarrow as pa
>>> with LocalCluster(Sum, workers=2) as cluster:
...     epoch = cluster.submit({"n": pa.record_batch({"n": [1, 2, 3]})})
...     cluster.wait(epoch)
...     cluster.completed, [instance.sum for instance in cluster.instances]
(1, [1, 2])

Cost: about 10 microseconds for an epoch on one worker, besides what the instance does; with a
checkpoint path, one put more.
"""

from __future__ import annotations

import math
import queue
import random
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from riverrun.engine.cluster import Cluster, Durability, carefully
from riverrun.engine.coordinator import Phase
from riverrun.engine.messages import (
    CLIENT,
    COORDINATOR,
    STORAGE,
    SUPERVISOR,
    Acknowledge,
    Append,
    Failed,
    Feed,
    Instance,
    MakeInstance,
    NotReady,
    Outcome,
    Outputs,
    Read,
    Recall,
    Start,
    Stop,
)
from riverrun.engine.outage import delay
from riverrun.engine.reading import Portion
from riverrun.engine.resuming import told
from riverrun.engine.staging import Staging
from riverrun.engine.worker import Worker
from riverrun.errors import TransportError
from riverrun.progress import Antichain
from riverrun.state.checkpoint import Checkpoints
from riverrun.state.lanes import Lane
from riverrun.state.log import Log

NAP = 0.25  # seconds: so often whoever waits for the storage looks at the clock
CLOSING = 30.0  # seconds that a checkpoint under way has when the run is closed
GLANCES = 10
INTERRUPTED = 1.0  # seconds that an interrupted epoch has to be refused


class LocalCluster(Cluster):
    """A run of `workers` workers in this process."""

    def __init__(
        self,
        make_instance: MakeInstance,
        workers: int = 1,
        *,
        seed: int | None = None,
        **durability: Any,
    ) -> None:
        """Start a run, or resume the one whose checkpoints are at the path; see `cluster.Durability`."""
        super().__init__(workers, Durability(**durability))
        self._make = told(make_instance, self._resume)
        self._workers: dict[int, Worker] = {}
        self._lanes = {Append: Lane("riverrun-log"), Any: Lane("riverrun-checkpoint")}
        self._outcomes: queue.SimpleQueue[tuple[int, Outcome]] = queue.SimpleQueue()
        self._asked = 0  # instructions that have not been answered
        self._failures: Counter[tuple[int, type]] = Counter()
        self._later: list[tuple[float, Callable[[], None]]] = []  # what is tried again, and when
        self._random = None if seed is None else random.Random(seed)
        self._mail: deque[tuple[int, int, Any]] = deque()  # to, from, message
        self._links: dict[tuple[int, int], deque[Any]] = {}
        self._send(COORDINATOR, self._coordinator.take())
        try:
            self._sweep(self._lanes[Any])
            self._pump(self._caught_up)
        except BaseException:
            self.close()
            raise
        self._coordinator.limit = self._coordinator.next

    # ---- what a client does

    @property
    def instances(self) -> list[Instance]:
        """The current instances, by index; for reading at a boundary. After a loss, waits for recovery."""
        if not self._closed and not self._recovered():
            self._pump(self._recovered)
        found = [self._workers.get(member) for member in self._coordinator.members]
        return [worker.instance for worker in found if worker and worker.instance]

    def read(self, name: str, epoch: int) -> list[Portion]:
        return [instance.read(name, epoch) for instance in self.instances]

    def changes(self, name: str, epoch: int) -> list[Portion]:
        return [instance.changes(name, epoch) for instance in self.instances]

    def frontier(self, probe: str) -> Antichain:
        found = Antichain()
        for instance in self.instances:
            found = found.meet(instance.frontier(probe))
        return found

    def stats(self) -> list[Mapping[str, Any]]:
        return [instance.stats() for instance in self.instances]

    def touched(self) -> int:
        """May be asked from any thread."""
        workers = list(self._workers.values())
        return sum(worker.instance.touched for worker in workers if worker.instance)

    def scale(self, workers: int) -> None:
        """Go on with another number of workers; return when they have taken over."""
        self._check_open()
        if self._checkpoints is None:  # what changes hands does so through a storage in memory
            self._checkpoints = Checkpoints("memory:///")
            self._log = Log(self._checkpoints.storage)
        try:
            super().scale(workers)
        finally:
            if self._coordinator.opening is None and self._coordinator.saver.number == 0:
                self._take_outcomes(wait=self._asked > 0)
                self._checkpoints = self._log = None

    def kill(self, index: int) -> None:
        """Lose the worker at an index with all it has in memory, as a test of what comes after."""
        self._check_open()
        member = self._coordinator.members[index]
        self._workers.pop(member, None)
        self._ask(lambda: self._coordinator.lost(member))

    def poll(self) -> bool:
        """Take in what the background has done, without waiting; whether it has more to do."""
        self._take_outcomes(wait=False)
        self._pump_mail()
        for link in sorted(self._links):
            for message in self._links.pop(link, ()):
                self._deliver(link[1], link[0], message)
        return self._asked > 0 or bool(self._later) or bool(self._links)

    def status(self) -> dict[str, Any]:
        """Where the run stands. May be asked from any thread, while another one waits."""
        if self._changed.acquire(blocking=False):
            try:
                if not self._closed:
                    self._tick()
                    self.poll()
            finally:
                self._changed.release()
        for _ in range(GLANCES):
            with suppress(RuntimeError):  # another thread changes what is looked at
                return self._coordinator.status()
        return self._coordinator.status()

    def close(self) -> None:
        """End the run; a checkpoint under way is finished first, unless the storage fails or hangs."""
        if self._closed:
            return
        self._closed = True
        coordinator = self._coordinator
        coordinator.limit = 0
        deadline = time.monotonic() + CLOSING
        try:
            while coordinator.phase is not Phase.CLOSED and self.poll():
                if coordinator.log.waiting and coordinator.log.status()["behind"] is not None:
                    break
                self._take_outcomes(wait=True)
                if time.monotonic() > deadline:
                    break
        finally:
            coordinator.close()
            for lane in self._lanes.values():
                lane.close(wait=NAP)
            self._let_go()
            self._later.clear()
            self._workers.clear()
            self._mail.clear()
            self._links.clear()

    def _before_waiting(self) -> None:
        if self._durable:
            self._coordinator.tick(time.monotonic())

    def _interrupted(self, done: Callable[[], bool]) -> None:
        # Whoever was interrupted has failed: see it refused. The log may not be there to be told.
        self._pump(done, INTERRUPTED)

    def _tick(self) -> None:
        if self._durable:
            self._coordinator.tick(time.monotonic())
            self._send(COORDINATOR, self._coordinator.take())

    # ---- the loop

    def _pump(self, done: Callable[[], bool], at_most: float | None = None) -> None:
        """Carry messages and let workers work until something is so; raise if the run ends before."""
        coordinator = self._coordinator
        deadline = None if at_most is None else time.monotonic() + at_most
        while not done():
            if coordinator.phase is Phase.CLOSED:
                if coordinator.error is not None and not self._closed:
                    raise coordinator.error
                return
            if self._asked and not self._outcomes.empty():
                self._take_outcomes(wait=False)
            if self._random is not None:
                busy = self._draw(self._random)
            else:
                busy = self._turn()
            if not busy:
                if not self._asked and not self._later:
                    if done() or self.closed is not None:
                        continue  # by what the storage answered just now
                    raise AssertionError(f"nothing to do, and not done: {coordinator.status()}")
                self._take_outcomes(wait=True)
                if deadline is not None and time.monotonic() > deadline:
                    return
            elif self._later:
                self._take_outcomes(wait=False)

    def _turn(self) -> bool:
        """Deliver all messages, then let each worker do one step."""
        busy = self._pump_mail()
        for worker in list(self._workers.values()):
            if worker.work():
                busy = True
            out = worker.take()
            if out:
                busy = True
                self._send(worker.incarnation, out)
        return busy

    def _pump_mail(self) -> bool:
        mail = self._mail
        if not mail:
            return False
        while mail:
            to, sender, message = mail.popleft()
            self._deliver(to, sender, message)
        return True

    def _draw(self, source: random.Random) -> bool:
        """Deliver one message or let one worker do one step, whichever is drawn."""
        choices: list[tuple[int, ...]] = sorted(self._links)
        choices += [(member,) for member in sorted(self._workers)]
        while choices:
            at = source.randrange(len(choices))
            choices[at], choices[-1] = choices[-1], choices[at]
            choice = choices.pop()
            if len(choice) == 2:
                link = self._links[choice]
                message = link.popleft()
                if not link:
                    del self._links[choice]
                self._deliver(choice[1], choice[0], message)
                return True
            worker = self._workers[choice[0]]
            busy = worker.work()
            out = worker.take()
            if out:
                self._send(worker.incarnation, out)
            if busy or out:
                return True
        return False

    def _deliver(self, to: int, sender: int, message: Any) -> None:
        if to == COORDINATOR:
            coordinator = self._coordinator
            coordinator.receive(sender, message)
            out = coordinator.take()
            if out:
                self._send(COORDINATOR, out)
            return
        worker = self._workers.get(to)
        if worker is not None:
            if type(message) is Feed and message.parcels:
                # Logged by a run on Spark, whose workers had them and put them into the storage.
                assert self._checkpoints is not None
                given = message
                try:
                    message = Staging(to, self._checkpoints.storage).filled(given)
                except TransportError as error:  # an outage: later, then
                    self._send(to, [(COORDINATOR, NotReady(given.execution, error))])
                    self._try_later((to, Feed), lambda: self._deliver(to, sender, given))
                    return
                self._failures.pop((to, Feed), None)
                if type(message) is Failed:
                    self._send(to, [(COORDINATOR, message)])
                    return
            worker.receive(sender, message)
            out = worker.take()
            if out:
                self._send(to, out)

    def _send(self, sender: int, out: Outputs) -> None:
        for to, message in out:
            if to >= COORDINATOR:
                if self._random is None:
                    self._mail.append((to, sender, message))
                else:
                    self._links.setdefault((sender, to), deque()).append(message)
            elif to == CLIENT:
                self._tell(message)
            elif to == STORAGE:
                self._instruct(sender, message)
            elif to == SUPERVISOR:
                self._supervise(message)

    def _supervise(self, message: Start | Stop) -> None:
        if isinstance(message, Start):
            worker = Worker(message.incarnation, self._make)
            self._workers[worker.incarnation] = worker
            self._send(worker.incarnation, worker.take())
        else:
            self._workers.pop(message.incarnation, None)

    # ---- the storage

    def _instruct(self, sender: int, instruction: Any) -> None:
        if type(instruction) is Acknowledge:
            self._acknowledge(instruction)
            return
        if self._random is not None:  # the same for the same seed: no thread
            outcome = self._execute(instruction)
            if type(instruction) is Append or outcome.error is not None:
                self._answered(sender, outcome)
            else:
                self._links.setdefault((STORAGE, sender), deque()).append(outcome)
            return
        self._asked += 1
        # The storage in memory, through which shards change hands, is there for a while only.
        checkpoints, log = self._checkpoints, self._log
        assert checkpoints is not None
        assert log is not None
        outcomes = self._outcomes
        lane = self._lanes[Append if type(instruction) is Append else Any]
        lane.submit(lambda: outcomes.put((sender, carefully(instruction, checkpoints, log))))

    def _take_outcomes(self, *, wait: bool) -> None:
        """Take in what the storage has answered, and try again what has waited for long enough."""
        while self._asked and (wait or not self._outcomes.empty()):
            try:
                sender, outcome = self._outcomes.get(timeout=self._nap())
            except queue.Empty:
                break
            wait = False
            self._asked -= 1
            self._answered(sender, outcome)
        if wait:
            if not self._asked and self._later:
                time.sleep(self._nap())
            self._tick()
        now = time.monotonic()
        due = [act for at, act in self._later if at <= now]
        self._later = [(at, act) for at, act in self._later if at > now]
        for act in due:
            act()

    def _nap(self) -> float:
        first = min((at for at, _ in self._later), default=math.inf)
        return max(0.0, min(NAP, first - time.monotonic()))

    def _answered(self, sender: int, outcome: Outcome) -> None:
        """Bring an answer back; one that makes its receiver try again waits for a moment."""
        kind = type(outcome.instruction)
        if outcome.error is not None and kind in (Append, Read, Recall):
            self._try_later((sender, kind), lambda: self._deliver(sender, STORAGE, outcome))
        else:
            self._failures.pop((sender, kind), None)
            self._deliver(sender, STORAGE, outcome)

    def _try_later(self, what: tuple[int, type], act: Callable[[], None]) -> None:
        self._failures[what] += 1
        self._later.append((time.monotonic() + delay(self._failures[what]), act))
