"""A real object store on this machine, S3 as moto's server speaks it, and a proxy before it that misbehaves.

The proxy forwards requests. Now and then, drawn from a seed, it does one of `FAULTS` instead: it answers late, answers
500 or 503 without asking the store, ends the connection before the store hears of the request, or after the store has
done it (the answer is lost).
"""

from __future__ import annotations

import http.client
import logging
import random
import socket
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread
from typing import Any
from uuid import uuid4

FAULTS = ("delay", "error 500", "error 503", "reset", "lost answer")


class Proxy(ThreadingHTTPServer):
    """The way to the store; `rate` is the share of requests that something happens to."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, store: int, seed: int) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.store = store
        self.place = f"s3://kept/{uuid4().hex}"
        """A path of its own: stores in one process have the same content."""
        self.rate = 0.0
        self.only: tuple[str, ...] = FAULTS
        self.methods: tuple[str, ...] = ()
        """Which requests something happens to; none for all."""
        self.happened: Counter[str] = Counter()
        self._draw = random.Random(seed)
        self._lock = Lock()

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    def fault(self, method: str) -> str | None:
        """What happens to the next request."""
        with self._lock:
            if self.methods and method not in self.methods:
                return None
            if self._draw.random() >= self.rate:
                return None
            fault = self._draw.choice(self.only)
            self.happened[f"{fault} {method}"] += 1
            return fault

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients may go away."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Proxy

    def _forward(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        fault = self.server.fault(self.command)
        if fault == "delay":
            time.sleep(0.2)
        elif fault is not None and fault.startswith("error"):
            self._answer(int(fault.split()[1]), {}, b"<Error><Code>SlowDown</Code></Error>")
            return
        elif fault == "reset":
            self._reset()
            return
        behind = http.client.HTTPConnection("127.0.0.1", self.server.store, timeout=60)
        try:
            behind.request(self.command, self.path, body, dict(self.headers.items()))
            answer = behind.getresponse()
            data = answer.read()
        finally:
            behind.close()
        if fault == "lost answer":
            self._reset()
            return
        self._answer(answer.status, dict(answer.getheaders()), data)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _forward  # noqa: N815

    def _answer(self, status: int, headers: dict[str, str], data: bytes) -> None:
        self.send_response_only(status)
        for name, value in headers.items():
            if name.lower() not in ("content-length", "connection", "transfer-encoding"):
                self.send_header(name, value)
        length = headers.get("Content-Length", "0") if self.command == "HEAD" else str(len(data))
        self.send_header("Content-Length", length)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def _reset(self) -> None:
        self.close_connection = True
        with suppress(OSError):
            # No farewell: the other side sees a connection that breaks.
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            self.connection.close()

    def log_message(self, format: str, *arguments: Any) -> None:
        """Nothing."""


@contextmanager
def object_store(seed: int) -> Iterator[Proxy]:
    """A store with the bucket ``kept``, and the proxy before it."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    proxy = None
    try:
        _, port = server.get_host_and_port()
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request("PUT", "/kept")
        assert connection.getresponse().status == 200
        connection.close()
        proxy = Proxy(port, seed)
        Thread(target=proxy.serve_forever, daemon=True).start()
        yield proxy
    finally:
        if proxy is not None:
            proxy.shutdown()
            proxy.server_close()
        server.stop()
