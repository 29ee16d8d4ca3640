"""Delta iterations: loops that keep a solution with one row a key, and work only on what changed in the last round.

`Collection.iterate_delta` comes here. A delta iteration has two collections. The *solution* has one row for each key.
The *workset* has the rows to be worked on in a round: messages to keys, as a rule. In each round a *delta* is made:
rows that are to take the place of rows of the solution. Those that are accepted do, and the workset of the next round
is made of them. So a round costs what it changes, not what the solution has. The user gives one of two functions:
`body` takes the solution and the workset, and gives the delta and the next workset; `send` takes the accepted rows and
gives the next workset, and the workset itself is the delta. Laws:

- **One row a key.** At each round the solution has one row for each key, the best of those that were given. With
  `better`, a row of the delta is accepted if it is better than the row that is there (`loops.Better`: the named columns
  first, then the others in the order of the schema; so two different rows are never equally good). Without `better`,
  every row that differs from the row that is there is accepted, and two different rows for one key are an error.
- **Accepted rows.** `send` is given the accepted rows only. Where a step inside `body` takes the delta, that step takes
  the accepted rows of the delta instead.
- **Missing keys.** A row of the delta whose key is not in the solution at the start is dropped; with
  ``missing="add"`` it is accepted, and the solution grows.
- **Rest.** The loop ends at the first round which changes neither solution nor workset: as a rule when nothing is
  accepted. With `rounds`, it ends after so many rounds.
- **Fixed point.** As of each epoch, the result is that of the loop run from scratch over the rows of the epoch (the
  *oracle* law of ARCHITECTURE), whatever was inserted and deleted.

>>> import polars as pl, riverrun as rr
>>> from riverrun.testing import once
>>> links = [{"src": 1, "dst": 2}, {"src": 2, "dst": 3}, {"src": 7, "dst": 8}]
>>> def components(links):
...     both = rr.graphs.undirected(links)
...     labels = rr.graphs.nodes_of(links).select("node", label="node")
...
...     def send(labels):
...         return labels.join(both, left_on="node", right_on="src").select(
...             node="dst", label="label"
...         )
...
...     return labels.iterate_delta(
...         send(labels), key="node", send=send, better=rr.loops.least("label")
...     )
>>> sorted(once(components, links=links).rows())
[(1, 1), (2, 1), (3, 1), (7, 7), (8, 7)]

Cost: in each round, the rows of the delta and what the user's function makes of them; the solution and the changes of
all rounds are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import polars as pl
import pyarrow as pa

from riverrun.errors import PlanError, users_line
from riverrun.frontends.arguments import (
    check_callable,
    function_name,
    is_one_of,
    not_a_collection,
    type_in_words,
)
from riverrun.frontends.collections.best import Better, as_better
from riverrun.frontends.collections.executors import choose
from riverrun.frontends.collections.loops import (
    WIDENINGS,
    Variable,
    Way,
    Wider,
    check_arguments,
    check_limits,
    check_over,
    check_upkeep,
)
from riverrun.frontends.collections.microsteps import (
    SOLUTION,
    WORKSET,
    DeltaStep,
    check_microsteps,
    micro_loop,
)
from riverrun.frontends.collections.rounds import LoopEnd, Solution
from riverrun.frontends.collections.rows import Rows, deepest
from riverrun.frontends.collections.shapes import on_arrays, spread_of_send
from riverrun.frontends.collections.tracing import NoShape
from riverrun.frontends.collections.widening import widened
from riverrun.operators.iterations.only_row import OnlyRow
from riverrun.operators.reduce import Reduce
from riverrun.plan.plan import Shortcut
from riverrun.rows.column_names import checked_columns
from riverrun.rows.values import show
from riverrun.state import Order
from riverrun.state.schema import free_name

if TYPE_CHECKING:
    from riverrun.frontends.collection import Collection

_METHOD = "iterate_delta"
_MISSING = ("drop", "add")
MODES = ("auto", "superstep", "microstep", "differential")


def iterate_delta(
    solution: Collection,
    workset: Collection,
    key: str | Sequence[str],
    body: Callable[..., Any] | None,
    send: Callable[..., Any] | None,
    better: Better | pl.Expr | Sequence[pl.Expr] | None,
    missing: str,
    rounds: int | None,
    mode: str,
    spread_over: str,
    maintain: str,
    expect: int | None,
    name: str | None,
    patience: int,
) -> Collection:
    """See `Collection.iterate_delta`."""
    line = users_line()
    attempt = f"iterate {solution._name} by a delta"
    if not isinstance(workset, Rows):
        raise not_a_collection("plan.workset", attempt, workset)
    keys: tuple[str, ...] = checked_columns(key, solution.columns, attempt)
    step = _step(body, send, attempt, line)
    better = as_better(better)
    if better is not None and not isinstance(better, Better):
        raise PlanError(
            "plan.better",
            f"cannot {attempt} with better={show(better)} ({line}): that says no order of rows",
            hint='better=rr.loops.least("distance"), or rr.loops.greatest(...), of columns and expressions',
        )
    if better is not None:
        better.check(solution.schema, keys, attempt)
    if not is_one_of(missing, _MISSING):
        raise PlanError(
            "plan.missing",
            f"cannot {attempt} with missing={show(missing)} ({line}): a row whose key is not in the solution is "
            "dropped or added",
            hint='missing="drop" (the default) or missing="add"',
        )
    check_limits(_METHOD, rounds, patience, line)
    _check_mode(mode, line)
    check_over(_METHOD, spread_over, line)
    check_upkeep(_METHOD, mode, maintain, expect, line)
    if rounds == 0:
        return solution
    scope = deepest(solution, workset)
    solution, workset = solution._into(scope), workset._into(scope)
    for _ in range(WIDENINGS):
        try:
            with solution._builder.whole_or_not():
                loop = _DeltaLoop(solution, workset, keys, better, missing == "add", line)
                way = Way(
                    rounds, None, None, keys, mode, spread_over, maintain, expect, name, patience, line
                )  # fmt: skip
                return loop.close(step, send is not None, way)
        except Wider as wider:
            refusal = wider.refusal
            if wider.start is workset:
                workset = widened(workset, wider.kinds)
            else:
                solution = widened(solution, wider.kinds)
    raise refusal


def _check_mode(mode: Any, line: str) -> None:
    """Refuse a way to run a delta iteration that there is not."""
    if not is_one_of(mode, MODES):
        raise PlanError(
            "plan.mode",
            f"cannot {_METHOD} with mode={show(mode)} ({line}): a delta iteration runs in supersteps, in microsteps, "
            "or differentially",
            hint="mode='microstep' runs on arrays, best rows first, and mode='superstep' round by round"
            if mode == "arrays"
            else "mode='auto' (the default) takes microsteps where the order of work does not show; the others are "
            "mode='superstep', mode='microstep' and mode='differential'",
        )


def _step(body: Any, send: Any, attempt: str, line: str) -> Callable[..., Any]:
    """The user's function of a round: `body` or `send`, of which one is given."""
    if (body is None) == (send is None):
        raise PlanError(
            "plan.loop_body",
            f"cannot {attempt} ({line}): "
            + (
                "there is nothing to do in a round"
                if body is None
                else "both body= and send= are given"
            ),
            hint="body=step, where step(solution, workset) gives the delta and the next workset; or send=messages, "
            "where messages(accepted) gives the next workset and the workset itself is the delta",
            line=line,
        )
    function, which = (body, "body") if send is None else (send, "send")
    check_callable(function, f"{_METHOD}, as {which},")
    if send is None:
        check_arguments(
            body, 2, _METHOD, "the solution and the workset", "lambda solution, workset: ...", line
        )
    else:
        check_arguments(send, 1, _METHOD, "the accepted rows", "send=lambda accepted: ...", line)
    step: Callable[..., Any] = function
    return step


