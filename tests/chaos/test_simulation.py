"""The protocol survives everything that the simulation does to it; and the simulation would notice."""

from __future__ import annotations

import io
from contextlib import redirect_stdout

import pytest

from tests.chaos.flows import FLOWS, DrawnLoops
from tests.chaos.mutants import MUTANTS, NOTICED_BY, PROGRAMS, noticed, quiet
from tests.chaos.relaying import SHARING
from tests.chaos.simulation import Simulation, simulate
from tests.soaking import SOAK, Shown, draws, first_seed, some

SEEDS = draws(100, sample=1000, soak=6_000)
PROGRAM_SEEDS = draws(3, sample=20, soak=80)
LOOPS = draws(4, sample=20, soak=200)
SLOW_SEEDS = draws(1, sample=2, soak=8)
FIRST = first_seed(0)
CHUNKS = draws(4, sample=20, soak=20)

pytestmark = pytest.mark.sampled


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_counting_survives(chunk: int) -> None:
    seeds = range(FIRST + chunk * SEEDS // CHUNKS, FIRST + (chunk + 1) * SEEDS // CHUNKS)
    with quiet():
        assert simulate(seeds) >= 3 * len(seeds)  # results were compared


def test_the_storage_is_away_for_longer_than_any_number_of_tries() -> None:
    shown = Shown(longer_than_5=3, longer_than_20=1)
    with quiet():
        for turn in shown.turns(60):
            longest = Simulation(FIRST + turn).run().longest_outage
            shown["longer_than_5"] += longest > 5
            shown["longer_than_20"] += longest > 20


@pytest.mark.parametrize("name", FLOWS)
def test_programs_survive(name: str) -> None:
    slow = name == "strong" or name in SHARING  # they take their time
    seeds = SLOW_SEEDS if slow else PROGRAM_SEEDS
    with quiet():
        assert simulate(range(FIRST, FIRST + seeds), FLOWS[name]()) > 0


@pytest.mark.parametrize("name", ["long walks", "grown"])
def test_loops_go_on_at_rounds_that_were_saved(name: str) -> None:
    shown = Shown(resumed=1)
    with quiet():
        for turn in shown.turns(draws(6, sample=20, soak=100), limit=20):
            simulation = Simulation(FIRST + turn, FLOWS[name](), harm=60)
            shown["resumed"] += simulation.run().resumed


@pytest.mark.parametrize("seed", range(FIRST, FIRST + LOOPS))
def test_programs_with_drawn_loops_survive(seed: int) -> None:
    program = DrawnLoops(seed)
    with quiet():
        assert simulate(range(seed, seed + 2), program) > 0, program.name


@pytest.mark.parametrize("name", some(MUTANTS, 11))
def test_a_broken_protocol_is_noticed(name: str) -> None:
    known = [NOTICED_BY[name]] if SOAK != "all" and name in NOTICED_BY else []
    seeds = 100 if name in PROGRAMS else 400
    assert noticed(name, [*known, *range(seeds)]) is not None  # most of them much earlier


def test_a_seed_replays_exactly() -> None:
    def trace(seed: int) -> str:
        with redirect_stdout(io.StringIO()) as printed, quiet():
            Simulation(seed, tracing=True).run()
        return printed.getvalue()

    for seed in (3, 4):
        assert trace(seed) == trace(seed)
