"""A lease: a file that says which run uses a checkpoint path, so that a second run is refused.

The owner of a path keeps a small file there, ``owner.json``: who the owner is, and a counter that goes up every two
seconds. The lease is a courtesy, not a lock. Two owners do no harm because of the log, whatever stands in this file
(the laws *repeatable* and *one owner* of `storage.log`). So nothing waits for the lease, and a lease that cannot be
renewed does no harm. Laws:

- **Refused while it lives.** `acquire` refuses when the owner in the file lives. Where that owner runs on this machine
  (same host, boot and process namespace), its process is looked for; elsewhere the counter is watched for six seconds.
- **Gone when it is over.** A run that is closed, that ends, or whose object is thrown away deletes its file. Where the
  storage fails at that moment, a thread tries again until the storage works or the process ends. Nobody waits for that
  thread, and for runs in this process the path is free at once. A process that is killed leaves its file, and the next
  run finds that the owner is dead (the law refused while it lives).
- **Later terms win.** Each lease has a term greater than that of the lease it replaces. A holder that reads a later
  term in the file renews no more. A holder that reads an earlier term, which was written late, writes its own again.

>>> from riverrun.storage.store import open_storage
>>> storage = open_storage("memory:///")
>>> lease = Lease.acquire(storage, "a", application="words")
>>> Lease.acquire(storage, "b", application="counts")
Traceback (most recent call last):
    ...
riverrun.errors.CheckpointError: cannot use MemoryStore: it is in use by 'words', process ... on ..., since ...
Hint: stop that run, or wait for its end; or give this one another path; ...
>>> lease.release()
>>> Lease.acquire(storage, "b", application="counts").release()

Cost: one small read and one small write every two seconds.
"""

from __future__ import annotations

import atexit
import gc
import json
import logging
import os
import platform
import time
import weakref
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from threading import Event, Thread
from typing import Any, Self

from riverrun import interrupts
from riverrun.errors import CheckpointError, RiverrunError
from riverrun.forks import finalize, forget_in_child
from riverrun.retry import pause
from riverrun.state.soundness import read_json
from riverrun.storage.scratch import boot_id
from riverrun.storage.store import PASSING, Storage

OWNER = "owner.json"
PASSING.add(OWNER)  # a sign of life need not outlive a power cut
VERSION = 1
RENEWAL = 2.0  # seconds between signs of life
WATCH = 3 * RENEWAL  # seconds without one, after which an owner elsewhere is thought dead
RELEASE = 2.0  # seconds that a clean end may take here
TRIES = 100  # times to read a file that cannot be created since it is there

_LOG = logging.getLogger(__name__)
_HELD: weakref.WeakValueDictionary[str, Lease] = weakref.WeakValueDictionary()
"""The leases of this process, by identity."""
_KEEPERS: dict[str, Event] = {}
"""For each thread that keeps a lease: set once it has tried to delete the file. By identity of the lease."""
forget_in_child(_HELD, _KEEPERS)


@dataclass(frozen=True, slots=True)
class Owner:
    """The content of the file: which run owns the path."""

    identity: str
    application: str
    host: str
    boot: str
    """The start of the machine; empty where it is not known."""
    namespace: str
    """The namespace that `pid` belongs to: containers have their own process numbers."""
    pid: int
    started: str
    """When the process began, as the system says it: process numbers are used again."""
    since: float
    """Seconds since 1970, by the owner's clock."""
    term: int = 1
    beat: int = 0
    version: int = VERSION

    @property
    def is_local(self) -> bool:
        """Whether the owner's process is on this machine, so that it can be looked for."""
        here = (platform.node(), boot_id(), _namespace())
        return (self.host, self.boot, self.namespace) == here

    @property
    def is_alive(self) -> bool:
        """Whether the owner's process lives and, where that is this process, the run still uses the path."""
        if self.pid != os.getpid() or self.started != _started(self.pid):
            return _is_running(self.pid) and _started(self.pid) == self.started
        if self.identity in _HELD:
            gc.collect()  # it may have been thrown away
        return self.identity in _HELD


