"""Memory that is used again is never used twice."""

from __future__ import annotations

import gc
import os
import threading

import numpy as np
import pyarrow as pa
import pytest

from riverrun.state import buffers
from riverrun.state.buffers import LEAST, BufferPool, empty


def test_a_slab_is_reused_when_nothing_refers_to_it():
    pool = BufferPool()
    first = pool.take(LEAST)
    address = first.ctypes.data
    del first
    again = pool.take(LEAST - 5)
    assert again.ctypes.data == address


@pytest.mark.parametrize(
    "derive",
    [
        lambda a: a[10:20],
        lambda a: a.view(np.int64)[3:],
        lambda a: np.asarray(a)[5:],
        lambda a: np.frombuffer(a, np.int32),
        memoryview,
        lambda a: pa.py_buffer(a).slice(8, 16),
        lambda a: pa.Array.from_buffers(pa.int64(), 4, [None, pa.py_buffer(a[:64])]).slice(1),
    ],
)
def test_what_is_made_from_a_slab_keeps_it(derive):
    pool = BufferPool()
    taken = pool.take(LEAST)
    taken[:] = 7
    derived = derive(taken)
    before = (
        bytes(memoryview(derived)) if not isinstance(derived, pa.Array) else derived.to_pylist()
    )
    del taken
    gc.collect()
    for _ in range(3):
        pool.take(LEAST)[:] = 9
    after = bytes(memoryview(derived)) if not isinstance(derived, pa.Array) else derived.to_pylist()
    assert before == after


def test_threads_never_get_a_slab_that_is_too_small_or_shared(monkeypatch):
    monkeypatch.setattr(buffers, "_LEAST_SPARE", 0)
    pool, wrong = BufferPool(), []

    def use(seed: int) -> None:
        rng = np.random.default_rng(seed)
        held = []
        for _ in range(400):
            size = int(rng.integers(LEAST, 4 * LEAST))
            slab = pool.take(size)
            if len(slab) < size:
                wrong.append(size)
            slab[:8] = seed
            held.append(slab)
            if len(held) > 3:
                old = held.pop(0)
                if set(old[:8].tolist()) != {seed}:
                    wrong.append("shared")
            pool.trim()

    threads = [threading.Thread(target=use, args=(seed,)) for seed in (1, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_what_is_kept_is_bounded():
    pool = BufferPool()
    held = [pool.take(1 << 20) for _ in range(64)]
    del held
    pool.trim(1000)
    assert 0 < pool._free_bytes <= buffers._LEAST_SPARE
    pool.release()
    assert pool._free_bytes == 0


def test_a_forked_process_has_memory_of_its_own():
    taken = empty(LEAST, np.uint8)
    taken[:] = 1
    child = os.fork()
    if child == 0:
        taken[:] = 2
        os._exit(0)
    os.waitpid(child, 0)
    assert set(taken[::4096].tolist()) == {1}
