"""All that is decoded from peers or storage: mutations of real encodings here, coverage-guided ones in a soak."""

from __future__ import annotations

import importlib.util
import os
import random
import subprocess
import sys
import tempfile

import pytest

from tests.fuzz.targets import LIMIT, TARGETS
from tests.soaking import draws, first_seed


def mutated(source: random.Random, data: bytes, other: bytes) -> bytes:
    """Bytes that were ours: flipped, overwritten, cut, doubled, or spliced with others."""
    out = bytearray(data)
    for _ in range(source.choice([1, 1, 2, 5])):
        at = source.randrange(len(out) + 1)
        kind = source.randrange(6)
        if kind == 0 and out:
            out[at % len(out)] ^= 1 << source.randrange(8)
        elif kind == 1 and out:
            out[at % len(out)] = source.choice([0, 1, 0x7F, 0x80, 0xC1, 0xDD, 0xFF])
        elif kind == 2:
            width = source.choice([2, 4, 8])
            out[at : at + width] = source.randrange(1 << 8 * width).to_bytes(width, "little")
        elif kind == 3:
            del out[at : at + source.randint(1, 64)]
        elif kind == 4:
            out[at:at] = out[source.randrange(len(out) + 1) :]
        else:
            out[at:] = other[source.randrange(len(other) + 1) :]
    return bytes(out[:LIMIT])


@pytest.mark.parametrize("name", TARGETS)
def test_real_encodings_are_read(name: str) -> None:
    target = TARGETS[name]
    for seed in target.seeds():
        assert 0 < len(seed) < LIMIT
        target.decode(seed)
    target.decode(b"")


@pytest.mark.parametrize("name", TARGETS)
def test_mutations_raise_nothing_unsaid(name: str) -> None:
    target, source = TARGETS[name], random.Random(first_seed())
    seeds = target.seeds()
    for _ in range(draws(300, sample=3000, soak=20_000) // target.slowness):
        data = mutated(source, source.choice(seeds), source.choice(seeds))
        try:
            target.decode(data)
        except BaseException as error:
            error.add_note(f"decoding {data.hex()}")
            raise


@pytest.mark.soak
@pytest.mark.parametrize("name", TARGETS)
def test_coverage_guided(name: str) -> None:
    if importlib.util.find_spec("atheris") is None:
        pytest.skip(
            "atheris is not installed: pip install -r requirements-soak.lock; it has no wheel for 3.14"
        )
    seconds, seed = draws(5, sample=5, soak=120), first_seed()
    with tempfile.TemporaryDirectory(
        prefix="riverrun-fuzz-"
    ) as folder:  # libFuzzer ends without cleaning up
        done = subprocess.run(
            [sys.executable, "-m", f"tests.fuzz.{name}", "--seconds", str(seconds),
             "--seed", str(seed), "--corpus", f"{folder}/corpus"],
            env={**os.environ, "TMPDIR": folder},
            capture_output=True,
            text=True,
            timeout=seconds + 300,
            check=False,
        )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-6000:]}"
    assert "Done" in done.stderr
