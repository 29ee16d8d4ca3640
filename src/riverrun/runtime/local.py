"""The local cluster: a coordinator and its workers in one thread of this process.

``flow.run()`` without ``on=`` leads here. A `LocalCluster` delivers the messages between coordinator and workers, has
storage instructions executed, and makes a worker when the coordinator asks for one. All of this happens in the thread
of whoever waits: `submit` queues an epoch, and `wait` works until the epoch is complete. The laws of `cluster` hold,
and:

- **Order.** Messages between two actors arrive in the order in which they were sent. With a `seed` nothing else is
  certain: the next message or worker is drawn at random, in the same order for the same seed.
- **Beside.** One thread writes, publishes, reads and collects checkpoints, in the order in which the actors asked for
  it, while epochs go on; a second thread writes the log. So a storage that hangs holds up only whoever waits for it;
  `close` gives up a checkpoint after `LAST_CHECKPOINT` seconds. (With a `seed` there are no such threads.)
- **Interrupts at boundaries.** Between two steps of the loop every message is where it belongs. An interrupt
  (`interrupts`) is raised only there. An interrupt in a user's function ends that function, and is raised at the next
  boundary. The epoch that somebody waited for is settled before. Any other exception that ends a step halfway (one that
  another thread has set, no memory) ends the run, with a reason, so the run gives no result of a state that is not
  whole.

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

Cost: about 10 microseconds for an epoch on one worker, besides the work of the instance; with a checkpoint path, one
put more.
"""

from __future__ import annotations

import queue
import random
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from riverrun import interrupts
from riverrun.engine.coordinator.failures import interrupted
from riverrun.engine.coordinator.resume import make_resuming
from riverrun.engine.instance import Maker
from riverrun.engine.loop_rounds import LOOK, LoopRound
from riverrun.engine.messages import (
    CLIENT,
    COORDINATOR,
    STORAGE,
    SUPERVISOR,
    Acknowledge,
    AppendRecord,
    Failed,
    Feed,
    InstanceInterface,
    MakeInstance,
    NotReady,
    Outcome,
    Outputs,
    Publish,
    Read,
    Recall,
    Start,
    Stop,
)
from riverrun.engine.reading import Portion
from riverrun.engine.worker import Worker
from riverrun.errors import RiverrunError, TransportError
from riverrun.progress import Antichain
from riverrun.retry import pause
from riverrun.runtime.carried import CarriedRun
from riverrun.runtime.carriers import Carrier, ClusterRequest, Durability
from riverrun.runtime.cluster import Cluster, execute_and_catch
from riverrun.runtime.deadlines import Deadlines
from riverrun.runtime.uploads import Uploads
from riverrun.storage.checkpoint import Checkpoints
from riverrun.storage.log import Log
from riverrun.storage.threads import SerialThread