class Lease:
    """The claim of a run of this process to a path. `Lease.acquire` makes one."""

    def __init__(self, storage: Storage, owner: Owner) -> None:
        self.owner = owner
        self._storage = storage
        self._stop = Event()
        self._tried, self._gone = Event(), Event()
        self._thread: Thread | None = None
        _HELD[owner.identity] = self
        # The thread does not refer to this object; so it is stopped also when the object is thrown away unreleased.
        finalize(self, self._stop.set).atexit = False

    def start(self) -> Self:
        """Start the thread that renews the file, which is there."""
        _KEEPERS[self.owner.identity] = self._tried
        self._thread = Thread(
            target=_keep,
            args=(self._storage, self.owner, self._stop, self._tried, self._gone),
            name="riverrun-lease",
            daemon=True,
        )
        self._thread.start()
        return self

    @classmethod
    def acquire(
        cls, storage: Storage, identity: str, *, application: str = "", take_over: bool = False
    ) -> Self:
        """Claim a path; raise if another run uses it. With `take_over`, claim it anyway."""
        pid = os.getpid()
        owner = Owner(
            identity, application, platform.node(), boot_id(), _namespace(), pid, _started(pid),
            time.time(),
        )  # fmt: skip
        lease = cls(storage, owner)  # before the file is there: other threads find it alive
        for _ in range(TRIES):
            holder = read_owner(storage)
            if holder is not None and holder.identity == identity:
                break  # this lease's own file: the answer to an earlier try was lost
            if holder is not None and not take_over:
                holder = _await_death(storage, holder)
            if holder is not None:
                lease.owner = replace(owner, term=holder.term + 1)
                _write(storage, lease.owner)
                break
            if storage.create(OWNER, _encode(owner)):
                break  # else another run has created the file at the same time
        else:
            lease.stop()
            raise CheckpointError(
                "checkpoint.refused",
                f"cannot use {storage.where}: {OWNER} is there and cannot be read, tried {TRIES} times",
                hint=f"look what {OWNER} is (a run keeps a small file there), and move it away if no run is alive",
                file=OWNER,
            )
        with suppress(RiverrunError):
            storage.delete(storage.unfinished("", OWNER))
        return lease.start()

    def stop(self) -> None:
        """Give the path back soon, without waiting until the file is gone."""
        _HELD.pop(self.owner.identity, None)
        self._stop.set()

    def release(self) -> None:
        """Give the path back, and wait for a moment until the file is gone. May be called again."""
        self.stop()
        if self._thread is not None:
            self._tried.wait(RELEASE)
            if self._gone.is_set():
                self._thread.join(RELEASE)


@atexit.register
def _release_all() -> None:
    """The process ends with runs that were not closed: give their paths back."""
    held = list(_HELD.values())
    for lease in held:
        lease.stop()
    for lease in held:
        lease.release()


def read_owner(storage: Storage) -> Owner | None:
    """Who uses a path, by the file there; None where there is no file, or one that is no lease and is deleted."""
    try:
        return _decode(storage.get(OWNER).to_pybytes())
    except CheckpointError as error:
        if error.code != "checkpoint.missing":
            raise
    except ValueError as error:
        _LOG.warning("%s in %r cannot be read, and is ignored: %s", OWNER, storage, error)
        storage.delete([OWNER])
    return None


def _keep(storage: Storage, owner: Owner, stop: Event, tried: Event, gone: Event) -> None:
    """In a thread: renew the file until the lease is stopped; then delete it, however long that takes."""
    try:
        if not _beat(storage, owner, stop):
            return
        failures = 0
        while not _try_delete(storage, owner):
            tried.set()
            failures += 1
            time.sleep(pause(failures))
    finally:
        _KEEPERS.pop(owner.identity, None)
        gone.set()
        tried.set()


def _beat(storage: Storage, owner: Owner, stop: Event) -> bool:
    """Renew the file until the lease is stopped; return whether the file may still be the owner's."""
    while not stop.wait(RENEWAL):
        owner = replace(owner, beat=owner.beat + 1)
        with suppress(RiverrunError):  # a lease that is not renewed does no harm
            holder = read_owner(storage)
            if holder is not None and holder.term > owner.term:
                return False
            _write(storage, owner)
    return True


def _try_delete(storage: Storage, owner: Owner) -> bool:
    """Delete the file, unless it is another run's; False when the storage fails (the law gone when it is over)."""
    try:
        holder = read_owner(storage)
        if holder is not None and holder.identity == owner.identity:
            storage.delete([OWNER])
    except RiverrunError:
        return False
    return True


