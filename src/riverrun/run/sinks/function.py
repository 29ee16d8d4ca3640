"""A function of the user's as a destination: it is called with the changes of each epoch (``run.for_each_epoch``)."""

from __future__ import annotations

from collections.abc import Callable

from riverrun.errors import OperatorFailed, PlanError
from riverrun.run.sinks.queue import EpochChanges


class Function:
    """A function of the user's that is called for every epoch."""

    def __init__(
        self, function: Callable[[EpochChanges, int], object], flow: str, output: str
    ) -> None:
        self.shown = str(getattr(function, "__qualname__", type(function).__name__))
        self.epoch: int | None = None
        self._output = output
        self._function = function
        if not callable(function):
            raise PlanError(
                "plan.sink",
                f"cannot call {function!r} for each epoch of {output!r}: it is not a function",
                hint=f"run.for_each_epoch({output!r}, lambda changes, epoch: ...)",
            )

    def first(self, start: int | str, completed: int) -> int:
        """The first epoch that the function is called for, by the user's `start`."""
        if start == "all":
            return 0
        if start == "now":
            return completed
        if isinstance(start, int) and not isinstance(start, bool) and 0 <= start <= completed:
            return start
        raise PlanError(
            "plan.sink",
            f"cannot follow {self._output!r} with start={start!r}: it is 'all', 'now', or the number of an epoch up "
            f"to {completed}, the next one",
            hint='start="all" gives first what is there, start="now" only what is to come',
        )

    def is_whole_welcome(self, start: int | str) -> bool:
        """Whether the function may get all past epochs as one: not where the user names the epoch to start from."""
        return not isinstance(start, int)

    def write(self, changes: EpochChanges) -> None:
        """Call the function; an exception of the function ends the sink."""
        try:
            self._function(changes, changes.epoch)
        except BaseException as error:
            raise OperatorFailed(
                "sink.function",
                f"the function {self.shown} failed for epoch {changes.epoch} of {self._output!r}: "
                f"{type(error).__name__}: {error}",
                hint="the cause has the traceback. The run goes on, and the function is not called any more: mend it, "
                "and follow the output again",
                epoch=changes.epoch,
            ) from error
