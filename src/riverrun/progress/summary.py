"""Path summaries: what travelling along a path does to a time.

A summary keeps the first few coordinates of a time, adds constants to them, forgets the others, and
appends constants of its own:

    ``(t[0] + advance[0], ..., t[keep - 1] + advance[keep - 1], *append)``

Entering a loop appends a round 0, feedback adds one to the innermost round, leaving forgets it, and
whatever one can build by following one with another has the same form. The form is canonical: two
summaries are equal exactly when they do the same to every time.

Laws:

1. ``a.followed_by(b).results_in(t) == b.results_in(a.results_in(t))``.
2. ``a.less_equal(b)`` exactly when ``less_equal(a.results_in(t), b.results_in(t))`` for all t.
3. Summaries are monotone: ``less_equal(s, t)`` implies the same of their results.

>>> into, around, out = Summary.enter(1), Summary.feedback(2), Summary.leave(2)
>>> into.followed_by(around).followed_by(around).results_in((5,))
(5, 2)
>>> into.followed_by(around).followed_by(out) == Summary.identity(1)
True

Cost: a fraction of a microsecond each; nothing depends on the length of the path.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from operator import add

from riverrun.errors import PlanError

from .timestamp import Timestamp, less_equal

__all__ = ["Summary"]


@dataclass(frozen=True, slots=True)
class Summary:
    """What a path does to times of ``input_depth`` coordinates.

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
        """Leave a time as it is.

        >>> Summary.identity(2).results_in((3, 4))
        (3, 4)
        """
        return Summary(depth, (0,) * depth)

    @staticmethod
    def enter(depth: int) -> Summary:
        """Enter a loop from ``depth``: round 0 is appended.

        >>> Summary.enter(1).results_in((3,))
        (3, 0)
        """
        return Summary(depth, (0,) * depth, (0,))

    @staticmethod
    def leave(depth: int) -> Summary:
        """Leave the innermost loop at ``depth``: its round is forgotten.

        >>> Summary.leave(2).results_in((3, 4))
        (3,)
        """
        return Summary(depth, (0,) * (depth - 1))

    @staticmethod
    def feedback(depth: int, by: int = 1) -> Summary:
        """Go around the innermost loop at ``depth``: its round moves on.

        >>> Summary.feedback(2).results_in((3, 4)), Summary.feedback(2, by=3).results_in((3, 4))
        ((3, 5), (3, 7))
        """
        return Summary(depth, (0,) * (depth - 1) + (by,))

    @property
    def keep(self) -> int:
        """How many leading coordinates survive.

        >>> Summary.leave(3).keep
        2
        """
        return len(self.advance)

    @property
    def output_depth(self) -> int:
        """How many coordinates the results have.

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
        """Return the summary of this path and then ``other``.

        Leaving forgets what was counted inside, also what this path itself appended:

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
        # `other` acts on our results, of which the first `keep` are coordinates of the time and
        # the rest constants; what it adds to constants gives constants.
        keep = len(self.advance)
        return Summary(
            self.input_depth,
            tuple(map(add, self.advance, other.advance)),
            tuple(map(add, self.append, other.advance[keep:])) + other.append,
        )

    def less_equal(self, other: Summary) -> bool:
        """Whether this path's results are at or before those of ``other``, for every time.

        Where both keep a coordinate, or both have a constant, the numbers decide. Where only we
        keep it, it may be larger than any constant: no. Where only ``other`` keeps it, its result
        is at least what it adds, which it attains, since coordinates are >= 0: compare with that.

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