class _DeltaLoop:
    """A delta iteration that is being built, from checked arguments."""

    def __init__(
        self,
        solution: Collection,
        workset: Collection,
        key: tuple[str, ...],
        better: Better | None,
        adds_keys: bool,
        line: str,
    ) -> None:
        self._start = solution
        self._workset = workset
        self._key = key
        self._better = better
        self._adds_keys = adds_keys
        self._line = line
        self._mark = free_name("is new", solution.columns)
        """The column that tells rows of the delta from rows that are there already."""

    def close(
        self,
        step: Callable[..., Any],
        sends: bool,
        way: Way,
    ) -> Collection:
        """Build the loop. `step` gives the delta and the next workset; if it `sends`, the workset is the delta, and it
        gives the next workset."""
        builder = self._start._builder
        loop = builder.loop(self._start.scope, way.name)
        first = self._one_row_a_key(self._start)
        solution = Variable.entering(first, loop, way.rounds, way.patience)
        workset = Variable.entering(self._workset, loop, way.rounds, way.patience)
        if sends:
            delta: Collection = workset.inside
        else:
            delta, following = self._called(step, solution.inside, workset.inside)
            before = len(builder.nodes)
            if way.mode == "microstep":
                taken = {solution.inside._port: SOLUTION, workset.inside._port: WORKSET}
                check_microsteps(DeltaStep(taken, delta, following, loop), self._key, self._line)
        proposed = solution.fitting(delta, _METHOD, self._line)
        following_solution, parts = self._merged(solution.inside, proposed, first)
        accepted = parts.accepted
        if sends:
            following = self._sent(step, accepted)
            if way.mode == "microstep":
                taken = {accepted._port: WORKSET}
                check_microsteps(DeltaStep(taken, accepted, following, loop), self._key, self._line)
        elif delta.scope is loop:
            _go_on_from(delta, accepted, before)
        following_workset = workset.close(following, _METHOD, self._line)
        closed = solution.close(following_solution, _METHOD, self._line)

        def fast(at_loop: str) -> list[Shortcut]:
            if not sends:
                raise NoShape("its body gives a delta and a workset, and not only messages")
            if way.rounds is not None:
                raise NoShape("it has a number of rounds")
            if way.maintain == "restart":
                raise NoShape("it runs from its start in each epoch")
            try:
                shape = spread_of_send(
                    self._start, self._workset, self._key, self._better, self._adds_keys, accepted, following,
                )  # fmt: skip
            except NoShape as why:
                if way.mode != "microstep" or way.spread_over == "all":
                    raise
                wanted = following_workset.given.select(*self._start.columns)
                messages = DeltaStep({accepted._port: WORKSET}, accepted, wanted, loop)
                micro = micro_loop(
                    messages, self._start, self._workset, self._key, self._better, self._adds_keys, way.patience,
                    why, at_loop,
                )  # fmt: skip
                return [Shortcut(micro._port)]
            is_superstep = way.mode == "superstep"
            return on_arrays(shape, way.patience, at_loop, way.spread_over, supersteps=is_superstep)

        variables = [closed, following_workset]
        end = LoopEnd(key=self._key)
        (result,) = choose(variables, [closed.leave()], way, end, fast, parts)
        return result

    def _called(
        self, body: Callable[..., Any], solution: Collection, workset: Collection
    ) -> tuple[Collection, Collection]:
        """The delta and the next workset, as the user's body gives them."""
        given = body(solution, workset)
        if not isinstance(given, tuple | list) or len(given) != 2:
            raise self._not_given(body, "the delta and the next workset", given)
        for each in given:
            if not isinstance(each, Rows):
                raise self._not_given(body, "the delta and the next workset", each)
        return given[0], given[1]

    def _sent(self, send: Callable[..., Any], accepted: Collection) -> Collection:
        """The next workset, as the user's function of the accepted rows gives it."""
        sent: Collection = send(accepted)
        if not isinstance(sent, Rows):
            raise self._not_given(send, "the next workset", sent)
        return sent

    def _not_given(self, function: Callable[..., Any], wanted: str, given: Any) -> PlanError:
        return PlanError(
            "plan.loop_body",
            f"cannot {_METHOD} ({self._line}): {function_name(function)} gave {type_in_words(given)}, not {wanted}",
            hint="body=step, where step(solution, workset) returns two collections: return delta, workset; or "
            "send=messages, where messages(accepted) returns one",
            line=self._line,
        )

    def _one_row_a_key(self, rows: Collection) -> Collection:
        """The best row of each key; without `better`, the only row, and two different rows are an error."""
        if self._better is not None:
            by, descending = self._better.order(rows.columns, self._key)
            if by:
                return rows.group_by(*self._key).top(1, by=by, descending=descending)
        return self._only(rows, None, f"the solution of {_METHOD}")

    def _merged(
        self, solution: Collection, proposed: Collection, first: Collection
    ) -> tuple[Collection, Solution]:
        """The next solution, and what it is made of: the rows of it that are accepted are the new ones."""
        mark, columns = self._mark, self._start.columns
        proposed = proposed.with_columns(**{mark: pl.lit(True)})
        if not self._adds_keys:
            proposed = proposed.join(first.select(*self._key), on=list(self._key))
        marked = solution.with_columns(**{mark: pl.lit(False)})
        both = marked.concat(proposed)
        by: list[Any] = []
        if self._better is not None:
            by, descending = self._better.order(columns, self._key)
        if by:
            best = both.group_by(*self._key).top(1, by=[*by, mark], descending=[*descending, False])
        else:
            best = self._only(both, mark, "the delta")
        following = best.drop(mark)
        accepted = best.filter(pl.col(mark)).drop(mark)
        return following, Solution(self._key, marked, proposed, accepted)

    def _only(self, rows: Collection, mark: str | None, what: str) -> Collection:
        """The only row of each key. With `mark`, the row that is marked takes the place of the other, and stays marked
        if it differs from the other."""
        values = pa.schema([field for field in rows.schema if field.name not in self._key])
        order = () if mark is None else (Order(mark, True),)
        part = OnlyRow(0, values, mark, what)
        keys = [rows.schema.field(name) for name in self._key]
        text = f"the only row of each {', '.join(self._key)}"
        arranged = rows._arranged(self._key, order)
        only = rows._reduced(
            Reduce(self._key, (part,), text), [arranged], pa.schema([*keys, *values])
        )
        return only.select(*rows.columns)


def _go_on_from(delta: Collection, accepted: Collection, before: int) -> None:
    """Let all nodes that take the delta take the accepted rows instead: those with a number below `before`."""
    builder = delta._builder
    arranged = None if delta._keyed is None else accepted._arranged(delta._keyed)
    builder.lead_elsewhere(
        delta._port, accepted._port, None if arranged is None else arranged._port, before
    )
