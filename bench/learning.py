"""Online learning by FTRL on Spark, two workers: time for a mini-batch by mode, and latency of predictions meanwhile.

Examples are like those of a9a: 123 features, 14 of them in each example, labels of a logistic model. **Training**: all
mini-batches, several in each epoch, in the modes bsp, ssp and asp; and bsp with one mini-batch in an epoch, as when
they come online. The time of a mini-batch is the time of all, divided by their number. **Predictions**: single requests
fall due at a fixed rate, while a mini-batch falls due four times a second. All requests that are due go into the next
epoch. The latency of a request is from the moment at which it falls due until its answer is read, with the wait for the
epoch before.

Peers run in this process and with the same loop: the same steps in NumPy, with the parameters in arrays (one thread,
nothing shared, nothing durable), and with the parameters in Redis on loopback (one MGET and one MSET for a mini-batch,
one MGET for the requests that are due). The parameters that bsp learns are compared with those of NumPy.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
import polars as pl

import riverrun as rr
from bench import redis_server
from bench.measure import ratio, scale, version
from bench.sessions import session
from riverrun.learning import ftrl

WORKERS = 2
FEATURES, EACH = 123, 14
RATES = {"alpha": 0.1, "beta": 1.0, "l1": 1.0, "l2": 1.0}
PER_EPOCH = 8
PERIOD = 0.25
MODES: dict[str, dict[str, Any]] = {
    "bsp": {"mode": "bsp"},
    "ssp 1": {"mode": "ssp", "bound": 1},
    "ssp 3": {"mode": "ssp", "bound": 3},
    "asp": {"mode": "asp"},
}
Array = np.ndarray[Any, Any]


def main() -> dict[str, Any]:
    size, count, span = scale("examples", 1000), scale("batches", 64), scale("seconds", 5)
    rates = [scale("rate", 0)] if scale("rate", 0) else [100, 1_000, 5_000]
    data = Data(size, count)
    peers: dict[str, Any] = {}
    numpy_ = InArrays()
    peers["numpy"] = {
        "version": version("numpy"),
        **measured(numpy_, Data(size, count), rates, span),
    }
    if redis_server.installed():
        with redis_server.Redis(append_only=False) as server:
            figures = measured(InRedis(server), data, rates, span)
            peers["redis"] = {"version": server.version, **figures}
    else:
        peers["redis"] = {"skipped": "redis-server is not installed"}
    with session(WORKERS, "1g") as spark:
        training = {
            name: trained(spark, data, PER_EPOCH, options) for name, options in MODES.items()
        }
        training["bsp, one in an epoch"] = trained(spark, data, 1, MODES["bsp"])
        latency = predicted(spark, data, rates, span)
    online = training["bsp, one in an epoch"]["batch_ms"]
    return {
        "workers": WORKERS,
        "examples": size,
        "batches": count,
        "training": training,
        "predictions": latency,
        "peers": peers,
        "ratios": {
            name: {
                "batch": ratio(peer["batch_ms"], online),
                "bsp_batch": ratio(peer["batch_ms"], training["bsp"]["batch_ms"]),
            }
            for name, peer in peers.items()
            if "batch_ms" in peer
        },
        "asked": {},
    }


class Data:
    """Mini-batches, as frames and as arrays, and requests."""

    def __init__(self, size: int, count: int) -> None:
        rng = np.random.default_rng(3)
        true = rng.normal(size=FEATURES)
        self.size, self.count = size, count
        self.features = np.argsort(rng.random((size * count, FEATURES)), axis=1)[:, :EACH]
        margins = true[self.features].sum(axis=1)
        self.labels = (rng.random(size * count) < 1 / (1 + np.exp(-margins))).astype(np.int64)
        self.frame = pl.DataFrame(
            {
                "id": np.arange(size * count),
                "batch": np.repeat(np.arange(count), size),
                "label": self.labels,
                "features": pl.Series(self.features).arr.to_list(),
            }
        )

    def batch(self, number: int) -> tuple[Array, Array]:
        """The features and labels of one; after the last comes the first."""
        at = number % self.count * self.size
        return self.features[at : at + self.size], self.labels[at : at + self.size]

    def rows(self, start: int, end: int) -> pl.DataFrame:
        """Mini-batches as examples; after the last come the first again, under other numbers."""
        first = start % self.count
        some = self.frame[first * self.size : (first + end - start) * self.size]
        return some.with_columns(pl.col("batch") + (start - first))


class Learns(Protocol):
    """What can be trained on a mini-batch, and asked."""

    def learn(self, features: Array, labels: Array) -> None: ...
    def ask(self, features: Array) -> Array: ...


class InArrays:
    """FTRL in NumPy; the parameters are arrays."""

    def __init__(self) -> None:
        self.z, self.n = np.zeros(FEATURES), np.zeros(FEATURES)

    def learn(self, features: Array, labels: Array) -> None:
        self.z, self.n = stepped(self.z, self.n, features, labels)

    def ask(self, features: Array) -> Array:
        return 1 / (1 + np.exp(-weights(self.z, self.n)[features].sum(axis=1)))


class InRedis:
    """The same, with the parameters in Redis: z of feature f is under 2 f, n under 2 f + 1."""

    def __init__(self, server: redis_server.Redis) -> None:
        self._server = server
        server.upsert(np.arange(2 * FEATURES), np.zeros(2 * FEATURES, np.int64))

    def _read(self, features: Array) -> tuple[Array, Array]:
        asked = np.column_stack([2 * features, 2 * features + 1]).ravel()
        both = self._server.read(asked).view(np.float64)
        return both[::2], both[1::2]

    def learn(self, features: Array, labels: Array) -> None:
        distinct, places = np.unique(features, return_inverse=True)
        z, n = stepped(*self._read(distinct), places.reshape(features.shape), labels)
        keys = np.column_stack([2 * distinct, 2 * distinct + 1]).ravel()
        self._server.upsert(keys, np.column_stack([z, n]).ravel().view(np.int64))

    def ask(self, features: Array) -> Array:
        distinct, places = np.unique(features, return_inverse=True)
        gathered = weights(*self._read(distinct))[places.reshape(features.shape)]
        return 1 / (1 + np.exp(-gathered.sum(axis=1)))


def weights(z: Array, n: Array) -> Array:
    rate = (RATES["beta"] + np.sqrt(n)) / RATES["alpha"] + RATES["l2"]
    return np.where(np.abs(z) <= RATES["l1"], 0.0, (np.sign(z) * RATES["l1"] - z) / rate)


def stepped(z: Array, n: Array, features: Array, labels: Array) -> tuple[Array, Array]:
    """One step of FTRL-proximal."""
    weight = weights(z, n)
    wrong = 1 / (1 + np.exp(-weight[features].sum(axis=1))) - labels
    gradient = np.bincount(features.ravel(), np.repeat(wrong, features.shape[1]), len(z))
    squared = n + gradient * gradient
    return z + gradient - (np.sqrt(squared) - np.sqrt(n)) / RATES["alpha"] * weight, squared


def measured(system: Learns, data: Data, rates: list[int], span: float) -> dict[str, Any]:
    """The figures of a peer."""
    start = time.perf_counter()
    for number in range(data.count):
        system.learn(*data.batch(number))
    taken = (time.perf_counter() - start) / data.count
    latency = {}
    for rate in rates:
        waits: list[float] = []
        for due, batch in falling_due(rate, span):
            if batch is not None:
                system.learn(*data.batch(batch))
            if len(due):
                system.ask(data.features[: len(due)])
                waits += list(time.perf_counter() - due)
        latency[rate] = summary(waits)
    return {"batch_ms": round(taken * 1e3, 3), "predictions": latency}


def falling_due(rate: int, span: float) -> Iterator[tuple[Array, int | None]]:
    """What is to be done next: the times at which requests fell due, and the number of a mini-batch, if one did."""
    start = time.perf_counter()
    asked, trained = 0, 0
    while True:
        passed = time.perf_counter() - start
        if passed >= span:
            return
        ready, batches = int(passed * rate), int(passed / PERIOD)
        if ready == asked and batches == trained:
            time.sleep(max(min((asked + 1) / rate, (trained + 1) * PERIOD) - passed, 0))
            continue
        due = start + (np.arange(asked, ready) + 1) / rate
        yield due, trained if batches > trained else None
        asked, trained = ready, trained + (batches > trained)


def summary(waits: list[float]) -> dict[str, Any]:
    p50, p99 = np.percentile(waits, [50, 99]) if waits else (0.0, 0.0)
    return {"answers": len(waits), "ms_p50": round(p50 * 1e3, 2), "ms_p99": round(p99 * 1e3, 2)}


def program(data: Data, options: dict[str, Any]) -> rr.Dataflow:
    flow = rr.Dataflow("learning")
    examples = flow.input("examples", data.frame.schema)
    asked = flow.input("asked", {"id": pl.Int64, "features": pl.List(pl.Int64)})
    model = ftrl(flow, examples, trainers=WORKERS, **RATES, **options)
    flow.output("losses", model.losses)
    flow.output("parameters", model.parameters)
    flow.output("chances", model.predict(asked).expire(epochs=1))
    return flow


def trained(spark: Any, data: Data, many: int, options: dict[str, Any]) -> dict[str, Any]:
    """The time of a mini-batch, `many` of which come in an epoch; the first epochs are not counted."""
    with program(data, options).run(on=spark, workers=WORKERS) as run:
        taken = []
        for start in range(0, data.count, many):
            rows = data.rows(start, min(start + many, data.count))
            began = time.perf_counter()
            run.insert("examples", rows)
            run.commit()
            taken.append(time.perf_counter() - began)
        losses = run.read("losses").to_polars().sort("batch")["loss"]
        parameters = run.read("parameters").to_polars().sort("feature")
    if options["mode"] == "bsp":
        peer = InArrays()
        for number in range(data.count):
            peer.learn(*data.batch(number))
        np.testing.assert_allclose(
            parameters["z"].to_numpy(), peer.z[parameters["feature"]], rtol=1e-6, atol=1e-9
        )
    counted = taken[2:] or taken
    return {
        "batch_ms": round(float(np.mean(counted)) / min(many, data.count) * 1e3, 2),
        "epoch_ms_p99": round(float(np.percentile(counted, 99)) * 1e3, 2),
        "last_loss": round(float(losses[-PER_EPOCH:].mean()), 4),  # type: ignore[arg-type]
    }


def predicted(spark: Any, data: Data, rates: list[int], span: float) -> dict[str, Any]:
    """The latency of requests by rate, beside training."""
    by_rate, before, served = {}, 0, len(data.frame)
    asked = data.frame.select("id", "features")
    with program(data, MODES["bsp"]).run(on=spark, workers=WORKERS) as run:
        for number in range(4):  # what is compiled, is
            run.insert("examples", data.rows(number, number + 1))
            run.insert("asked", asked[:10])
            run.commit()
            before = number + 1
        for rate in rates:
            waits: list[float] = []
            learned = 0
            for due, batch in falling_due(rate, span):
                if batch is not None:
                    run.insert("examples", data.rows(before, before + 1))
                    before, learned = before + 1, learned + 1
                # An answer leaves an epoch later; one that is asked for again must not cancel with it.
                some = asked[: len(due)].with_columns(pl.col("id") + served)
                served += len(some)
                run.insert("asked", some)
                run.commit()
                answers = run.changes("chances").to_polars().filter(pl.col("diff") > 0)
                done = time.perf_counter()
                assert len(answers) == len(some)
                waits += list(done - due)
            by_rate[rate] = {**summary(waits), "batches_per_s": round(learned / span, 1)}
    return by_rate
