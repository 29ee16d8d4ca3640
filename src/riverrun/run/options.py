"""The options of a run: what `Dataflow.run` takes, brought to one form, and checked before anything is started.

Options that belong together are a dataclass: `Checkpoint`, `Recovery` and `Security`, which users know as
``rr.options``. `Dataflow.run` hands its arguments to `run_options`; a `Run` starts from the `RunOptions` that it gets.
Laws:

- **Short forms.** Each field of the three dataclasses, except the first of `Checkpoint` and of `Recovery`, which the
  arguments of these names take, is also an argument of `Dataflow.run`:
  ``flow.run(checkpoint="path", every=100)`` is ``flow.run(checkpoint=rr.options.Checkpoint("path", every=100))``.
- **Said once.** A field that is given by itself and whose dataclass is given too is refused.
- **Checked first.** An option without a possible meaning is refused before a process, a file or a thread is made.

>>> options = run_options({"every": 100}, checkpoint="kept", recovery="spread")
>>> options.checkpoint
Checkpoint('kept', every=100)
>>> options.recovery
Recovery('spread')
>>> run_options({"every": 100}, checkpoint=Checkpoint("kept"))
Traceback (most recent call last):
    ...
riverrun.errors.PlanError: cannot run with every=100 beside checkpoint=Checkpoint('kept'): an option is said once
At: ...
Hint: checkpoint=rr.options.Checkpoint('kept', every=100)
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field, fields, replace
from datetime import timedelta
from difflib import get_close_matches
from hashlib import blake2b
from pathlib import Path
from typing import Any, ClassVar, Literal, TypedDict, TypeVar
from uuid import uuid4

from riverrun.engine.coordinator.membership import SILENCE, Policy
from riverrun.errors import PlanError
from riverrun.plan.plan import Plan
from riverrun.rows.values import show
from riverrun.runtime.carriers import EVERY, Carrier, ClusterRequest
from riverrun.runtime.health.signs import Balance
from riverrun.runtime.stored_outputs import describe_outputs
from riverrun.storage.store import Storage

LEAST_MEMORY = 64 << 10
"""The least budget of memory, in bytes. Whoever asks for less has left out the unit: no state of use is so small."""
_POWERS = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}
_ELSEWHERE = {
    "patience": "the seconds that a storage which fails is waited for are storage_timeout=",
    "path": "the path of the checkpoints is checkpoint={value}",
    "policy": "what is done about a lost worker is recovery={value}",
}
"""Names that are not options of a run, and how what they mean is said. The first fields of `Checkpoint` and `Recovery`
have no short form: the argument that takes the dataclass takes their values too."""


class _Options:
    """A dataclass of options that is shown as it is written, without what was left out."""

    argument: ClassVar[str]
    """The argument of `Dataflow.run` that takes the dataclass."""
    forms: ClassVar[str]
    """What that argument may be, in words."""
    sample: ClassVar[str]
    """An example of that argument."""

    def __repr__(self) -> str:
        first, *others = fields(self)  # type: ignore[arg-type]
        shown = [repr(getattr(self, first.name))]
        for other in others:
            value = getattr(self, other.name)
            if value != other.default:
                shown.append(f"{other.name}={value!r}")
        return f"{type(self).__name__}({', '.join(shown)})"


@dataclass(frozen=True, slots=True, repr=False)
class Checkpoint(_Options):
    """Where a run is kept, how often checkpoints are made there, and how a run goes on from what is there.

    >>> import riverrun as rr
    >>> rr.options.Checkpoint("checkpoints/social", every=100, retain=3)
    Checkpoint('checkpoints/social', every=100, retain=3)
    """

    argument: ClassVar[str] = "checkpoint"
    forms: ClassVar[str] = "a path, a URL, or rr.options.Checkpoint"
    sample: ClassVar[str] = '"checkpoints/social"'
    path: str | Path | Storage
    """A directory, or the URL of an object store."""
    _: KW_ONLY
    every: int | timedelta | None = EVERY
    """The distance of checkpoints: a number of epochs, or a time; None for those asked for only."""
    retain: int = 2
    """How many checkpoints are kept."""
    synced: bool = False
    """Whether a commit to a local disk returns when its epoch would survive a power cut."""
    storage_timeout: float | timedelta | None = None
    """Seconds after which a storage that fails ends the run; None to wait for as long as it takes."""
    keep_inputs: bool | None = None
    """Whether the log keeps all rows, for later runs too; None for whatever earlier runs have chosen for the path."""
    take_over: bool = False
    """Whether the path is taken from another run that uses it, which ends that run."""
    from_checkpoint: int | None = None
    """The number of the checkpoint to start from, in place of the newest."""
    rebuild: bool = False
    """Whether states that the checkpoint lacks, since the program has changed, are built anew."""
    skip_failing: bool = False
    """Whether a logged epoch that fails when it is done again is dropped for good."""

    def __post_init__(self) -> None:
        path: object = self.path
        if not isinstance(path, str | os.PathLike | Storage) or not str(path).strip():
            raise PlanError(
                "plan.run",
                f"cannot run with checkpoint={show(self.path)}: that is a path or a URL",
                hint='for instance checkpoint="checkpoints/social"; leave it out to keep nothing',
            )
        check_count("retain", self.retain)
        _check_every(self.every)
        as_seconds(self.storage_timeout)
        if self.from_checkpoint is not None:
            check_count("from_checkpoint", self.from_checkpoint)
        for name in ("keep_inputs", "rebuild", "skip_failing", "synced", "take_over"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, bool):
                raise PlanError(
                    "plan.run",
                    f"cannot run with {name}={show(value)}: that is True or False",
                    hint=f"leave it out, or give {name}=True",
                )


@dataclass(frozen=True, slots=True, repr=False)
class Recovery(_Options):
    """What is done about workers that are lost, silent or slow.

    >>> import riverrun as rr
    >>> rr.options.Recovery("spread", silence=10)
    Recovery('spread', silence=10)
    """

    argument: ClassVar[str] = "recovery"
    forms: ClassVar[str] = "'replace', 'spread', or rr.options.Recovery"
    sample: ClassVar[str] = "'replace'"
    policy: Policy = "replace"
    """Whether a new worker takes the place of a lost one, or the others "spread" its shards among them at once."""
    _: KW_ONLY
    silence: float = SILENCE
    """Seconds without a sign of life after which a worker counts as lost."""
    balance: Balance = "report"
    """What is done about a worker that the others wait for: "report", "move" shares of its keys, or "grow"."""
    max_workers: int | None = None
    """The number of workers up to which "grow" adds more."""

    def __post_init__(self) -> None:
        choices: tuple[tuple[str, object, tuple[str, ...]], ...] = (
            ("recovery", self.policy, ("replace", "spread")),
            ("balance", self.balance, ("report", "move", "grow")),
        )
        for name, value, known in choices:
            if not isinstance(value, str) or value not in known:
                raise PlanError(
                    "plan.run",
                    f"cannot run with {name}={show(value)}: it is one of {', '.join(map(repr, known))}",
                    hint=f"leave it out, or give {name}={known[0]!r}",
                )
        silence: object = self.silence
        is_number = isinstance(silence, int | float) and not isinstance(silence, bool)
        if not is_number or not self.silence >= 2:
            raise PlanError(
                "plan.run",
                f"cannot run with silence={show(silence)}: that is a number of seconds from 2 on",
                hint="workers give a sign of life every second; a worker that gave none for so long is thought dead",
            )
        if self.max_workers is not None:
            check_count("max_workers", self.max_workers)


@dataclass(frozen=True, slots=True, repr=False)
class Security(_Options):
    """How the processes of a run are kept from strangers. Each of them shows a token in any case.

    >>> import riverrun as rr
    >>> rr.options.Security(tls=True)
    Security(True)
    """

    argument: ClassVar[str] = "security"
    forms: ClassVar[str] = "rr.options.Security"
    sample: ClassVar[str] = "rr.options.Security(tls=True)"
    tls: bool | tuple[str | Path, str | Path] = False
    """Whether connections are encrypted: True makes a certificate for the run; or the files of a certificate and its
    key."""


class ShortOptions(TypedDict, total=False):
    """The fields of `Checkpoint`, `Recovery` and `Security`, given by themselves."""

    every: int | timedelta | None
    retain: int
    synced: bool
    storage_timeout: float | timedelta | None
    keep_inputs: bool | None
    take_over: bool
    from_checkpoint: int | None
    rebuild: bool
    skip_failing: bool
    silence: float
    balance: Balance
    max_workers: int | None
    tls: bool | tuple[str | Path, str | Path]


@dataclass(frozen=True, slots=True)
class RunOptions:
    """All options of a run, in one form."""

    workers: int | Literal["auto"] = 1
    on: Any = None
    checkpoint: Checkpoint | None = None
    recovery: Recovery = field(default_factory=Recovery)
    security: Security = field(default_factory=Security)
    history: int = 1
    memory: int | str | None = None
    timeout: float = 60.0
    seed: int | None = None


_HOMES: dict[str, type[_Options]] = {
    each.name: kind for kind in (Checkpoint, Recovery, Security) for each in fields(kind)
}
"""The dataclass that each option belongs to; the others are those of `RunOptions` itself."""
_OptionsT = TypeVar("_OptionsT", bound=_Options)


def run_options(
    short: Mapping[str, Any],
    *,
    checkpoint: object = None,
    recovery: object = "replace",
    security: object = None,
    **others: Any,
) -> RunOptions:
    """The options of a run: the arguments of `Dataflow.run`, of which `short` are those given by their short forms."""
    for name, value in short.items():
        if name not in _HOMES or name in _ELSEWHERE:
            raise _unknown(name, value)
    if isinstance(recovery, str) and recovery != "replace":
        short = {**short, "policy": recovery}
        recovery = None
    return RunOptions(
        checkpoint=_checkpoint(checkpoint, short),
        recovery=_completed(Recovery, None if recovery == "replace" else recovery, short),
        security=_completed(Security, security, short),
        **others,
    )


def _checkpoint(value: object, short: Mapping[str, Any]) -> Checkpoint | None:
    if value is not None and not isinstance(value, Checkpoint):
        return _completed(Checkpoint, None, {**short, "path": value})
    if value is not None:
        return _completed(Checkpoint, value, short)
    lonely = {name: short[name] for name in short if _HOMES[name] is Checkpoint}
    Checkpoint(".", **lonely)  # the values are checked all the same
    for name, chosen in lonely.items():
        if chosen:
            raise PlanError(
                "plan.run",
                f"cannot run with {name}={show(chosen)} and no checkpoint path: nothing outlives the run",
                hint=f"leave it out, or give a path: flow.run(checkpoint=PATH, {name}={show(chosen)})",
            )
    return None


def _completed(kind: type[_OptionsT], value: object, short: Mapping[str, Any]) -> _OptionsT:
    """A dataclass of options: the user's own, or one made of the short forms."""
    ours = {name: short[name] for name in short if _HOMES[name] is kind}
    if value is None:
        return kind(**ours)
    if not isinstance(value, kind):
        raise PlanError(
            "plan.run",
            f"cannot run with {kind.argument}={show(value)}: that is {kind.forms}",
            hint=f"leave it out, or give {kind.argument}={kind.sample}",
        )
    if ours:
        both = ", ".join(f"{name}={show(chosen)}" for name, chosen in ours.items())
        raise PlanError(
            "plan.run",
            f"cannot run with {both} beside {kind.argument}={value!r}: an option is said once",
            hint=f"{kind.argument}=rr.options.{replace(value, **ours)!r}",  # type: ignore[type-var]
        )
    return value


