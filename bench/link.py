"""A link between two processes of this machine: GB/s, processor time for a GB, and the price of one row.

*Wide*: chunks of rows, coded, sent, received, decoded and checked, one way, in a window as runs have it: three columns
of int64, and one of short texts. `cpu_s_per_GB` is the processor time of both processes together. The peer is a bare
socket: one process sends the same buffer again and again, and another receives into one buffer. *Small*: the processor
time of coding and of decoding a message of one row, in microseconds, with one and with eight columns.
"""

from __future__ import annotations

import os
import platform
import socket
import subprocess
import sys
import time
from threading import Condition
from typing import Any

import numpy as np
import pyarrow as pa

from bench.measure import at_least, ratio, scale

PIECE = 4 << 20


class Receiver:
    """Decodes what comes, gives credit for it, and lets go of it."""

    def __init__(self) -> None:
        from riverrun.runtime.codec.fragments import Decoder

        self._decoder = Decoder()
        self._changed = Condition()
        self._rows = self._taken = 0

    def receive(self, sender: int, stream: object, fragments: list[Any], size: int) -> None:
        rows = 0
        for fragment in fragments:
            message = self._decoder.decode(fragment.head, fragment.body)
            if message is not None:
                rows += message.payload[1].rows
        with self._changed:
            self._rows += rows
            self._taken += size
            self._changed.notify_all()

    def ended(self, sender: int, stream: object, cleanly: bool) -> None:
        pass

    def answer(self, question: str, argument: Any) -> Any:
        with self._changed:
            if question == "taken":  # more than so many bytes
                self._changed.wait_for(lambda: self._taken > argument)
                return self._taken
            self._changed.wait_for(lambda: self._rows >= argument)
            return [self._rows, time.process_time()]


def receive() -> None:
    """In a process of its own: be sent fragments."""
    from riverrun.runtime.network.client import Credentials
    from riverrun.runtime.network.endpoint import Endpoint

    endpoint = Endpoint("127.0.0.1", Receiver(), Credentials(token=os.environ["BENCH_TOKEN"]))
    print(endpoint.address, flush=True)
    sys.stdin.read()


def receive_bare(size: int) -> None:
    """In a process of its own: receive so many bytes into one buffer."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        print(server.getsockname()[1], flush=True)
        raw, _ = server.accept()
        buffer, left = memoryview(bytearray(PIECE)), size
        while left:
            left -= raw.recv_into(buffer[: min(left, PIECE)], 0, socket.MSG_WAITALL)
        raw.sendall(str(time.process_time()).encode())


def started(call: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", f"import bench.link; bench.link.{call}"],
        env={**os.environ, **environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def linked(columns: list[pa.Array], chunks: int) -> dict[str, float]:
    """What a link carries of one chunk after the other."""
    from riverrun.engine.instance import RoutedChanges as Rows
    from riverrun.engine.messages import Data
    from riverrun.runtime.network.client import Asker, Credentials
    from riverrun.runtime.network.link import Link
    from riverrun.state.changes import Changes

    rows = len(columns[0])
    changes = Changes(columns, rows, ((0,),), None, 1, None)
    credentials = Credentials()
    with started("receive()", BENCH_TOKEN=credentials.token) as process:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        link, asker = Link(address, 0, credentials), Asker(address, credentials)
        try:
            taken = 0

            def send(number: int) -> None:
                nonlocal taken
                link.send([Data(0, number, Rows((0, changes)))])
                while link.full:
                    now = asker.ask("taken", taken)
                    link.credit(now - taken)
                    taken = now

            def ended(chunks: int) -> list[float]:
                while link.waiting:
                    now = asker.ask("taken", taken)
                    link.credit(now - taken)
                return asker.ask("rows", chunks * rows)

            send(0)
            _, theirs = ended(1)
            start, ours = time.perf_counter(), time.process_time()
            for number in range(1, chunks + 1):
                send(number)
            received, now = ended(chunks + 1)
            spent = time.perf_counter() - start
            cpu = time.process_time() - ours + now - theirs
            assert received == (chunks + 1) * rows
        finally:
            link.close()
            asker.close()
            process.communicate()
    size = chunks * sum(column.nbytes for column in columns) / 1e9
    return {"GB_per_s": round(size / spent, 2), "cpu_s_per_GB": round(cpu / size, 2)}


def bare(size: int) -> dict[str, float]:
    """What a socket carries."""
    with started(f"receive_bare({size})") as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        with socket.create_connection(("127.0.0.1", port)) as raw:
            buffer, left = memoryview(bytearray(PIECE)), size
            start, ours = time.perf_counter(), time.process_time()
            while left:
                raw.sendall(buffer[: min(left, PIECE)])
                left -= min(left, PIECE)
            theirs = float(raw.recv(64))
            spent, cpu = time.perf_counter() - start, time.process_time() - ours + theirs
        process.communicate()
    return {"GB_per_s": round(size / 1e9 / spent, 2), "cpu_s_per_GB": round(cpu / size * 1e9, 2)}


def coded(width: int, messages: int) -> dict[str, float]:
    """Microseconds of processor time for a message of one row."""
    from riverrun.engine.instance import RoutedChanges as Rows
    from riverrun.engine.messages import Data
    from riverrun.runtime.codec.fragments import Decoder, Encoder
    from riverrun.state.changes import Changes

    changes = Changes([pa.array([at]) for at in range(width)], 1, ((3,),), None, 1, None)
    message = Data(0, 0, Rows((0, changes)))
    encoder, decoder = Encoder(), Decoder()
    (first,) = encoder.encode(message)
    decoder.decode(first.head, first.body)
    encoding, decoding = [], []
    for _ in range(9):
        start = time.thread_time()
        fragments = [encoder.encode(message)[0] for _ in range(messages)]
        middle = time.thread_time()
        for fragment in fragments:
            decoder.decode(fragment.head, fragment.body)
        encoding.append(middle - start)
        decoding.append(time.thread_time() - middle)
    return {
        "encode_us": round(float(np.median(encoding)) / messages * 1e6, 2),
        "decode_us": round(float(np.median(decoding)) / messages * 1e6, 2),
    }


def main() -> dict[str, Any]:
    chunk, chunks = scale("chunk", 1e6), scale("chunks", 80)
    messages, repeats = scale("messages", 2000), scale("repeats", 3)
    rng = np.random.default_rng(0)
    numbers = [pa.array(rng.integers(0, 1 << 40, chunk)) for _ in range(3)]
    texts = [pa.array([f"text {n}" for n in range(chunk)], pa.large_string())]
    measures: dict[str, list[dict[str, float]]] = {"numbers": [], "texts": [], "bare": []}
    for _ in range(repeats):  # in turns, so that a change of the machine's speed hits all alike
        measures["numbers"].append(linked(numbers, chunks))
        measures["texts"].append(linked(texts, chunks))
        measures["bare"].append(bare(chunks * sum(column.nbytes for column in numbers)))
    best = {name: max(each, key=lambda one: one["GB_per_s"]) for name, each in measures.items()}
    share = ratio(best["numbers"]["GB_per_s"], best["bare"]["GB_per_s"])
    return {
        "chunk": chunk,
        "chunks": chunks,
        "numbers": best["numbers"],
        "texts": best["texts"],
        "one_row": {"columns_1": coded(1, messages), "columns_8": coded(8, messages)},
        "asked": {"link_to_bare_socket": at_least(share, 0.4)},
        "peers": {"bare_socket": {"version": platform.release(), **best["bare"]}},
        "ratios": {"bare_socket": share},
    }
