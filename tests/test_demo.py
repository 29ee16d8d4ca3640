"""The sample that the demo reads is there, small and whole; its program agrees with plain Python."""

from __future__ import annotations

import pytest

from examples import plain
from examples.npm import SAMPLE, Npm, load
from examples.registry import Registry, program

FEW = 4000  # packages


@pytest.fixture(scope="module")
def npm() -> Npm:
    return load()


def test_the_sample_is_small_and_tells_its_origin() -> None:
    assert SAMPLE.stat().st_size <= 2_000_000
    origin = (SAMPLE.parent / "ORIGIN.md").read_text()
    assert SAMPLE.name in origin
    assert "MIT" in origin


def test_the_sample_is_what_its_origin_says(npm: Npm) -> None:
    origin = (SAMPLE.parent / "ORIGIN.md").read_text()
    assert f"{len(npm.packages):,} packages" in origin
    assert f"{len(npm.dependencies):,} dependencies" in origin
    assert npm.packages == sorted(set(npm.packages))
    assert len(set(npm.dependencies)) == len(npm.dependencies)


def test_left_pad_breaks_what_the_demo_says(npm: Npm) -> None:
    left_pad = npm.number["left-pad"]
    backwards = [(dst, src) for src, dst in npm.dependencies]
    direct = {src for src, dst in npm.dependencies if dst == left_pad}
    assert len(direct) == 84
    assert len(plain.reached({left_pad}, backwards)) == 134 + 1


def test_plain_components() -> None:
    edges = [(1, 2), (2, 3), (3, 1), (3, 4), (4, 5), (5, 4), (7, 8)]
    assert plain.strong_components(edges) == {1: 1, 2: 1, 3: 1, 4: 4, 5: 4, 7: 7, 8: 8}
    weak = plain.weak_components(range(1, 9), edges)
    assert weak == {1: 1, 2: 1, 3: 1, 4: 1, 5: 1, 6: 6, 7: 7, 8: 7}


@pytest.mark.parametrize("workers", [1, 2])
def test_the_program_agrees_with_plain_python(npm: Npm, workers: int) -> None:
    with program().run(workers=workers) as run:
        registry = Registry(run)
        few = [pair for pair in npm.dependencies if max(pair) < FEW]
        registry.publish(range(FEW), few)
        registry.commit()
        registry.check()
        assert run.read("broken").rows() == []
        needed = sorted({dependency for _, dependency in few})
        for package in (needed[0], needed[-1]):
            registry.unpublish(package)
            registry.commit()
            registry.check()
        assert len(run.read("broken")) > 0
        registry.drop(*few[len(few) // 2])
        needing = min(src for src, dst in few if dst == needed[0])
        registry.publish(
            [needed[0]], [(needed[0], needing)]
        )  # back, in a circle with what needs it
        registry.commit()
        registry.check()
