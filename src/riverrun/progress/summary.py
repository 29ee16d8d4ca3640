"""Path summaries: how a path through the graph changes the time of a message that takes the path.

``topology`` gives every arc of a graph a summary, and progress tracking follows paths by following
one summary with another. A summary keeps the first few coordinates of a time, adds constants to
these, forgets the other coordinates, and appends constants of its own:

    ``(t[0] + advance[0], ..., t[keep - 1] + advance[keep - 1], *append)``

Entering a loop appends a round 0, feedback adds one to the innermost round, and leaving forgets the
innermost round. Any sequence of these steps has the same form. The form is canonical: two summaries
are equal exactly when they change every time in the same way.

Laws:

- **Composition.** ``a.followed_by(b).results_in(t) == b.results_in(a.results_in(t))``.
- **Exact order.** ``a.less_equal(b)`` exactly when ``less_equal(a.results_in(t), b.results_in(t))``
  for all t.
- **Monotone.** ``less_equal(s, t)`` implies ``less_equal(a.results_in(s), a.results_in(t))``.

>>> into, around, out = Summary.enter(1), Summary.feedback(2), Summary.leave(2)
>>> into.followed_by(around).followed_by(around).results_in((5,))
(5, 2)
>>> into.followed_by(around).followed_by(out) == Summary.identity(1)
True

Cost: a fraction of a microsecond a call, however long the path is.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from operator import add

from riverrun.errors import PlanError

from .timestamp import Timestamp, less_equal

__all__ = ["Summary"]


@dataclass(frozen=True, slots=True)
class Summary:
    """How a path changes times of ``input_depth`` coordinates.

    >>> Summary(3, advance=(0, 1), append=(0,)).results_in((4, 4, 4))
    (4, 5, 0)
    """

    input_depth: int
    advance: Timestamp
    append: Timestamp = ()
    _moves: bool = field(init=False, repr=False, compare=False)  # whether any advance is positive

    def __post_init__(self) -> None:
        if len(self.advance) > self.input_depth or min((*self.advance, *self.append, 0)) < 0:
            raise PlanError(
                "plan.summary",
                f"cannot make a summary that keeps {len(self.advance)} of {self.input_depth} "
                f"coordinates, adds {self.advance} and appends {self.append}: it can keep no more "
                "coordinates than there are, and time never goes back",
                hint="use Summary.identity, enter, leave and feedback, and follow one with another",
                input_depth=self.input_depth,
                advance=self.advance,
                append=self.append,
            )
        object.__setattr__(self, "_moves", any(self.advance))

    @staticmethod
    def identity(depth: int) -> Summary:
        """Return the summary of a path that leaves a time as it is.

        >>> Summary.identity(2).results_in((3, 4))
        (3, 4)
        """
        return Summary(depth, (0,) * depth)

    @staticmethod
    def enter(depth: int) -> Summary:
        """Return the summary of entering a loop from ``depth``: round 0 is appended.

        >>> Summary.enter(1).results_in((3,))
        (3, 0)
        """
        return Summary(depth, (0,) * depth, (0,))

    @staticmethod
    def leave(depth: int) -> Summary:
        """Return the summary of leaving the innermost loop at ``depth``: the last round is forgotten.

        >>> Summary.leave(2).results_in((3, 4))
        (3,)
        """
        return Summary(depth, (0,) * (depth - 1))

    @staticmethod
    def feedback(depth: int, by: int = 1) -> Summary:
        """Return the summary of going around the innermost loop at ``depth``: the last round grows by ``by``.

        >>> Summary.feedback(2).results_in((3, 4)), Summary.feedback(2, by=3).results_in((3, 4))
        ((3, 5), (3, 7))
        """
        return Summary(depth, (0,) * (depth - 1) + (by,))

    @property
    def keep(self) -> int:
        """How many leading coordinates of a time the path keeps.

        >>> Summary.leave(3).keep
        2
        """
        return len(self.advance)

    @property
    def output_depth(self) -> int:
        """How many coordinates a time has at the end of the path.

        >>> Summary.enter(1).output_depth
        2
        """
        return len(self.advance) + len(self.append)

    def results_in(self, time: Timestamp) -> Timestamp:
        """Return the time at the end of the path for a message that starts at ``time``.

        >>> Summary.enter(1).followed_by(Summary.feedback(2, by=2)).results_in((3,))
        (3, 2)
        """
        if self._moves:
            return tuple(map(add, time, self.advance)) + self.append  # map stops after `keep`
        return time[: len(self.advance)] + self.append

    def followed_by(self, other: Summary) -> Summary:
        """Return the summary of taking this path and then ``other``.

        Leaving a loop forgets its round, also a round that this path itself appended:

        >>> Summary.enter(1).followed_by(Summary.leave(2)) == Summary.identity(1)
        True
        >>> Summary.leave(2).followed_by(Summary.enter(1)).results_in((3, 4))
        (3, 0)
        """
        if self.output_depth != other.input_depth:
            raise PlanError(
                "plan.depth",
                f"cannot follow a path that ends at depth {self.output_depth} with one that starts "
                f"at depth {other.input_depth}: they meet at one port, and a port has one depth",
                hint="enter or leave a loop in between",
                output_depth=self.output_depth,
                input_depth=other.input_depth,
            )
        # `other` acts on our results: the first `keep` are coordinates of the time, the others
        # constants, to which `other` adds constants.
        keep = len(self.advance)
        return Summary(
            self.input_depth,
            tuple(map(add, self.advance, other.advance)),
            tuple(map(add, self.append, other.advance[keep:])) + other.append,
        )

    def less_equal(self, other: Summary) -> bool:
        """Whether this path's results are at or before those of ``other``, for every time.

        Coordinate by coordinate: where both paths keep a coordinate, or both append a constant, the
        numbers decide. Where only this path keeps a coordinate, the coordinate may be larger than any
        constant of ``other``: the answer is no. Where only ``other`` keeps a coordinate, the result of
        ``other`` is at least the number that ``other`` adds, and equal to that number when the
        coordinate is 0: our constant is compared with that number.

        >>> Summary.identity(2).less_equal(Summary.feedback(2))
        True
        >>> again = Summary.leave(2).followed_by(Summary.enter(1))  # (e, r) -> (e, 0)
        >>> again.less_equal(Summary.identity(2)), Summary.identity(2).less_equal(again)
        (True, False)
        """
        return (
            self.input_depth == other.input_depth
            and self.output_depth == other.output_depth
            and len(self.advance) <= len(other.advance)
            and less_equal(self.advance + self.append, other.advance + other.append)
        )
