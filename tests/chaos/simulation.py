"""A run under everything that can go wrong, as one deterministic loop.

Coordinator, workers and storage are real. This module carries the messages between them, and draws all choices from one
`random.Random(seed)`. At each step it may deliver a message, let a worker work, execute a storage instruction, or do
harm:

- *pause* a worker; *suspect* a worker that is alive, which goes on as a zombie for a while, sending and writing; *kill*
  a worker, with all its memory (and with the last part of the messages that it had sent);
- *break* a connection: the last messages under way are lost, and both ends notice some time later. Between workers, the
  receiver tells the coordinator, which begins a new execution (no pin was lost, so that is cheap), and late messages
  are refused by the number of their execution. Between coordinator and worker, that incarnation of the worker counts as
  dead, since its later messages cannot be put in order; it lives on as a zombie until it notices;
- *repeat* any message, much later; outcomes of storage too;
- let storage requests fail, fail after they were done (a lost answer), tear (a put that failed), or take so long that
  others act in between, at every single put, get, list and delete; or all of them, for a long while (an *outage*);
- *lose the process*: all workers and the coordinator are gone, or go on for a while as zombies, and a new process takes
  the path over with another number of workers. A write under way may be torn. The owner before may go on to commit, to
  publish and to collect while its successor takes over, and a third owner may take over from both;
- have a process *promised* at its start that the log is kept whole, or that it is not, or nothing;
- ask for checkpoints, for another number of workers, and submit epochs, some of which fail.

Laws:

- **Right.** When an epoch is reported, the instances hold the result of the oracle, from scratch over the committed
  input. An epoch is reported once.
- **Logged stays.** An epoch that was confirmed (`Logged`) is in every later life of the run, unless it was refused.
- **Failing is refused.** An epoch that fails is refused, also by a life that finds the epoch in the log and never heard
  of its refusal. An epoch that was reported is never refused, and no life takes an epoch for acknowledged that was not.
- **Promises stay.** Later lives keep what a life was promised at its start, also if that life never made a checkpoint.
- **Owners go on.** A life that has taken the path over goes on, unless another life takes the path over.
- **All is done.** At the end, when no more harm is done, all submitted epochs are completed or refused, and a fresh
  process that resumes has the same result.

    python -m tests.chaos.simulation --seed 17             # replays a seed with a trace
    python -m tests.chaos.simulation --from 0 --count 500  # tries some
"""

from __future__ import annotations

import argparse
import contextlib
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

from obstore.store import MemoryStore

from riverrun.engine import messages as m
from riverrun.engine.coordinator.phases import Phase
from riverrun.engine.messages import COORDINATOR
from riverrun.errors import RiverrunError, TransportError
from riverrun.retry import persist
from riverrun.storage.log import Log
from riverrun.storage.manifest import manifest_name
from riverrun.storage.records import Record, encode_record, record_name
from riverrun.storage.store import Storage
from riverrun.storage.takeover import Opening, take_over
from tests.chaos.lives import Disk, Life, Sequential, Violation, same
from tests.chaos.programs import Counting, Program

EPOCHS = 10
HARM = 16  # harmful acts in a seed, at most
STEPS = 2_000
SETTLE = 30_000