def _unknown(name: str, value: object) -> PlanError:
    known = sorted({*_HOMES, *RunOptions.__slots__} - _ELSEWHERE.keys())
    if name in _ELSEWHERE:
        hint = _ELSEWHERE[name].format(value=show(value))
    else:
        close = get_close_matches(name, known, n=1)
        hint = f"did you mean {close[0]}=?" if close else f"the options are {', '.join(known)}"
    return PlanError(
        "plan.run",
        f"cannot run with {name}={show(value)}: there is no such option",
        hint=hint,
    )


def check_on(options: RunOptions, carrier: Carrier, workers: int) -> None:
    """Refuse options that make no sense at the place where the workers are to live, or with this number of workers."""
    hint = 'leave it out, or give workers=1 or workers="auto"'
    check_workers(workers, carrier, "run with", hint)
    check_count("history", options.history)
    path = None if options.checkpoint is None else options.checkpoint.path
    _check_place(carrier, options.timeout, options.security.tls, options.seed, path)
    silence = options.recovery.silence
    if silence != SILENCE and "silence" not in carrier.takes:
        raise PlanError(
            "plan.run",
            f"cannot run with silence={show(silence)} {carrier.place}: a worker that is no process of its own cannot "
            "be lost alone",
            hint='leave it out, or run with workers as processes: flow.run(on="processes", workers=2, silence=...)',
        )
    _check_balance(options.recovery, workers, carrier, is_durable=options.checkpoint is not None)


