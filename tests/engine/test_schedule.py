"""The schedule of several workers, on random graphs: nothing comes late, nothing is forgotten.

A node of the graph is an exchange, an actor (it asks to be run at the times at which something came, and sends
when it is run), or something that passes on what comes. Which worker is next, what it sends and where
to, how long messages and tidings take is all random; only the tidings of one worker keep their order.

Checked: nothing comes to an actor at or before a time at which it was run, nor at a time that its `upper`
ruled out; uppers never go back; what is said to be complete is; and in the end everything asked for was
run, and every epoch is complete on every worker, though nobody tells anything that nobody needs.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

import riverrun as rr
from riverrun.algorithms.graphs.components import components
from riverrun.engine.schedule import Alone, Together, after
from riverrun.operators.exchange import Exchange
from riverrun.plan.operator import Operator
from riverrun.plan.placement import staying
from riverrun.progress import Antichain, Timestamp
from riverrun.progress.reachability import ProgressChange
from tests.progress.model import at_or_before
from tests.strategies import nested_graph, seeds, take_step

EPOCHS = 3


@dataclass
class Fake:
    """An actor that sends at random."""

    node: Any
    waits: bool
    pending: set[Timestamp] = field(default_factory=set)
    ran: list[Timestamp] = field(default_factory=list)
    upper: Antichain = field(default_factory=Antichain)


class Site:
    """One worker."""

    def __init__(self, world: World, index: int, kind: type[Together]) -> None:
        self.world, self.index = world, index
        self.schedule = kind(world.plan, 0, index, world.workers)
        self.actors = {
            number: Fake(world.plan.nodes[number], waits) for number, waits in world.waits.items()
        }
        self.fed = 0
        self.pushes = 0  # in this event

    def push(self, output: int, time: Timestamp) -> None:
        self.pushes += 1
        if (
            self.world.workers == 1 and time[0] >= self.fed
        ):  # alone, an epoch causes nothing in others
            return
        self.world.happened["pushed"] += 1
        if time[0] >= EPOCHS or max(time) > 9 or self.pushes > 30:  # it ends some time
            return
        if self.world.happened["pushed"] > 20_000:  # and soon: some worlds are very lively
            return
        for target, _ in self.world.graph.steps.get(output, ()):
            self.arrive(target, time)

    def arrive(self, port: int, time: Timestamp) -> None:
        world, rng = self.world, self.world.rng
        number = world.owner[port]
        if number in world.exchanges:
            to = rng.randrange(world.workers)
            if to == self.index:
                self.schedule.passes(port, [time])
                self.push(world.graph.steps[port][0][0], time)
            else:
                self.schedule.sends(port, to, [time])
                world.data.append((to, port, time))
            return
        self.schedule.passes(port, [time])
        if number not in self.actors:
            for output, step in world.graph.steps.get(port, ()):
                if rng.random() < world.liveliness:
                    self.push(output, take_step(step, time))
            return
        actor = self.actors[number]
        if actor.waits:
            for earlier in actor.ran:
                assert not at_or_before(time, earlier), (
                    f"{time} comes after {earlier}: {world.story}"
                )
            if actor.ran:
                assert actor.upper.less_equal(time), f"{time} was ruled out: {world.story}"
        self.ask(actor, time)
        if rng.random() < 0.1:  # as a group does: at a later round of the same epoch
            later = tuple(n + (at > 0) * rng.randrange(3) for at, n in enumerate(time))
            self.ask(actor, later)

    def ask(self, actor: Fake, time: Timestamp) -> None:
        if time not in actor.pending:
            actor.pending.add(time)
            self.schedule.request(actor, time)  # type: ignore[arg-type]

    def feed(self) -> None:
        epoch, self.fed = self.fed, self.fed + 1
        for source in self.world.plan.sources:
            for _ in range(self.world.rng.randrange(5)):
                self.push(source, (epoch,))
        self.schedule.close(epoch)
        self.settle()

    def receive(self, port: int, time: Timestamp) -> None:
        assert time[0] >= self.schedule.completed, f"{time} comes after all: {self.world.story}"
        self.schedule.takes(port, [time])
        self.push(self.world.graph.steps[port][0][0], time)
        self.settle()

    def settle(self) -> None:
        self.pushes = 0
        self.schedule.settle()

    def work(self, most: int) -> bool:
        world, rng = self.world, self.world.rng
        for step in range(most):
            turn = self.schedule.next()
            if turn is None:
                world.happened["blocked"] += len(self.schedule._blocked) > 0
                return step > 0
            actor, time, upper = turn
            assert isinstance(actor, Fake)
            actor.pending.remove(time)
            if actor.waits:
                assert not upper.less_equal(time), f"{time} is not past: {world.story}"
                assert not actor.ran or actor.upper.dominates(upper), f"back: {world.story}"
                for other in actor.pending:
                    assert upper.less_equal(other), f"{other} was ruled out: {world.story}"
                actor.ran.append(time)
                actor.upper = upper
            for output in world.plan.ports[actor.node.number].outputs:
                for _ in range(rng.randrange(3)):
                    if rng.random() < world.liveliness:
                        self.push(output, time)
            self.schedule.ran(actor, time)  # type: ignore[arg-type]
            self.settle()
            world.happened["ran"] += 1
        return True

    def tell(self) -> bool:
        news = self.schedule.tell()
        if news:
            for to in range(self.world.workers):
                if to != self.index:
                    self.world.tidings[self.index, to].append(news)
        self.world.check_complete()
        return bool(news)


class World:
    def __init__(self, seed: int, size: int, workers: int, kind: type[Together] = Together) -> None:
        self.story = f"seed={seed} size={size} workers={workers}"
        self.rng = rng = random.Random(seed)
        self.graph = graph = nested_graph(seed, size)
        self.workers = workers
        self.happened: Counter[str] = Counter()
        self.liveliness = rng.choice((0.5, 0.8, 0.95))
        self.overlap = rng.random() < 0.5  # of epochs
        self.owner = {port: at for at, node in enumerate(graph.nodes) for port in node.inputs}
        self.exchanges: set[int] = set()
        self.waits: dict[int, bool] = {}
        for at, node in enumerate(graph.nodes):
            inner = [graph.steps.get(port, []) for port in node.inputs]
            if not node.inputs or not node.outputs:
                continue
            if any(
                [step for _, step in steps] != [("same",)] * len(node.outputs) for steps in inner
            ):
                continue
            if len(node.inputs) == len(node.outputs) == 1 and rng.random() < 0.5:
                self.exchanges.add(at)
            else:
                self.waits[at] = rng.random() < 0.9
        plain = Operator()
        self.plan: Any = SimpleNamespace(
            topology=graph.topology,
            ports=graph.nodes,
            sources=[
                node.outputs[0]
                for node in graph.nodes
                if not node.inputs and node.outputs and graph.depths[node.outputs[0]] == 1
            ],
            nodes=[
                SimpleNamespace(
                    number=at,
                    operator=Exchange("any") if at in self.exchanges else plain,
                    depth=0,
                    inputs=(),
                    schemas=(),
                )
                for at in range(len(graph.nodes))
            ],
            cycles=[],  # nothing is said of placements: no exchange stays
        )
        self.data: list[tuple[int, int, Timestamp]] = []
        self.tidings: dict[tuple[int, int], deque[tuple[ProgressChange, ...]]] = {
            (a, b): deque() for a in range(workers) for b in range(workers)
        }
        self.sites = [Site(self, at, kind) for at in range(workers)]

    def outstanding(self, site: Site) -> set[int]:
        """The epochs of which something is left at a worker, or on its way there."""
        epochs = {time[0] for to, _, time in self.data if to == site.index} | {site.fed}
        for actor in site.actors.values():
            epochs.update(time[0] for time in actor.pending)
        return epochs

    def check_complete(self) -> None:
        """What is complete at a worker is so; what is complete at all of them, is so everywhere."""
        for site in self.sites:
            for epoch in self.outstanding(site):
                assert epoch >= site.schedule.completed, f"{epoch} goes on: {self.story}"

    def deliver(self) -> None:
        waiting = [pair for pair, batches in self.tidings.items() if batches]
        if self.data and (not waiting or self.rng.random() < 0.5):
            to, port, time = self.data.pop(self.rng.randrange(len(self.data)))
            self.sites[to].receive(port, time)
        elif waiting:
            pair = self.rng.choice(waiting)
            self.sites[pair[1]].schedule.apply(self.tidings[pair].popleft())

    def run(self) -> World:
        rng, steps = self.rng, 0
        while any(site.fed < EPOCHS for site in self.sites) or rng.random() < 0.99:
            steps += 1
            assert steps < 50_000, f"they wait in vain: {self.story}"
            site = rng.choice(self.sites)
            least = min(other.schedule.completed for other in self.sites)
            action = rng.random()
            if action < 0.1:
                if site.fed < EPOCHS and (self.overlap or site.fed <= least):
                    site.feed()
            elif action < 0.5:
                self.deliver()
            elif action < 0.8:
                site.work(rng.choice((1, 3, 64)))
            else:
                site.tell()
        moved = True
        while moved:
            steps += 1
            assert steps < 50_000, f"they wait in vain: {self.story}"
            moved = False
            for site in self.sites:
                moved |= site.work(64) | site.tell()
            while self.data or any(self.tidings.values()):
                self.deliver()
                moved = True
        for site in self.sites:
            left = {at: a.pending for at, a in site.actors.items() if a.pending}
            assert not left, f"they wait in vain: {left}: {self.story}"
            assert site.schedule.completed == EPOCHS, f"an epoch never ends: {self.story}"
        return self


@given(seeds, st.integers(2, 5), st.integers(2, 4))
def test_nothing_comes_late_and_nothing_is_forgotten(seed: int, size: int, workers: int) -> None:
    World(seed, size, workers).run()


class Lonely(Alone):
    """The schedule of one worker, in the same world."""

    _blocked = ()

    def __init__(self, plan: Any, epoch: int, *_: int) -> None:
        super().__init__(plan, epoch)

    def passes(self, location: int, times: Any) -> None:
        pass

    def tell(self) -> tuple[()]:
        return ()


@given(seeds, st.integers(2, 5))
def test_one_worker_needs_no_protocol(seed: int, size: int) -> None:
    World(seed, size, 1, Lonely).run()  # type: ignore[arg-type]


def test_the_simulation_does_all_it_can_do() -> None:
    happened: Counter[str] = Counter()
    for seed in range(60):
        world = World(seed, 5, 3).run()
        happened += world.happened
        uppers = [actor.upper for site in world.sites for actor in site.actors.values()]
        happened["uppers"] += sum(len(upper) > 1 for upper in uppers)
    assert happened["ran"] > 300, happened
    assert happened["blocked"] > 20, happened
    assert happened["uppers"] > 50, happened


class Hasty(Together):
    """Waits for nobody."""

    def _must_wait(self, request: Any) -> bool:
        return False


class Disordered(Together):
    """Takes what was asked for in the order of nodes."""

    def request(self, actor: Any, time: Timestamp) -> None:
        super().request(actor, time)
        for request in self._heap:
            request.order = (0,)
        self._heap.sort()


class Deaf(Together):
    """Hears of half of what others tell."""

    def apply(self, batch: Any) -> None:
        super().apply(batch[::2])


class Stale(Together):
    """Looks at its messages, but not again at what they blocked."""

    def _look(self) -> None:
        self._border.catch_up()


class Forward(Together):
    """Takes what comes after a time for all that comes, as if it were alone."""

    def _upper(self, request: Any) -> Antichain:
        return after(request.time)


@pytest.mark.parametrize(
    ("kind", "notices"),
    [
        (Hasty, ["comes after", "ruled out", "is not past"]),
        (Disordered, ["comes after", "ruled out", "back"]),
        (Deaf, ["in vain", "never ends", "comes after", "ruled out", "goes on"]),
        (Stale, ["in vain", "comes after", "ruled out"]),
        (Forward, ["ruled out", "back"]),
    ],
)
def test_a_broken_schedule_is_noticed(kind: type[Together], notices: list[str]) -> None:
    noticed = []
    for seed in range(2000):
        try:
            World(seed, 5, 3, kind).run()
        except AssertionError as error:
            noticed.append(str(error))
            break
    assert any(notice in error for error in noticed for notice in notices), noticed


def names_of_staying(flow: rr.Dataflow) -> list[str]:
    plan = flow.plan
    return [plan.nodes[number].name for number in sorted(staying(plan))]


def test_what_is_split_by_the_key_already_stays() -> None:
    flow = rr.Dataflow("graph")
    edges = flow.input("edges", {"src": pl.Int64, "dst": pl.Int64})
    flow.output("components", components(edges, prioritised=True))
    assert names_of_staying(flow) == ["loop-1/exchange-1"]


def test_only_the_same_columns_in_the_same_order_stay() -> None:
    flow = rr.Dataflow("sales")
    sales = flow.input("sales", {"shop": pl.String, "day": pl.Int64, "item": pl.String})
    days = sales.group_by("shop", "day").count()
    swapped = days.select("day", "shop", "count").group_by("day", "shop").agg(most=rr.max("count"))
    same = days.select("count", "shop", "day").group_by("shop", "day").agg(most=rr.max("count"))
    flow.output("swapped", swapped)
    flow.output("same", same)
    plan = flow.plan
    stays = [plan.nodes[number] for number in sorted(staying(plan))]
    assert [node.operator.names for node in stays] == [("shop", "day")]  # type: ignore[attr-defined]