class Simulation:
    """One seed."""

    def __init__(
        self,
        seed: int,
        program: Program | None = None,
        *,
        epochs: int = EPOCHS,
        harm: int = HARM,
        tracing: bool = False,
    ) -> None:
        self.seed = seed
        self.program = program or Counting()
        self.random = random.Random(seed)
        self.epochs = epochs
        self.harm = self.random.randint(0, harm)
        self.harmful = True
        self.faulty = self.random.choice((0.0, 0.005, 0.03))
        self.away_until = 0
        self.failures_in_a_row = self.longest_outage = 0  # of appends
        self.tracing = tracing
        self.depth = 0
        self.steps = 0
        self.checked = 0
        self.resumed = 0
        """How often a loop went on at a round that was saved."""
        self.submissions = 0
        self.disk = Disk(self, MemoryStore())
        self.lives: list[Life] = []
        self.born = 0
        self.acknowledged = 0
        """Epochs below were reported by some life."""
        self.promised: set[bool] = {False}
        """Whether the log is kept whole, as far as those can know who take over: one may die before it says so."""
        self.contending = 0
        self.is_busy = self.random.random() < 0.3
        """Whether an owner goes on committing and publishing while somebody takes over from it."""
        self.log_is_whole: bool | None = True
        """Whether it must have all records: the promise was given by the first life, and never taken back."""
        self.current: Life | None = None

    def trace(self, *what: Any) -> None:
        if self.tracing:
            print(f"{self.steps:5} {'  ' * self.depth}", *what)

    # ---- the storage

    @contextlib.contextmanager
    def request(
        self, verb: str, name: str, torn: Callable[[], None] | None = None
    ) -> Iterator[None]:
        """A request to the storage: others act meanwhile, and it may fail before or after it is done."""
        chased = self.is_busy and self.contending > 0 and self.depth == 0
        if self.harmful and self.depth < 2 and self.random.random() < (0.5 if chased else 0.05):
            self.depth += 1
            for _ in range(self.random.randint(1, 120 if chased else 40)):
                self.step()
            self.depth -= 1
        fault = ""
        if self.harmful and self.steps < self.away_until:
            fault = "lost" if self.random.random() < 0.05 else "failed"
        elif self.harmful and self.random.random() < self.faulty:
            fault = self.random.choice(("failed", "lost", "torn" if torn else "failed"))
        if fault == "failed":
            raise unreachable(verb, name)
        if fault == "torn" and torn is not None:
            torn()
            raise unreachable(verb, name)
        yield
        if fault == "lost":
            raise unreachable(verb, name)

    # ---- lives

    def begin(self) -> None:
        """A process starts, and takes the path over."""
        self.born += 1
        name = f"life-{self.born}"
        workers = self.random.choice((1, 2, 2, 3, 3, 4))
        old = self.current
        checkpoints, log = Sequential(self.disk), Log(self.disk)
        wanted = self.random.choice((None, None, None, True, False))
        known = set(self.promised)
        self.log_is_whole = self.log_is_whole and (wanted or (wanted is None and known == {True}))
        self.promised |= known if wanted is None else {wanted}  # whether or not it gets to start
        self.contending += 1
        try:
            keep = None if self.born % 2 else 0  # every other life brings no rows along
            opening = take_over(checkpoints, log, identity=name, keep=keep, keep_inputs=wanted)
        except TransportError as error:
            self.trace(name, "cannot start:", error.message)
            return
        finally:
            self.contending -= 1
        self.check_promise(name, opening, self.promised if wanted is None else {wanted})
        if name == f"life-{self.born}" and not self.contending:  # nobody else has come meanwhile
            self.promised = {opening.whole_from is not None}
        if self.current is not old:
            return  # somebody else has been started while we were waiting for the storage
        life = Life(self, name, opening, log, workers)
        life.inherit(old, opening)
        self.trace(life, "starts", opening, workers)
        self.current = life
        self.lives.append(life)
        if old is not None and old in self.lives and old.until == float("inf"):
            old.until = self.steps

    def check_promise(self, name: str, opening: Opening, promise: set[bool]) -> None:
        """Whoever takes over keeps the log as was promised, and has all of it where it was never to be collected."""
        if (opening.whole_from is not None) not in promise:
            raise Violation(
                f"{name} keeps the log from {opening.whole_from}, and was promised {promise}"
            )
        there = Log(Storage(self.disk.store)).positions()
        if self.log_is_whole and there[: opening.next] != [*range(opening.next)]:
            raise Violation(f"{name} was promised a whole log, and finds another")

    def end(self, life: Life) -> None:
        """A process is gone; what it was writing may be torn."""
        self.trace(life, "ends")
        if life in self.lives:
            self.lives.remove(life)
        for (sender, _), queue in life.lanes.items():
            if queue and sender == COORDINATOR and self.harmful and self.random.random() < 0.5:
                self.tear(queue[0])
        life.links.clear()
        life.lanes.clear()
        life.workers.clear()

    def tear(self, instruction: Any) -> None:
        """A power cut leaves part of what was being created."""
        if type(instruction) is m.AppendRecord:
            name = record_name(instruction.position)
            data: Any = encode_record(Record(instruction.header, instruction.inputs))
        elif type(instruction) is m.Publish:
            name, data = manifest_name(instruction.number), b'{"number": 12, "st'
        else:
            return
        with contextlib.suppress(RiverrunError):
            Storage.create(self.disk, name, data[: self.random.randrange(len(data))])

    # ---- steps

    def step(self) -> None:
        self.steps += 1
        life = self.current
        if self.depth == 0 and (life is None or life not in self.lives or life.closed):
            if life is not None and life in self.lives:
                self.end(life)
            self.begin()
            return
        for old in [life for life in self.lives if life.until <= self.steps]:
            if self.depth == 0 or old is not life:
                self.end(old)
        if not self.lives:
            return
        if len(self.lives) > 1 and self.random.random() < 0.4:
            life = self.random.choice(self.lives)
        if life is None or life not in self.lives:
            return
        if self.program.saves_rounds and self.harmful and self.random.random() < 0.1:
            life.coordinator.rounds.tick(float(self.steps))
            life.send(COORDINATOR, life.coordinator.take())
        links = [link for link in life.links if not self._paused(life, link[1])]
        awake = [
            who for who, it in life.workers.items() if it.awake and not self._paused(life, who)
        ]
        lanes = [lane for lane in life.lanes if lane not in life.busy]
        weights = (
            8 if links else 0,
            6 if awake else 0,
            2 if lanes else 0,
            1 if life.notices else 0,
        )
        roll = self.random.random() * (sum(weights) + (1 if self.harmful else 0.5))
        if roll < weights[0]:
            life.deliver(self.random.choice(links))
        elif (roll := roll - weights[0]) < weights[1]:
            life.work(self.random.choice(awake))
        elif (roll := roll - weights[1]) < weights[2]:
            life.store(self.random.choice(lanes))
        elif (roll := roll - weights[2]) < weights[3]:
            life.notice(self.random.randrange(len(life.notices)))
        elif roll - weights[3] < 0.5 or not self.harmful:
            self._ordinary(life)
        else:
            self._harm(life)

    def _paused(self, life: Life, incarnation: int) -> bool:
        process = life.workers.get(incarnation)
        return process is not None and process.paused_until > self.steps

    def _ordinary(self, life: Life) -> None:
        if life.closed:
            return
        coordinator = life.coordinator
        roll = self.random.random()
        if roll < 0.5:
            waiting = coordinator.next - coordinator.completed
            if self.submissions < self.epochs and waiting < 4:
                self.submissions += 1
                life.submit()
        elif roll < 0.75:
            coordinator.tick(float(self.steps))
            life.send(COORDINATOR, coordinator.take())
            for incarnation, process in list(life.workers.items()):
                if process.paused_until <= self.steps:
                    process.worker.tick()
                    life.send(incarnation, process.worker.take())
        elif self.harmful:
            if roll < 0.88 or self.contending:
                coordinator.checkpoint()
            else:
                coordinator.scale(self.random.choice((1, 2, 3, 4)))
            life.send(COORDINATOR, coordinator.take())

    def _harm(self, life: Life) -> None:
        if self.harm <= 0 or not life.workers:
            return
        self.harm -= 1
        incarnation = self.random.choice(list(life.workers))
        roll = self.random.random()
        if roll < 0.05:
            self.away_until = self.steps + self.random.randint(20, 500)
            self.trace("the storage is away")
        elif roll < 0.15:
            life.workers[incarnation].paused_until = self.steps + self.random.randint(20, 400)
            self.trace(life, "pause", incarnation)
        elif roll < 0.35:
            self.trace(life, "kill", incarnation)
            life.remove(incarnation)
        elif roll < 0.5:
            self.trace(life, "suspect", incarnation)
            life.coordinator.lost(incarnation)
            life.send(COORDINATOR, life.coordinator.take())
            if self.random.random() < 0.7:
                life.links.pop((COORDINATOR, incarnation), None)  # it is not told
        elif roll < 0.75:
            others = [COORDINATOR, *(other for other in life.workers if other != incarnation)]
            other = self.random.choice(others)
            self.trace(life, "disconnect", incarnation, other)
            life.disconnect(incarnation, other)
        elif self.depth <= 1 and life is self.current:
            if self.depth or self.random.random() < 0.5:  # deeper: two contend for the path
                life.until = self.steps + self.random.randint(50, 600)
                self.trace(life, "is thought dead")
                self.begin()
            else:
                self.end(life)

    # ---- what must hold

    def check_result(self, life: Life, epoch: int) -> None:
        processes = [life.workers.get(member) for member in life.coordinator.members]
        instances = [process.worker.instance for process in processes if process is not None]
        if len(instances) < len(processes):
            return  # one died after it had answered
        if any(instance is None or instance.completed != epoch + 1 for instance in instances):
            raise Violation(f"epoch {epoch} is reported, and is not complete everywhere")
        past = [life.truth[at] for at in range(epoch + 1)]
        if any(self.program.fails(inputs) for inputs in past):
            raise Violation(f"epoch {epoch} is reported, and one before it should have failed")
        self.checked += 1
        expected, result = self.program.oracle(past), self.program.read(instances, epoch)
        if result != expected:
            raise Violation(f"epoch {epoch} of {life}: {result} instead of {expected}")

    def run(self) -> Simulation:
        """Do everything; raise where something is wrong."""
        names = mock.patch("riverrun.state.block.uuid4", Names(self.seed))
        with names, mock.patch("riverrun.storage.takeover.persist", persist_at_once):
            while self.steps < STEPS and self.submissions < self.epochs + 1:
                self.step()
                if self.submissions == self.epochs and self.steps > STEPS // 2:
                    break
            self.settle()
            self.resume()
        return self

    def settle(self) -> None:
        """No more harm: everything gets done."""
        self.trace("no more harm")
        self.harmful = False
        for old in [life for life in self.lives if life is not self.current]:
            self.end(old)
        for _ in range(SETTLE):
            self.step()
            life = self.current
            if life is None or life not in self.lives or life.until < float("inf"):
                continue
            for process in life.workers.values():
                process.paused_until = 0
            coordinator = life.coordinator
            if (
                coordinator.phase is Phase.RUNNING
                and coordinator.completed == coordinator.next
                and not life.notices
                and not life.lanes
                and not life.links
            ):
                break
        else:
            status = life.coordinator.status() if life else None
            raise Violation(f"it does not get done: {status} {life and life.links}")
        if life.coordinator.completed:
            self.check_result(life, life.coordinator.completed - 1)
        for process in life.workers.values():
            if len(process.worker.pinned) > 4:
                raise Violation(f"too many pins are kept: {process.worker.pinned}")
        if self.random.random() < 0.5:
            self.save(life)

    def save(self, life: Life) -> None:
        """A checkpoint can be made."""
        coordinator = life.coordinator
        for _ in range(4):  # the first may find that somebody else has published
            coordinator.checkpoint()
            life.send(COORDINATOR, coordinator.take())
            for _ in range(SETTLE):  # further epochs may come while it is written
                self.step()
                if not (life.links or life.lanes) and coordinator.completed == coordinator.next:
                    break
            if coordinator.saver.epoch == coordinator.completed and coordinator.saver.number:
                return
        raise Violation(f"no checkpoint can be made: {coordinator.status()}")

    def resume(self) -> None:
        """A fresh process gets the same."""
        life = self.current
        assert life is not None
        epochs, truth = life.coordinator.next, life.truth
        self.end(life)
        self.begin()
        heir = self.current
        assert heir is not None
        for _ in range(SETTLE):
            self.step()
            if heir.coordinator.phase is Phase.RUNNING and heir.coordinator.completed == epochs:
                break
        else:
            raise Violation(f"it does not resume: {heir.coordinator.status()}")
        if [same(truth[e], heir.truth[e]) for e in range(epochs)].count(False):
            raise Violation("it resumes with other input")
        if epochs:
            self.check_result(heir, epochs - 1)