def check_workers(workers: object, carrier: Carrier, attempt: str, hint: str) -> None:
    """Refuse what is no number of workers, and more workers than make sense at the place where they are to live."""
    check_count("workers", workers, attempt, hint)
    most = carrier.most_workers
    if most is not None and isinstance(workers, int) and workers > most:
        raise PlanError(
            "plan.run",
            f"cannot {attempt} workers={workers} {carrier.place}: {most} is the most, since each step connects every "
            "worker with every other one, in one thread",
            hint='more workers than cores do not help: flow.run(on="processes", workers="auto") uses all cores of this '
            'machine, on="spark" those of a cluster',
        )


def _check_every(distance: object) -> None:
    """How often checkpoints are made."""
    fits = distance is None
    if isinstance(distance, int) and not isinstance(distance, bool):
        fits = distance >= 1
    elif isinstance(distance, timedelta):
        fits = distance > timedelta(0)
    if not fits:
        raise PlanError(
            "plan.run",
            f"cannot run with every={distance!r}: that is a number of epochs from 1 on, or a timedelta",
            hint="for instance every=100 or every=timedelta(seconds=30); None for checkpoints on demand only",
        )


def cluster_request(plan: Plan, options: RunOptions, carrier: Carrier) -> ClusterRequest:
    """The cluster that a run of `plan` with these options asks its carrier for; options that make no sense there are
    refused."""
    workers = options.workers
    if workers == "auto":
        workers = carrier.suitable_workers(options.on)
    check_on(options, carrier, workers)
    checkpoint, recovery = options.checkpoint, options.recovery
    durability: dict[str, Any] = {"policy": recovery.policy, "application": plan.name}
    if checkpoint is not None:
        # A field of `Checkpoint` is the field of the same name in `Durability`, except for the two said here.
        chosen = {each.name: getattr(checkpoint, each.name) for each in fields(checkpoint)}
        durability |= {"checkpoint": chosen.pop("path"), "about": describe_outputs(plan), **chosen}
        durability["storage_timeout"] = as_seconds(checkpoint.storage_timeout)
    return ClusterRequest(
        plan,
        options.on,
        workers,
        history=options.history,
        memory=as_bytes(options.memory),
        seed=options.seed,
        timeout=options.timeout,
        tls=options.security.tls,
        silence=recovery.silence,
        balance=recovery.balance,
        most_workers=recovery.max_workers or workers,
        durability=durability,
    )


