"""Algorithms: functions of collections to collections, written with the public API alone.

Users find them as `riverrun.graphs` and `riverrun.learning`. That nothing here needs more than public names is a house
rule (``tools/check_imports.py``): the proof that these suffice.
"""

from typing import Any

import riverrun


def __getattr__(name: str) -> Any:
    """Functions were here before they were in namespaces: the package knows in which."""
    try:
        getattr(riverrun, name)
    except (AttributeError, ImportError) as error:
        message = str(error).replace("'riverrun'", f"{__name__!r}")
        raise type(error)(
            message, name=name if isinstance(error, AttributeError) else __name__
        ) from None
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)