def unreachable(verb: str, name: str) -> TransportError:
    return TransportError("storage.unreachable", f"cannot {verb} {name}: harm", hint="try again")


def persist_at_once(act: Callable[[], Any], what: str, **options: Any) -> Any:
    """`persist` on a clock of its own, on which every pause takes a second: it gives up after as many tries in every
    replay of a seed, and nobody waits."""
    pauses: list[float] = []
    return persist(act, what, wait=pauses.append, clock=lambda: float(len(pauses)), **options)


class Names:
    """In place of `uuid4`: names from a seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed + 1)

    def __call__(self) -> Any:
        return mock.NonCallableMock(hex=f"{self._random.getrandbits(128):032x}")


def simulate(seeds: Sequence[int], program: Program | None = None, **options: Any) -> int:
    """Run some seeds; the first that fails says how to see it again."""
    checked = 0
    for seed in seeds:
        try:
            checked += Simulation(seed, program, **options).run().checked
        except Exception as error:
            name = (program or Counting()).name
            raise Violation(
                f"seed {seed} fails: {type(error).__name__}: {error}\n"
                f"python -m tests.chaos.simulation --program {name} --seed {seed}"
            ) from error
    return checked


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="a run under everything that can go wrong")
    parser.add_argument("--seed", type=int, help="replay this one with a trace")
    parser.add_argument("--from", dest="first", type=int, default=0)
    parser.add_argument("--count", type=int, default=100)
    from tests.chaos.flows import FLOWS

    programs = {"counting": Counting, **FLOWS}
    parser.add_argument("--program", choices=programs, default="counting")
    options = parser.parse_args(arguments)
    program = programs[options.program]()
    if options.seed is not None:
        Simulation(options.seed, program, tracing=True).run()
        return 0
    start, failed, checked = time.perf_counter(), 0, 0
    for seed in range(options.first, options.first + options.count):
        try:
            checked += Simulation(seed, program).run().checked
        except Exception as error:
            failed += 1
            print(f"seed {seed}: {type(error).__name__}: {str(error)[:300]}")
    took = (time.perf_counter() - start) / options.count
    print(
        f"{options.count} seeds, {failed} failed, {checked} results compared, {took * 1e3:.1f} ms a seed"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