def identity_of(checkpoint: str | Path | None) -> str:
    """The name by which sinks recognise the run whose epochs they keep: its checkpoint path, hashed. Without a path no
    later run continues this one, so the name is random."""
    if checkpoint is None:
        return uuid4().hex
    place = str(checkpoint)
    if "://" not in place:
        place = str(Path(place).resolve())
    return blake2b(place.encode(), digest_size=16).hexdigest()


def check_count(
    name: str, count: object, attempt: str = "run with", hint: str | None = None
) -> None:
    """A number of things of which there is at least one."""
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise PlanError(
            "plan.run",
            f"cannot {attempt} {name}={count!r}: that is a whole number from 1 on",
            hint=hint or f"leave it out, or give {name}=1",
        )


def check_flag(value: object, name: str) -> None:
    """Refuse what is neither true nor false."""
    if not isinstance(value, bool):
        raise PlanError(
            "plan.flag",
            f"cannot take {name}={show(value)}: that is True or False",
            hint=f"{name}=True, or leave it out",
        )


def as_seconds(duration: object) -> float | None:
    """How long a storage that fails is waited for: seconds or a timedelta; None for ever.

    >>> as_seconds(timedelta(minutes=1)), as_seconds(5), as_seconds(None)
    (60.0, 5.0, None)
    """
    if duration is None:
        return None
    seconds = -1.0
    if isinstance(duration, timedelta):
        seconds = duration.total_seconds()
    elif isinstance(duration, int | float) and not isinstance(duration, bool):
        seconds = float(duration)
    if not 0 < seconds < float("inf"):
        raise PlanError(
            "plan.run",
            f"cannot run with storage_timeout={show(duration)}: that is a number of seconds above 0, or a timedelta",
            hint="it is how long a storage that fails is waited for; leave it out to wait for as long as it takes",
        )
    return seconds