def _write(storage: Storage, owner: Owner) -> None:
    storage.put(OWNER, _encode(owner))


_TEXTS = ("identity", "application", "host", "boot", "namespace", "started")
_COUNTS = {"pid": 1 << 31, "term": 1 << 62, "beat": 1 << 62, "version": 1 << 31}
_END_OF_TIME = 253402300800  # the year 10000, in seconds since 1970


def _decode(data: bytes) -> Owner:
    """The owner in the file; a ValueError where the file is not one of ours."""
    content = read_json(data)
    if not isinstance(content, dict):
        raise ValueError(f"it holds {type(content).__name__}, not an object")
    fields: dict[str, Any] = {"term": 1, "beat": 0, "version": VERSION} | content
    for key in _TEXTS:
        if not isinstance(fields.get(key), str):
            raise ValueError(f"its {key} is {str(fields.get(key))[:80]!r}, no text")
    for key, bound in _COUNTS.items():
        if type(fields.get(key)) is not int or not 0 <= fields[key] < bound:
            raise ValueError(f"its {key} is {str(fields.get(key))[:80]!r}, no plausible number")
    since: Any = fields.get("since")
    if type(since) not in (int, float) or not 0 <= since < _END_OF_TIME:
        raise ValueError(f"its since is {str(since)[:80]!r}, no time")
    return Owner(**{key: fields[key] for key in Owner.__dataclass_fields__})


def _encode(owner: Owner) -> bytes:
    return json.dumps(asdict(owner), indent=1).encode()


def _await_death(storage: Storage, owner: Owner) -> Owner | None:
    """Wait until it is known whether the owner in the file is dead: raise when it lives (the law refused while it
    lives). Returns the owner that is in the file by then, None where there is no file any more."""
    if owner.is_local:
        if owner.is_alive:
            ours = owner.pid == os.getpid()
            why = "that is this process, in which it was not closed" if ours else "it is alive"
            raise _in_use(storage, owner, why)
        tried = _KEEPERS.get(owner.identity)
        if tried is not None:  # released just now: its thread is about to delete the file
            tried.wait(RELEASE)
            now = read_owner(storage)
            if now is not None and now.identity != owner.identity:
                return _await_death(storage, now)
            return now
        return owner
    deadline = time.monotonic() + WATCH
    while time.monotonic() < deadline:
        interrupts.sleep(RENEWAL / 4)
        now = read_owner(storage)
        if now is None:
            return None
        if (now.identity, now.beat) != (owner.identity, owner.beat):
            raise _in_use(storage, now, "it has just given a sign of life")
    _LOG.info(
        "%r was used by %s, which has given no sign of life for %g s: taken over",
        storage, _describe_owner(owner), WATCH,
    )  # fmt: skip
    return owner


def _in_use(storage: Storage, owner: Owner, why: str) -> CheckpointError:
    return CheckpointError(
        "checkpoint.in_use",
        f"cannot use {storage.where}: it is in use by {_describe_owner(owner)}; {why}",
        hint="stop that run, or wait for its end; or give this one another path; flow.run(..., take_over=True) takes "
        "it away from that run, which then ends",
        owner=asdict(owner),
    )


def _describe_owner(owner: Owner) -> str:
    since = datetime.fromtimestamp(owner.since, UTC).isoformat(" ", "seconds")
    name = repr(owner.application) if owner.application else "another run"
    return f"{name}, process {owner.pid} on {owner.host}, since {since}"


def _namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def _started(pid: int) -> str:
    """The time at which a process began, in ticks since the boot; empty where the system does not tell."""
    stat = _content(f"/proc/{pid}/stat")
    fields = stat[
        stat.rfind(")") + 2 :
    ].split()  # field 2, the name, may hold spaces and parentheses
    return fields[19] if len(fields) > 19 else ""


def _is_running(pid: int) -> bool:
    stat = _content(f"/proc/{pid}/stat")
    if stat:  # a zombie is dead
        return stat[stat.rfind(")") + 2 :][:1] not in ("Z", "X")
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _content(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except (OSError, ValueError):
        return ""
