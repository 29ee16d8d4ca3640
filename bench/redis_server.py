"""A Redis server of our own on loopback, where one is installed, and just enough of its protocol to write to it."""

from __future__ import annotations

import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from typing import Any, Self

import numpy as np

CHUNK = 10_000


class Redis:
    """Redis with or without its append-only file (synced every second), written to with pipelined MSETs."""

    def __init__(self, *, append_only: bool) -> None:
        self._folder = tempfile.mkdtemp(prefix="riverrun-bench-")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self._server = subprocess.Popen(
            [
                "redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", self._folder,
                "--appendonly", "yes" if append_only else "no", "--appendfsync", "everysec",
            ],
            stdout=subprocess.DEVNULL,
        )  # fmt: skip
        for _ in range(200):
            try:
                self._socket = socket.create_connection(("127.0.0.1", port))
                break
            except OSError:
                time.sleep(0.05)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        version = subprocess.run(
            ["redis-server", "--version"], capture_output=True, text=True, check=True
        )
        self.version = "redis " + version.stdout.split("v=")[1].split()[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._socket.close()
        self._server.terminate()
        self._server.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def upsert(self, keys: np.ndarray[Any, Any], values: np.ndarray[Any, Any]) -> None:
        """Set all these keys, `CHUNK` in a command, and wait for the answers."""
        cells = np.column_stack([keys, values]).astype("<i8").tobytes()
        commands, count = [], 0
        for start in range(0, len(keys), CHUNK):
            pairs = min(CHUNK, len(keys) - start)
            some = cells[start * 16 : (start + pairs) * 16]
            parts = [b"$8\r\n" + some[at : at + 8] + b"\r\n" for at in range(0, len(some), 8)]
            commands.append(b"*%d\r\n$4\r\nMSET\r\n" % (2 * pairs + 1) + b"".join(parts))
            count += 1
        self._socket.sendall(b"".join(commands))
        answer = b""
        while len(answer) < 5 * count:
            answer += self._socket.recv(1 << 16)
        assert answer == b"+OK\r\n" * count

    def call(self, *command: Any) -> Any:
        """The answer to one command."""
        return self.pipeline([command])[0]

    def pipeline(self, commands: Sequence[Sequence[Any]]) -> list[Any]:
        """The answers to commands that are sent at once."""
        import hiredis

        self._socket.sendall(b"".join(hiredis.pack_command(tuple(each)) for each in commands))
        reader, answers = hiredis.Reader(), []
        while len(answers) < len(commands):
            reader.feed(self._socket.recv(1 << 20))
            while (answer := reader.gets()) is not False:
                assert not isinstance(answer, Exception), answer
                answers.append(answer)
        return answers

    def read(self, keys: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """The values of keys that all are there, in one command."""
        cells = keys.astype("<i8").tobytes()
        parts = [b"$8\r\n" + cells[at : at + 8] + b"\r\n" for at in range(0, len(cells), 8)]
        self._socket.sendall(b"*%d\r\n$4\r\nMGET\r\n" % (len(keys) + 1) + b"".join(parts))
        answer, head = b"", b"*%d\r\n" % len(keys)
        while len(answer) < len(head) + 14 * len(keys):  # $8, the value, and the ends of two lines
            answer += self._socket.recv(1 << 16)
        table = np.frombuffer(answer, np.uint8, offset=len(head)).reshape(len(keys), 14)
        return np.ascontiguousarray(table[:, 4:12]).view("<i8").ravel()


def installed() -> bool:
    return shutil.which("redis-server") is not None
