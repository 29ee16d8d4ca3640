"""The in-process transport: a coordinator and its workers in one thread.

A `LocalCluster` carries messages, has storage instructions executed, and starts workers when the
coordinator asks for them. It runs while somebody waits: `submit` queues an epoch, `wait` works until
it is complete. Laws:

1. **Order.** Messages between two actors arrive in the order in which they were sent; with a `seed`,
   that is all: who is next is drawn at random, the same for the same seed.
2. **Beside.** Checkpoints are written, published, read and collected by one other thread, in the
   order in which that was asked for, while epochs go on.

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

import queue
import random
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from riverrun.engine.cluster import Cluster, Durability, carefully
from riverrun.engine.coordinator import Phase
from riverrun.engine.messages import (
    CLIENT,
    COORDINATOR,
    STORAGE,
    SUPERVISOR,
    Append,
    Failed,
    Feed,
    Instance,
    MakeInstance,
    Outcome,
    Outputs,
    Start,
    Stop,
)
from riverrun.engine.reading import Portion
from riverrun.engine.staging import Staging
from riverrun.engine.worker import Worker
from riverrun.progress import Antichain
from riverrun.state.checkpoint import Checkpoints
from riverrun.state.log import Log

_DELAYS = (0.05, 0.2, 0.8, 2.0)  # seconds before an append that failed is tried again


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
        self._make = make_instance
        self._workers: dict[int, Worker] = {}
        self._pool: ThreadPoolExecutor | None = None
        self._outcomes: queue.SimpleQueue[tuple[int, Outcome]] = queue.SimpleQueue()
        self._asked = 0  # instructions that have not been answered
        self._appends = 0
        self._random = None if seed is None else random.Random(seed)
        self._mail: deque[tuple[int, int, Any]] = deque()  # to, from, message
        self._links: dict[tuple[int, int], deque[Any]] = {}
        self._send(COORDINATOR, self._coordinator.take())
        try:
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
        return self._asked > 0 or bool(self._links)

    def status(self) -> dict[str, Any]:
        """Where the run stands."""
        if not self._closed:
            self.poll()
        return self._coordinator.status()

    def close(self) -> None:
        """End the run; a checkpoint under way is finished first. May be called again."""
        if self._closed:
            return
        self._closed = True
        coordinator = self._coordinator
        coordinator.limit = 0
        try:
            while coordinator.phase is not Phase.CLOSED and self.poll():
                self._take_outcomes(wait=True)
        finally:
            coordinator.close()
            if self._pool is not None:
                self._pool.shutdown()
            self._workers.clear()
            self._mail.clear()
            self._links.clear()

    def _before_waiting(self) -> None:
        if self._timed:
            self._coordinator.tick(time.monotonic())

    def _interrupted(self, done: Callable[[], bool]) -> None:
        self._pump(done)  # whoever was interrupted has failed: see it refused

    # ---- the loop

    def _pump(self, done: Callable[[], bool]) -> None:
        """Carry messages and let workers work until something is so; raise if the run ends before."""
        coordinator = self._coordinator
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
                if not self._asked:
                    raise AssertionError(f"nothing to do, and not done: {coordinator.status()}")
                self._take_outcomes(wait=True)

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
                message = Staging(to, self._checkpoints.storage).filled(message)
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
        if type(instruction) is Append:
            outcome = self._execute(instruction)
            if outcome.error is None:
                self._appends = 0
            else:
                time.sleep(_DELAYS[min(self._appends, len(_DELAYS) - 1)])
                self._appends += 1
            self._deliver(sender, STORAGE, outcome)
            return
        if self._random is not None:  # the same for the same seed: no thread
            outcome = self._execute(instruction)
            self._links.setdefault((STORAGE, sender), deque()).append(outcome)
            return
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, "riverrun-checkpoint")
        self._asked += 1
        # The storage in memory, through which shards change hands, is there for a while only.
        checkpoints, log = self._checkpoints, self._log
        assert checkpoints is not None
        assert log is not None
        self._pool.submit(
            lambda: self._outcomes.put((sender, carefully(instruction, checkpoints, log)))
        )

    def _take_outcomes(self, *, wait: bool) -> None:
        while self._asked:
            try:
                sender, outcome = self._outcomes.get(block=wait)
            except queue.Empty:
                return
            wait = False
            self._asked -= 1
            self._deliver(sender, STORAGE, outcome)