def as_bytes(amount: object) -> int | None:
    """A budget of memory, as a number of bytes or written like "2g".

    >>> as_bytes("512m"), as_bytes(100_000), as_bytes(None)
    (536870912, 100000, None)
    """
    if amount is None:
        return None
    size = 0
    if isinstance(amount, int) and not isinstance(amount, bool):
        size = amount
    elif isinstance(amount, str):
        match = re.fullmatch(r"\s*(\d+)\s*([kmgt]?)(?:i?b)?\s*", amount.lower())
        if match:
            size = int(match[1]) << _POWERS[match[2]]
    if size < 1:
        raise PlanError(
            "plan.run",
            f"cannot run with memory={amount!r}: that is a number of bytes, or text like '512m' or '2g'",
            hint="it is how much state each worker keeps in memory; the rest is in files",
        )
    if size < LEAST_MEMORY:
        raise PlanError(
            "plan.run",
            f"cannot run with memory={amount!r}: that is {size} bytes, and a worker needs at least {LEAST_MEMORY} "
            "(64 KB)",
            hint="a number is one of bytes; write a unit: memory='512m' or memory='2g'",
        )
    return size


def check_timeout(seconds: object, attempt: str, *, zero: bool = True, hint: str) -> None:
    """Refuse a timeout that is no number of seconds: text, a flag, NaN, a negative number, and 0 unless `zero`."""
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not is_number or not (seconds >= 0 if zero else seconds > 0):  # type: ignore[operator]
        raise PlanError(
            "plan.run",
            f"cannot {attempt} timeout={show(seconds)}: that is a number of seconds "
            + ("from 0 on" if zero else "above 0"),
            hint=hint,
        )


def _check_place(carrier: Carrier, timeout: object, tls: Any, seed: object, path: Any) -> None:
    """Options that make sense in some places only."""
    if seed is not None and (not isinstance(seed, int) or isinstance(seed, bool)):
        raise PlanError(
            "plan.run",
            f"cannot run with seed={show(seed)}: that is a whole number",
            hint="leave it out, or give seed=1",
        )
    check_timeout(timeout, "run with", zero=False, hint="it is how long workers have to come up")
    if tls and "tls" not in carrier.takes:
        raise PlanError(
            "plan.run",
            f"cannot run with tls {carrier.place}: nothing leaves this machine",
            hint='leave it out, or run on Spark: flow.run(on="spark", tls=True)',
        )
    if seed is not None and "seed" not in carrier.takes:
        raise PlanError(
            "plan.run",
            f"cannot run with a seed {carrier.place}: workers take turns as they come",
            hint="leave out the seed, or `on`",
        )
    if isinstance(path, Storage) and "storage" not in carrier.takes:
        raise PlanError(
            "plan.run",
            f"cannot run with checkpoint={show(path)} {carrier.place}: an opened storage is of one process, and each "
            "worker opens the storage itself",
            hint="give the path or URL of the storage: checkpoint='s3://bucket/path'; or leave out `on`",
        )


def _check_balance(recovery: Recovery, workers: int, carrier: Carrier, *, is_durable: bool) -> None:
    """Refuse moving keys where none can move, and growing without a bound."""
    balance, max_workers = recovery.balance, recovery.max_workers
    if balance != "report" and ("balance" not in carrier.takes or not is_durable):
        where = "" if "balance" in carrier.takes else f" {carrier.place}"
        raise PlanError(
            "plan.run",
            f"cannot run with balance={balance!r}{where}: keys move between workers that are processes, through a "
            "checkpoint path",
            hint='flow.run(on="processes", checkpoint=PATH, balance=...), or on="spark"',
        )
    if max_workers is not None and balance != "grow":
        rule = 'max_workers= is how far balance="grow" may grow, and nothing else grows'
        hint = f'leave max_workers= out, or give balance="grow": flow.run(..., workers={workers}, balance="grow", '
        hint += f"max_workers={max_workers})"
    elif balance == "grow" and max_workers is None:
        rule, hint = "to grow, it must be said up to how many", "give max_workers="
    elif isinstance(max_workers, int) and max_workers < workers:
        rule = f"there are {workers} workers from the start, which is more than there may be"
        hint = f"give max_workers={workers} or more, or start with fewer workers"
    else:
        return
    raise PlanError(
        "plan.run",
        f"cannot run with balance={balance!r}, workers={workers} and max_workers={max_workers!r}: {rule}",
        hint=hint,
    )
