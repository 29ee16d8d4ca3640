"""The in-process transport: a coordinator and its workers in one thread.

A `LocalCluster` carries messages, has storage instructions executed, and starts workers when the
coordinator asks for them. It runs while somebody waits: `submit` queues an epoch, `wait` works until
it is complete. Laws:

1. **Order.** Messages between two actors arrive in the order in which they were sent; with a `seed`,
   that is all: who is next is drawn at random, the same for the same seed.
2. **Logged first.** With a checkpoint path, `submit` returns when the input is in the log.
3. **Beside.** Checkpoints are written, published, read and collected by one other thread, in the
   order in which that was asked for, while epochs go on.
4. **Usable.** When an epoch is refused, `wait` raises why, and the run is as it was before it.
   When the run is over, `closed` says why, and every call raises it.

>>> class Sum:
...     def __init__(self, index, bounds, epoch, states):
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
from datetime import timedelta
from pathlib import Path
from typing import Any, Self
from uuid import uuid4

from riverrun.engine.coordinator import Coordinator, Phase, Policy, closed_error
from riverrun.engine.messages import (
    CLIENT,
    COORDINATOR,
    STORAGE,
    SUPERVISOR,
    Append,
    Inputs,
    Instance,
    MakeInstance,
    Outcome,
    Outputs,
    Refused,
    Saved,
    Scaled,
    Start,
    Stop,
)
from riverrun.engine.storing import execute
from riverrun.engine.worker import Worker
from riverrun.errors import CheckpointError, RiverrunError
from riverrun.state.checkpoint import Checkpoints
from riverrun.state.log import Log, Opening, take_over
from riverrun.state.storage import Storage

EVERY = timedelta(seconds=30)
_DELAYS = (0.05, 0.2, 0.8, 2.0)  # seconds before an append that failed is tried again


class LocalCluster:
    """A run of `workers` workers in this process."""

    def __init__(
        self,
        make_instance: MakeInstance,
        workers: int = 1,
        *,
        checkpoint: str | Path | Storage | None = None,
        every: int | timedelta | None = EVERY,
        fingerprint: Mapping[str, Any] | None = None,
        retain: int = 2,
        policy: Policy = "replace",
        skip_failing: bool = False,
        seed: int | None = None,
    ) -> None:
        """Start a run, or resume the one whose checkpoints are at the path.

        `every` is the distance of checkpoints, in epochs or time; None for only those asked for.
        """
        self._make = make_instance
        self._checkpoints: Checkpoints | None = None
        self._log: Log | None = None
        opening: Opening | None = None
        if checkpoint is not None:
            self._checkpoints = Checkpoints(checkpoint)
            self._log = Log(self._checkpoints.storage)
            opening = take_over(
                self._checkpoints, self._log, identity=uuid4().hex, fingerprint=fingerprint
            )
        self._coordinator = Coordinator(
            workers,
            opening=opening,
            every=every if checkpoint is not None else None,
            retain=retain,
            fingerprint=fingerprint,
            policy=policy,
            skip_failing=skip_failing,
        )
        self._timed = checkpoint is not None and isinstance(every, timedelta)
        self._workers: dict[int, Worker] = {}
        self._errors: dict[int, RiverrunError] = {}
        self._answers: dict[type, Any] = {}
        self._pool: ThreadPoolExecutor | None = None
        self._outcomes: queue.SimpleQueue[tuple[int, Outcome]] = queue.SimpleQueue()
        self._asked = 0  # instructions that have not been answered
        self._appends = 0
        self._random = None if seed is None else random.Random(seed)
        self._mail: deque[tuple[int, int, Any]] = deque()  # to, from, message
        self._links: dict[tuple[int, int], deque[Any]] = {}
        self._closed = False
        self._send(COORDINATOR, self._coordinator.take())
        try:
            self._pump(self._caught_up)
        except BaseException:
            self.close()
            raise
        self._coordinator.limit = self._coordinator.next

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<LocalCluster of {len(self._coordinator.members)} workers at epoch {self.epoch}>"

    # ---- what a client does

    @property
    def epoch(self) -> int:
        """The number of the next epoch to be submitted."""
        return self._coordinator.next

    @property
    def completed(self) -> int:
        """All epochs below are complete everywhere."""
        return self._coordinator.completed

    @property
    def instances(self) -> list[Instance]:
        """The current instances, by index; for reading at a boundary. After a loss, waits for recovery."""
        if not self._closed and not self._recovered():
            self._pump(self._recovered)
        found = [self._workers.get(member) for member in self._coordinator.members]
        return [worker.instance for worker in found if worker and worker.instance]

    @property
    def closed(self) -> str | None:
        """Why the run is over; None while it is not."""
        if self._coordinator.error is not None:
            return self._coordinator.error.message
        return "it was closed" if self._closed else None

    @property
    def application(self) -> Mapping[str, Any]:
        """What checkpoints keep for the application: JSON. After a resume, what the checkpoint had."""
        return self._coordinator.application

    @application.setter
    def application(self, fields: Mapping[str, Any]) -> None:
        self._coordinator.application = fields

    def submit(self, inputs: Inputs) -> int:
        """Accept the input of the next epoch; return its number when it is in the log."""
        coordinator = self._coordinator
        self._check_open()
        epoch = coordinator.submit(inputs)
        self._errors.pop(epoch, None)
        self._send(COORDINATOR, coordinator.take())
        if coordinator.error is not None:
            raise coordinator.error
        return epoch

    def wait(self, epoch: int) -> None:
        """Work until an epoch is complete everywhere; raise why, if it is refused."""
        coordinator, errors = self._coordinator, self._errors
        self._check_open()
        if epoch >= coordinator.next and epoch not in errors:
            raise ValueError(f"epoch {epoch} was not submitted; the next one is {coordinator.next}")
        if self._timed:
            coordinator.tick(time.monotonic())
        if (
            coordinator.limit <= epoch
        ):  # those after it wait, so that instances can be read as of it
            coordinator.allow(epoch + 1)
        self._send(COORDINATOR, coordinator.take())
        running = Phase.RUNNING

        def done() -> bool:
            return (
                coordinator.completed > epoch or epoch in errors
            ) and coordinator.phase is running

        try:
            self._pump(done)
        except KeyboardInterrupt:  # whoever was interrupted has failed: see it refused
            self._pump(done)
            raise
        if epoch in errors:
            raise errors[epoch]

    def checkpoint(self) -> int:
        """Make a checkpoint at the next boundary; return its number when it is published."""
        self._check_open()
        self._need_storage("make a checkpoint")
        answers, least = self._answers, self._coordinator.completed
        answers.pop(Saved, None)
        self._ask(self._coordinator.checkpoint)
        self._pump(lambda: Saved in answers and answers[Saved].epoch >= least)
        saved: Saved = answers[Saved]
        if saved.error is not None:
            raise saved.error
        return saved.number

    def scale(self, workers: int) -> None:
        """Go on with another number of workers; return when they have taken over."""
        self._check_open()
        if self._checkpoints is None:  # what changes hands does so through a storage in memory
            self._checkpoints = Checkpoints("memory:///")
            self._log = Log(self._checkpoints.storage)
        answers = self._answers
        answers.pop(Scaled, None)
        self._ask(lambda: self._coordinator.scale(workers))
        self._pump(lambda: Scaled in answers and self._recovered())
        scaled: Scaled = answers[Scaled]
        if self._coordinator.opening is None and self._coordinator.saver.number == 0:
            self._take_outcomes(wait=self._asked > 0)
            self._checkpoints = self._log = None
        if scaled.error is not None:
            raise scaled.error

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

    def _recovered(self) -> bool:
        """Whether all that was reported is there."""
        coordinator = self._coordinator
        return coordinator.phase is Phase.RUNNING and coordinator.completed >= coordinator.reported

    def _caught_up(self) -> bool:
        """Whether all that was in the log is done again."""
        coordinator = self._coordinator
        return coordinator.phase is Phase.RUNNING and coordinator.completed == coordinator.next

    # ---- the loop

    def _ask(self, question: Callable[[], None]) -> None:
        question()
        self._send(COORDINATOR, self._coordinator.take())

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

    def _tell(self, message: Any) -> None:
        kind = type(message)
        if kind is Refused:
            self._errors[message.epoch] = message.error
        elif kind is Saved or kind is Scaled:
            self._answers[kind] = message

    def _supervise(self, message: Start | Stop) -> None:
        if isinstance(message, Start):
            worker = Worker(message.incarnation, self._make)
            self._workers[worker.incarnation] = worker
            self._send(worker.incarnation, worker.take())
        else:
            self._workers.pop(message.incarnation, None)

    # ---- the storage

    def _instruct(self, sender: int, instruction: Any) -> None:
        checkpoints, log = self._checkpoints, self._log
        assert checkpoints is not None
        assert log is not None
        if type(instruction) is Append:
            outcome = execute(instruction, checkpoints, log)
            if outcome.error is None:
                self._appends = 0
            else:
                time.sleep(_DELAYS[min(self._appends, len(_DELAYS) - 1)])
                self._appends += 1
            self._deliver(sender, STORAGE, outcome)
            return
        if self._random is not None:  # the same for the same seed: no thread
            outcome = execute(instruction, checkpoints, log)
            self._links.setdefault((STORAGE, sender), deque()).append(outcome)
            return
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, "riverrun-checkpoint")
        self._asked += 1
        self._pool.submit(self._execute, sender, instruction, checkpoints, log)

    def _execute(self, sender: int, instruction: Any, checkpoints: Checkpoints, log: Log) -> None:
        try:
            outcome = execute(instruction, checkpoints, log)
        except Exception as error:  # a thread has nobody to raise to
            outcome = Outcome(instruction, error=_unexpected(instruction, error))
        self._outcomes.put((sender, outcome))

    def _take_outcomes(self, *, wait: bool) -> None:
        while self._asked:
            try:
                sender, outcome = self._outcomes.get(block=wait)
            except queue.Empty:
                return
            wait = False
            self._asked -= 1
            self._deliver(sender, STORAGE, outcome)

    def _need_storage(self, what: str) -> None:
        if self._coordinator.opening is None:
            raise CheckpointError(
                "checkpoint.no_path",
                f"cannot {what}: the run has no checkpoint path",
                hint="start it with checkpoint=PATH",
            )

    def _check_open(self) -> None:
        if self._coordinator.error is not None:
            raise self._coordinator.error
        if self._closed:
            raise closed_error(None)


def _unexpected(instruction: Any, error: Exception) -> CheckpointError:
    wrapped = CheckpointError(
        "checkpoint.raised",
        f"cannot {type(instruction).__name__.lower()}: {type(error).__name__}: {error}",
        hint="the cause has the traceback",
    )
    wrapped.__cause__ = error
    return wrapped
