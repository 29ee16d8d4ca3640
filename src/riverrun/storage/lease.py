"""A lease: who uses a checkpoint path, so that a second application is told instead of taking it away.

The owner of a path keeps a small file there, ``owner.json``: who it is, and a counter that goes up every
two seconds. It is a courtesy, not a lock: what makes a second owner harmless is the log (laws 3 and 4 of
`state.log`), whatever stands in this file. So nothing waits for it, and a lease that cannot be renewed
does no harm. Laws:

1. **Refused while it lives.** `acquire` refuses when the owner in the file lives. On the same machine (host, boot and
   process namespace) its process tells; elsewhere the counter, which is watched for six seconds.
2. **Gone when it is over.** A run that is closed, that ends, or that is thrown away takes its file with it; where the
   storage fails at that moment, as soon as it does not, while the process lives. Nobody waits for that, and in
   this process the path is free at once. One whose process was killed leaves its file, and law 1 finds out.
3. **Later terms win.** Each lease has a term greater than the one it found. A holder that finds a later one in the file
   renews no more; one that finds an earlier one, which was written late, writes its own again.

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
PASSING.add(OWNER)  # a sign of life: after a power cut nobody lives
VERSION = 1
BEAT = 2.0  # seconds between signs of life
WATCH = 3 * BEAT  # seconds without one, after which an owner elsewhere is thought dead
RELEASE = 2.0  # seconds that a clean end may take here
TRIES = 100  # to see a file that is there

_LOG = logging.getLogger(__name__)
_HELD: weakref.WeakValueDictionary[str, Lease] = weakref.WeakValueDictionary()
"""The leases of this process, by identity."""
_KEEPERS: dict[str, Event] = {}
"""The threads that keep them, until they have taken the file away."""
forget_in_child(_HELD, _KEEPERS)


@dataclass(frozen=True, slots=True)
class Owner:
    """What the file says."""

    identity: str
    application: str
    host: str
    boot: str
    """Which start of the machine this is; empty where that is not known."""
    namespace: str
    """Whose process numbers these are: containers have their own."""
    pid: int
    started: str
    """When the process began, in the words of the system: numbers are used again."""
    since: float
    """Seconds since 1970, by the owner's clock."""
    term: int = 1
    beat: int = 0
    version: int = VERSION

    @property
    def is_local(self) -> bool:
        """Whether its process is one that can be looked for here."""
        here = (platform.node(), boot_id(), _namespace())
        return (self.host, self.boot, self.namespace) == here

    @property
    def is_alive(self) -> bool:
        """Whether its process lives and, where it is this one, still uses the path."""
        if self.pid != os.getpid() or self.started != _started(self.pid):
            return _is_running(self.pid) and _started(self.pid) == self.started
        if self.identity in _HELD:
            gc.collect()  # it may have been thrown away
        return self.identity in _HELD


class Lease:
    """The path is ours, as far as this file goes. `Lease.acquire` makes one."""

    def __init__(self, storage: Storage, owner: Owner) -> None:
        self.owner = owner
        self._storage = storage
        self._stop = Event()
        self._tried, self._gone = Event(), Event()
        self._thread: Thread | None = None
        _HELD[owner.identity] = self
        # Thrown away without an end: the thread, which does not know this object, is told all the same.
        finalize(self, self._stop.set).atexit = False

    def start(self) -> Self:
        """The file is there: keep it alive."""
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
        """Use a path, or refuse to since somebody else does; with `take_over`, use it anyway."""
        pid = os.getpid()
        owner = Owner(
            identity, application, platform.node(), boot_id(), _namespace(), pid, _started(pid),
            time.time(),
        )  # fmt: skip
        lease = cls(storage, owner)  # before the file is there: other threads find it alive
        for _ in range(TRIES):
            found = read_owner(storage)
            if found is not None and found.identity == identity:
                break  # ours: the answer to an earlier try was lost
            if found is not None and not take_over:
                found = _await_death(storage, found)
            if found is not None:
                lease.owner = replace(owner, term=found.term + 1)
                _write(storage, lease.owner)
                break
            if storage.create(OWNER, _encode(owner)):
                break  # else somebody else has come at the same time
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
        """Give the path back soon, without waiting for it."""
        _HELD.pop(self.owner.identity, None)
        self._stop.set()

    def release(self) -> None:
        """Give the path back; a storage that hangs or fails is not waited for. May be called again."""
        self.stop()
        if self._thread is not None:
            self._tried.wait(RELEASE)
            if self._gone.is_set():
                self._thread.join(RELEASE)