NAP = 0.25  # seconds after which whoever waits for the storage looks at the clock again
LAST_CHECKPOINT = 30.0  # seconds that a checkpoint under way has when the run is closed
GLANCES = 10  # how often `status` is tried while another thread changes what is looked at


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
        """Start a run, or resume the one that is at the checkpoint path; `durability` is `carriers.Durability`'s
        fields."""
        super().__init__(workers, Durability(**durability))
        self._make = make_resuming(make_instance, self._resume)
        self._workers: dict[int, Worker] = {}
        self._storage_threads = {
            AppendRecord: SerialThread("riverrun-log"),
            Any: SerialThread("riverrun-checkpoint"),
        }
        self._outcomes: queue.SimpleQueue[tuple[int, Outcome]] = queue.SimpleQueue()
        self._unanswered = 0  # instructions to the storage that have no outcome yet
        self._interrupt: BaseException | None = None  # is raised at the next boundary
        self._settling: BaseException | None = None  # the interrupt whose epoch is being settled
        self._hurried = False  # whether another interrupt came while one is settled
        self._is_passing_on = False  # whether shards change hands without a checkpoint path
        self._stepping = False  # whether a step has begun and not ended
        self._pumps = 0  # calls in the loop now: more than one where a user's function uses the run
        self._failures: Counter[tuple[int, type]] = Counter()
        self._deadlines = Deadlines()  # actions to be tried again, and looks at loops
        self._deadlines.every(LOOK, self._look_at_loops, start=time.monotonic())
        self._random = None if seed is None else random.Random(seed)
        self._mail: deque[tuple[int, int, Any]] = deque()  # to, from, message
        self._links: dict[tuple[int, int], deque[Any]] = {}
        self._send(COORDINATOR, self._coordinator.take())
        try:
            self._sweep(self._storage_threads[Any])
            self._pump(self._caught_up)
        except BaseException:
            self.close()
            raise
        self._coordinator.limit = self._coordinator.next

    # ---- what a client does

    @property
    def instances(self) -> list[InstanceInterface]:
        """The instances of the workers, by index, at a boundary. After a loss this waits for the recovery."""
        if not self._closed:
            self._check_open()
            if not self._recovered():
                self._pump(self._recovered)
        workers = [self._workers.get(member) for member in self._coordinator.members]
        return [worker.instance for worker in workers if worker and worker.instance]

    def read(self, name: str, epoch: int) -> list[Portion]:
        return [instance.read(name, epoch) for instance in self.instances]

    def changes(self, name: str, epoch: int) -> list[Portion]:
        return [instance.changes(name, epoch) for instance in self.instances]

    def frontier(self, probe: str) -> Antichain:
        frontier = Antichain()
        for instance in self.instances:
            frontier = frontier.meet(instance.frontier(probe))
        return frontier

    def stats(self) -> list[Mapping[str, Any]]:
        return [instance.stats() for instance in self.instances]

    def touched(self) -> int:
        """How many changes were made so far. Any thread may ask."""
        workers = list(self._workers.values())
        return sum(worker.instance.touched for worker in workers if worker.instance)

    def scale(self, workers: int) -> None:
        """Go on with another number of workers; return when they have taken over."""
        with interrupts.deferred():
            self._check_open()
            if self._checkpoints is None:  # then states change hands through a storage in memory
                self._checkpoints = Checkpoints("memory:///")
                self._log = Log(self._checkpoints.storage)
                self._is_passing_on = True
            super().scale(workers)

    def _end_passing_on(self) -> None:
        """Drop the storage in memory through which states changed hands, once nobody needs it any more."""
        coordinator = self._coordinator
        if (
            not self._recovered()
            or coordinator.membership.change is not None
            or coordinator.saver.number
        ):
            return
        while self._unanswered and not interrupts.is_due():
            self._take_outcomes(wait=True)
        if not self._unanswered and not self._deadlines.pending:
            self._is_passing_on = False
            self._checkpoints = self._log = None

    def kill(self, index: int) -> None:
        """Lose the worker at an index with all it has in memory, as a test of what comes after."""
        self._check_open()
        member = self._coordinator.members[index]
        self._workers.pop(member, None)
        self._ask(lambda: self._coordinator.lost(member))

    def poll(self) -> bool:
        """Take in what the storage's threads have done, without waiting; return whether more is to come from them."""
        was_stepping, self._stepping = self._stepping, True
        self._take_outcomes(wait=False)
        self._pump_mail()
        for link in sorted(self._links):
            for message in self._links.pop(link, ()):
                self._deliver(link[1], link[0], message)
        self._stepping = was_stepping
        return self._unanswered > 0 or self._deadlines.pending > 0 or bool(self._links)

    def status(self) -> dict[str, Any]:
        """The state of the run. Any thread may ask, while another one waits."""
        with interrupts.deferred():
            if self._changed.acquire(blocking=False):
                try:
                    if not self._closed and not self._torn():
                        self._tick()
                        self.poll()
                finally:
                    self._changed.release()
            for _ in range(GLANCES):
                with suppress(RuntimeError):  # another thread changes a dict meanwhile
                    return self._status()
            return self._status()

    def _look_at_loops(self) -> None:
        """Note which loops are going on each worker."""
        now = time.monotonic()
        for member, worker in self._workers.items():
            rounds: list[LoopRound] = getattr(worker.instance, "loops", list)()
            self._loops.hear(member, rounds, now)

    def close(self) -> None:
        """End the run. A checkpoint under way is finished first, unless the storage fails or hangs."""
        with interrupts.deferred():
            if self._closed:
                return
            self._closed = True
            coordinator = self._coordinator
            coordinator.limit = 0
            deadline = time.monotonic() + LAST_CHECKPOINT
            try:
                while not self._torn() and not coordinator.is_over and self.poll():
                    if coordinator.log.waiting and coordinator.log.status()["behind"] is not None:
                        break
                    self._take_outcomes(wait=True)
                    if interrupts.is_due() or time.monotonic() > deadline:
                        break
            finally:
                coordinator.close()
                for thread in self._storage_threads.values():
                    thread.close(wait=NAP)
                self._let_go()
                self._deadlines.clear()
                self._workers.clear()
                self._mail.clear()
                self._links.clear()

    def _before_waiting(self) -> None:
        if self._durable:
            self._coordinator.tick(time.monotonic())

    def _hold(self) -> None:
        self._coordinator.limit = min(self._coordinator.limit, self._coordinator.released)

    def _stop_work(self, error: BaseException) -> None:
        """Refuse the epoch under way, so that no user's function is called any more."""
        coordinator = self._coordinator
        self.hold_epochs()
        epoch = coordinator.under_way
        if epoch is not None:
            coordinator.refuse(epoch, interrupted(epoch, error))
            self._send(COORDINATOR, coordinator.take())

    def _see_refused(self, epoch: int, error: BaseException) -> None:
        self._settling, self._hurried = error, False
        for worker in self._workers.values():
            worker.interrupt(error)
        try:
            super()._see_refused(epoch, error)
        finally:
            self._settling = None
            for worker in self._workers.values():
                worker.interrupt(None)

    def _settle(self, done: Callable[[], bool], deadline: float) -> None:
        def settled() -> bool:
            return (
                done()
                or self._hurried
                or interrupts.is_due()
                or time.monotonic() > deadline
                or self._coordinator.is_over
            )

        self._pump(settled)

    def _go_back(self, deadline: float) -> None:
        self._settle(self._recovered, deadline)

    def _note_interrupt(self, error: BaseException) -> None:
        """Note that an interrupt ended a user's function, whose epoch failed by it."""
        if self._settling is None:
            self._interrupt = error
        elif error is not self._settling:
            self._hurried = True

    @property
    def is_stepping(self) -> bool:
        return self._stepping and self._pumps > 0

    def _torn(self) -> bool:
        """Whether a step of the loop ended halfway."""
        return self._stepping and not self._pumps

    def _check_open(self) -> None:
        if self._torn() and self._coordinator.error is None:
            self._coordinator.close(_halfway())
        super()._check_open()

    def _tick(self) -> None:
        if self._durable:
            self._coordinator.tick(time.monotonic())
            self._send(COORDINATOR, self._coordinator.take())

    # ---- the loop

    def _pump(self, done: Callable[[], bool]) -> None:
        """Deliver messages and let workers work until `done()`; raise if the run ends before."""
        self._pumps += 1
        try:
            self._pump_until(done)
            if self._is_passing_on:
                self._end_passing_on()
        finally:
            self._pumps -= 1

    def _pump_until(self, done: Callable[[], bool]) -> None:
        coordinator = self._coordinator
        while not done():
            # Here, and only here, nothing is half done (the *interrupts at boundaries* law).
            if self._settling is None:
                self._raise_interrupt()
                interrupts.check()
            if coordinator.is_over:
                if coordinator.error is not None and not self._closed:
                    raise coordinator.error
                return
            self._stepping = True
            if self._unanswered and not self._outcomes.empty():
                self._take_outcomes(wait=False)
            if self._random is not None:
                busy = self._draw(self._random)
            else:
                busy = self._turn()
            self._deadlines.meet(time.monotonic())
            if not busy:
                if not self._unanswered and not self._deadlines.pending and self._interrupt is None:
                    if done() or self.closed is not None:
                        self._stepping = False
                        continue  # because of what the storage answered just now
                    raise AssertionError(f"nothing to do, and not done: {coordinator.status()}")
                self._take_outcomes(wait=True)
            self._stepping = False
        if self._settling is None:
            self._raise_interrupt()

    def _raise_interrupt(self) -> None:
        if self._interrupt is not None:
            error, self._interrupt = self._interrupt, None
            raise error

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
        """Deliver one message or let one worker do one step, as `source` draws."""
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
                # A run on Spark logged this epoch; its workers put the parcels into the storage.
                assert self._checkpoints is not None
                feed = message
                try:
                    message = Uploads(to, self._checkpoints.storage).filled(feed)
                except TransportError as error:  # an outage: the feed is tried again later
                    self._send(to, [(COORDINATOR, NotReady(feed.execution, error))])
                    self._try_later((to, Feed), lambda: self._deliver(to, sender, feed))
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
            worker = Worker(message.incarnation, self._make, self._note_interrupt)
            self._workers[worker.incarnation] = worker
            self._send(worker.incarnation, worker.take())
        else:
            self._workers.pop(message.incarnation, None)
            self._loops.forget(message.incarnation)

    # ---- the storage

    def _instruct(self, sender: int, instruction: Any) -> None:
        if type(instruction) is Acknowledge:
            self._acknowledge(instruction)
            return
        if self._random is not None:  # a thread would not do the same for the same seed
            outcome = self._execute(instruction)
            if type(instruction) is AppendRecord or outcome.error is not None:
                self._answered(sender, outcome)
            else:
                self._links.setdefault((STORAGE, sender), deque()).append(outcome)
            return
        self._unanswered += 1
        # Bound now: the storage in memory through which states change hands may be dropped later.
        checkpoints, log = self._checkpoints, self._log
        assert checkpoints is not None
        assert log is not None
        outcomes = self._outcomes
        thread = self._storage_threads[AppendRecord if type(instruction) is AppendRecord else Any]
        thread.submit(
            lambda: outcomes.put((sender, execute_and_catch(instruction, checkpoints, log)))
        )

    def _take_outcomes(self, *, wait: bool) -> None:
        """Take in the outcomes that the storage's threads have, and meet the deadlines."""
        while self._unanswered and (wait or not self._outcomes.empty()):
            try:
                sender, outcome = self._outcomes.get(timeout=self._nap())
            except queue.Empty:
                break
            wait = False
            self._unanswered -= 1
            self._answered(sender, outcome)
        if wait:
            if not self._unanswered and self._deadlines.pending:
                time.sleep(self._nap())
            self._tick()
        self._deadlines.meet(time.monotonic())

    def _nap(self) -> float:
        return max(0.0, min(NAP, self._deadlines.first - time.monotonic()))

    def _answered(self, sender: int, outcome: Outcome) -> None:
        """Deliver an outcome. A failure after which the receiver tries again is delivered after a pause."""
        kind = type(outcome.instruction)
        if outcome.error is not None and kind in (AppendRecord, Publish, Read, Recall):
            self._try_later((sender, kind), lambda: self._deliver(sender, STORAGE, outcome))
        else:
            self._failures.pop((sender, kind), None)
            self._deliver(sender, STORAGE, outcome)

    def _try_later(self, attempt: tuple[int, type], act: Callable[[], None]) -> None:
        """Do `act` after a pause, which grows with the failures in a row of this kind of attempt."""
        self._failures[attempt] += 1
        self._deadlines.once(time.monotonic() + pause(self._failures[attempt]), act)


def _halfway() -> RiverrunError:
    return RiverrunError(
        "run.torn",
        "the run was ended: something that no signal's handler raised stopped one of its steps halfway, and what is in "
        "memory is not whole",
        hint="an exception that another thread sets, or too little memory, does that; start the run again: with "
        "checkpoint=PATH it goes on after the last epoch in the log",
    )


class LocalCarrier(Carrier):
    """The carrier for ``on=None``: workers take turns in the thread of whoever waits."""

    place = "in this process"
    takes = frozenset({"seed", "storage"})
    most_workers = 256
    """Each step that moves rows connects every worker with every other one: in one thread, 512 workers take many
    seconds for an epoch of one row, and more of them have no use."""

    def start(self, request: ClusterRequest) -> CarriedRun:
        return LocalCluster(
            self.maker(request),
            request.workers,
            seed=request.seed,
            plan=request.plan,
            **request.durability,
        )

    def maker(self, request: ClusterRequest) -> MakeInstance:
        """What makes the instances of the workers."""
        return Maker(request.plan, request.history, request.memory)

    def suitable_workers(self, on: Any) -> int:
        """One: several workers would share one thread."""
        return 1


CARRIER = LocalCarrier()
