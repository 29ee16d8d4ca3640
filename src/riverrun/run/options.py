"""The options of a run, looked at before anything is started."""

from __future__ import annotations

import os
import re
from datetime import timedelta
from hashlib import blake2b
from pathlib import Path
from typing import Any
from uuid import uuid4

from riverrun.errors import PlanError
from riverrun.rows.values import show
from riverrun.runtime.carriers import Carrier
from riverrun.storage.store import Storage

_POWERS = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}


def check_every(given: object) -> None:
    """How often checkpoints are made."""
    fits = given is None
    if isinstance(given, int) and not isinstance(given, bool):
        fits = given >= 1
    elif isinstance(given, timedelta):
        fits = given > timedelta(0)
    if not fits:
        raise PlanError(
            "plan.run",
            f"cannot run with every={given!r}: that is a number of epochs from 1 on, or a timedelta",
            hint="for instance every=100 or every=timedelta(seconds=30); None for checkpoints on demand only",
        )


def check_durable(checkpoint: object, **options: object) -> None:
    """Options that say what is done with a checkpoint path."""
    for name, given in options.items():
        if given is not None and not isinstance(given, bool):
            raise PlanError(
                "plan.run",
                f"cannot run with {name}={given!r}: that is True or False",
                hint=f"leave it out, or give {name}=True",
            )
        if given and checkpoint is None:
            raise PlanError(
                "plan.run",
                f"cannot run with {name}=True and no checkpoint path: nothing outlives the run",
                hint=f"leave it out, or give a path: flow.run(checkpoint=PATH, {name}=True)",
            )


def identity_of(checkpoint: str | Path | None) -> str:
    """What a run is known by to those who keep its epochs: its checkpoint path; without one, no other run goes on."""
    if checkpoint is None:
        return uuid4().hex
    place = str(checkpoint)
    if "://" not in place:
        place = str(Path(place).resolve())
    return blake2b(place.encode(), digest_size=16).hexdigest()


def check_count(
    what: str, given: object, attempt: str = "run with", hint: str | None = None
) -> None:
    """A number of things of which there is at least one."""
    if not isinstance(given, int) or isinstance(given, bool) or given < 1:
        raise PlanError(
            "plan.run",
            f"cannot {attempt} {what}={given!r}: that is a whole number from 1 on",
            hint=hint or f"leave it out, or give {what}=1",
        )


def check_flag(given: object, name: str) -> None:
    """Refuse what is neither true nor false."""
    if not isinstance(given, bool):
        raise PlanError(
            "plan.flag",
            f"cannot take {name}={show(given)}: that is True or False",
            hint=f"{name}=True, or leave it out",
        )


def as_seconds(given: object) -> float | None:
    """How long a storage that fails is waited for: seconds or a timedelta; None for ever.

    >>> as_seconds(timedelta(minutes=1)), as_seconds(5), as_seconds(None)
    (60.0, 5.0, None)
    """
    if given is None:
        return None
    seconds = -1.0
    if isinstance(given, timedelta):
        seconds = given.total_seconds()
    elif isinstance(given, int | float) and not isinstance(given, bool):
        seconds = float(given)
    if not 0 < seconds < float("inf"):
        raise PlanError(
            "plan.run",
            f"cannot run with patience={given!r}: that is a number of seconds above 0, or a timedelta",
            hint="it is how long a storage that fails is waited for; leave it out to wait for as long as it takes",
        )
    return seconds


def check_path(
    checkpoint: object, *, patience: object, take_over: object, from_checkpoint: object
) -> None:
    """Options that make sense with a checkpoint path only."""
    if checkpoint is not None and (
        not isinstance(checkpoint, str | os.PathLike | Storage) or not str(checkpoint).strip()
    ):
        raise PlanError(
            "plan.run",
            f"cannot run with checkpoint={show(checkpoint)}: that is a path or a URL",
            hint='for instance checkpoint="checkpoints/social"; leave it out to keep nothing',
        )
    if from_checkpoint is not None:
        check_count("from_checkpoint", from_checkpoint)
    if not isinstance(take_over, bool):
        raise PlanError(
            "plan.run",
            f"cannot run with take_over={take_over!r}: that is True or False",
            hint="take_over=True takes the checkpoint path away from a run that uses it",
        )
    given = {
        "patience": patience is not None,
        "take_over": take_over,
        "from_checkpoint": from_checkpoint is not None,
    }
    if checkpoint is None and any(given.values()):
        what = " and ".join(name for name, there in given.items() if there)
        raise PlanError(
            "plan.run",
            f"cannot run with {what} and no checkpoint path: there is no storage",
            hint="give checkpoint=PATH, or leave it out",
        )


def as_bytes(given: object) -> int | None:
    """An amount of memory, as a number of bytes or written like "2g".

    >>> as_bytes("512m"), as_bytes(1000), as_bytes(None)
    (536870912, 1000, None)
    """
    if given is None:
        return None
    size = 0
    if isinstance(given, int) and not isinstance(given, bool):
        size = given
    elif isinstance(given, str):
        match = re.fullmatch(r"\s*(\d+)\s*([kmgt]?)(?:i?b)?\s*", given.lower())
        if match:
            size = int(match[1]) << _POWERS[match[2]]
    if size < 1:
        raise PlanError(
            "plan.run",
            f"cannot run with memory={given!r}: that is a number of bytes, or text like '512m' or '2g'",
            hint="it is how much state each worker keeps in memory; the rest is in files",
        )
    return size


def check_timeout(given: object, attempt: str, *, zero: bool = True, hint: str) -> None:
    """Refuse a timeout that is no number of seconds: text, a flag, NaN, a negative number, and 0 unless `zero`."""
    is_number = isinstance(given, int | float) and not isinstance(given, bool)
    if not is_number or not (given >= 0 if zero else given > 0):  # type: ignore[operator]
        raise PlanError(
            "plan.run",
            f"cannot {attempt} timeout={show(given)}: that is a number of seconds {'from 0 on' if zero else 'above 0'}",
            hint=hint,
        )


def check_place(carrier: Carrier, *, timeout: object, tls: Any, seed: object) -> None:
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


def check_recovery(
    recovery: object,
    silence: object,
    balance: object,
    max_workers: object,
    workers: int,
    carrier: Carrier,
    checkpoint: Any,
) -> None:
    """What is done about workers that are lost, silent or slow."""
    for what, given, known in (
        ("recovery", recovery, ("replace", "spread")),
        ("balance", balance, ("report", "move", "grow")),
    ):
        if given not in known:
            raise PlanError(
                "plan.run",
                f"cannot run with {what}={given!r}: it is one of {', '.join(map(repr, known))}",
                hint=f"leave it out, or give {what}={known[0]!r}",
            )
    if not isinstance(silence, int | float) or isinstance(silence, bool) or not silence >= 2:
        raise PlanError(
            "plan.run",
            f"cannot run with silence={silence!r}: that is a number of seconds from 2 on",
            hint="workers give a sign of life every second; one that gave none for so long is thought dead",
        )
    if balance != "report" and ("balance" not in carrier.takes or checkpoint is None):
        where = "" if "balance" in carrier.takes else f" {carrier.place}"
        raise PlanError(
            "plan.run",
            f"cannot run with balance={balance!r}{where}: keys move between workers that are processes, through a "
            "checkpoint path",
            hint='flow.run(on="processes", checkpoint=PATH, balance=...), or on="spark"',
        )
    if max_workers is not None:
        check_count("max_workers", max_workers)
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