@atexit.register
def _release_all() -> None:
    """The process ends, and has not closed its runs."""
    held = list(_HELD.values())
    for lease in held:
        lease.stop()
    for lease in held:
        lease.release()


def read_owner(storage: Storage) -> Owner | None:
    """Who uses a path, as far as its file says; None where nobody does."""
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
    """In a thread: show that the owner lives, until it is over; then take the file away, for as long as it takes."""
    try:
        if not _beat(storage, owner, stop):
            return
        failures = 0
        while not _taken_away(storage, owner):
            tried.set()
            failures += 1
            time.sleep(pause(failures))
    finally:
        _KEEPERS.pop(owner.identity, None)
        gone.set()
        tried.set()


def _beat(storage: Storage, owner: Owner, stop: Event) -> bool:
    """Show that the owner lives until it does not; whether the file may still be its own."""
    while not stop.wait(BEAT):
        owner = replace(owner, beat=owner.beat + 1)
        with suppress(RiverrunError):  # the log protects
            found = read_owner(storage)
            if found is not None and found.term > owner.term:
                return False
            _write(storage, owner)
    return True


def _taken_away(storage: Storage, owner: Owner) -> bool:
    """Delete the file, unless it is somebody else's; False when the storage fails (law 2)."""
    try:
        found = read_owner(storage)
        if found is not None and found.identity == owner.identity:
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
    """What the file says; a ValueError where it is no file of ours, whatever it is."""
    said = read_json(data)
    if not isinstance(said, dict):
        raise ValueError(f"it holds {type(said).__name__}, not an object")
    fields: dict[str, Any] = {"term": 1, "beat": 0, "version": VERSION} | said
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


def _await_death(storage: Storage, found: Owner) -> Owner | None:
    """Return when the owner is dead; raise when it lives (law 1)."""
    if found.is_local:
        if found.is_alive:
            ours = found.pid == os.getpid()
            why = "that is this process, in which it was not closed" if ours else "it is alive"
            raise _in_use(storage, found, why)
        tried = _KEEPERS.get(found.identity)
        if tried is not None:  # it was thrown away just now, and its file is about to go, or cannot
            tried.wait(RELEASE)
            now = read_owner(storage)
            if now is not None and now.identity != found.identity:
                return _await_death(storage, now)
            return now
        return found
    deadline = time.monotonic() + WATCH
    while time.monotonic() < deadline:
        interrupts.sleep(BEAT / 4)
        now = read_owner(storage)
        if now is None:
            return None
        if (now.identity, now.beat) != (found.identity, found.beat):
            raise _in_use(storage, now, "it has just given a sign of life")
    _LOG.info(
        "%r was used by %s, which has given no sign of life for %g s: taken over",
        storage, _told(found), WATCH,
    )  # fmt: skip
    return found


def _in_use(storage: Storage, owner: Owner, why: str) -> CheckpointError:
    return CheckpointError(
        "checkpoint.in_use",
        f"cannot use {storage.where}: it is in use by {_told(owner)}; {why}",
        hint="stop that run, or wait for its end; or give this one another path; flow.run(..., take_over=True) takes "
        "it away from that run, which then ends",
        owner=asdict(owner),
    )


def _told(owner: Owner) -> str:
    since = datetime.fromtimestamp(owner.since, UTC).isoformat(" ", "seconds")
    name = repr(owner.application) if owner.application else "another run"
    return f"{name}, process {owner.pid} on {owner.host}, since {since}"


def _namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def _started(pid: int) -> str:
    """The time at which a process began, in ticks since the boot; empty where nobody tells."""
    stat = _content(f"/proc/{pid}/stat")
    fields = stat[stat.rfind(")") + 2 :].split()  # the name before may hold anything
    return fields[19] if len(fields) > 19 else ""


def _is_running(pid: int) -> bool:
    stat = _content(f"/proc/{pid}/stat")
    if stat:  # a zombie is dead, and waits for its parent to notice
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
