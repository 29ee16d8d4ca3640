"""Programs on their way to workers: the function that makes instances, with the user's functions in it, as bytes.

The launchers (`processes`, `spark.launcher`) pack a program, and each worker process unpacks it. cloudpickle writes the
bytes: what is defined in ``__main__``, in a notebook, or without a name travels as code; what is in a module travels
as its name, and is imported where it arrives.

>>> make = unpack_program(pack_program(lambda: 7))
>>> make()
7
>>> from threading import Lock
>>> lock = Lock()
>>> pack_program(lambda: lock)
Traceback (most recent call last):
    ...
riverrun.errors.PlanError: cannot send the program to workers: TypeError: cannot pickle '_thread.lock' object
...
Hint: a function of the program holds on to something that cannot travel, such as a lock, an open file or a session: ...
"""

from __future__ import annotations

from typing import Any

import cloudpickle

from riverrun.errors import PlanError


def pack_program(program: Any) -> bytes:
    """The bytes of a program; `PlanError` for one that cannot travel."""
    try:
        return bytes(cloudpickle.dumps(program))
    except Exception as error:
        raise PlanError(
            "plan.travel",
            f"cannot send the program to workers: {type(error).__name__}: {error}",
            hint="a function of the program holds on to something that cannot travel, such as a lock, an open file or "
            "a session: make it inside the function",
        ) from error


def unpack_program(packed: bytes) -> Any:
    """The program that `pack_program` made these bytes of."""
    return cloudpickle.loads(packed)
