"""Checking operators and programs: `check_operator` and `check_dataflow` try eight laws on them.

Whoever writes an operator or a program calls these functions in tests. Both play *scripts* to the program: lists of
insertions, deletions and commits (`script`), drawn at random or given by the user. Both return what was tried
(`Checked`), or raise `LawBroken` with the name of the broken law and the smallest script that was found to break it.

The laws, which `laws` states in full: *progress* and *silence* are about the times at which an operator sends; *oracle*
asks that the result is that of a computation from scratch; *split*, *order*, *compaction*, *resume* and *rescale* ask
that results do not change with the cutting of rows into batches, the order of rows, the compaction of states, failures
and restarts, and the number of workers.

In the example one random script (``rounds=1``) keeps two laws. Then an *oracle*, a function from all rows of the inputs
to the expected rows, is wrong: it gives the rows back as they are. For a single row that is right by chance, so the
smallest script that shows the difference has two rows.

>>> import riverrun as rr
>>> from riverrun.testing import LawBroken, check_operator
>>> def smallest(numbers):
...     return numbers.group_by().agg(n=rr.min("n"))
>>> print(check_operator(smallest, {"numbers": {"n": int}}, rounds=1, laws=["split", "order"]))
kept split, order in 1 scripts
>>> try:
...     check_operator(smallest, {"numbers": {"n": int}}, oracle=lambda numbers: numbers)
... except LawBroken as broken:
...     print(broken.law, broken.script)
oracle [insert("numbers", [{'n': 3}, {'n': 5}]), COMMIT]

Cost: some fifteen short runs for each script (`laws`), and some hundreds more when a law is broken (`trials`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from riverrun.errors import PlanError
from riverrun.frontends.dataflow import Dataflow
from riverrun.testing.draws import as_draw
from riverrun.testing.harness import build, passing
from riverrun.testing.laws import LAWS, Checked
from riverrun.testing.script import Item
from riverrun.testing.trials import LawCheck

Oracle = Callable[..., Any]


def check_operator(
    operator: Callable[..., Any],
    inputs: Mapping[str, Any],
    *,
    oracle: Oracle | None = None,
    script: Iterable[Item] | None = None,
    seed: int = 0,
    rounds: int = 3,
    epochs: int = 5,
    rows: int = 5,
    laws: Iterable[str] | None = None,
    patience: int = 10_000,
) -> Checked:
    """Try all `laws` on `operator`, a function of collections to a collection, or to several by name.

    `inputs` describes the rows of each input, by a schema, example rows, or a `Draw`. Each input goes to the
    parameter of its name; where no parameter has the name of an input, inputs go in the order of `inputs`. Without a
    `script`, `rounds` scripts are drawn, with the seeds from `seed` on; each has `epochs` epochs of up to `rows` rows.
    `oracle` is a function of lists of rows (dicts), one for each input, to rows (dicts or tuples). Without an oracle,
    the operator is compared with itself: run from scratch, by one worker, in one epoch. An epoch that takes more than
    `patience` turns of operators is taken to hang. (A function of Python that does not return is not noticed.)

    >>> import riverrun as rr
    >>> from riverrun.testing import check_operator
    >>> def oracle(words):
    ...     return {(row["word"], words.count(row)) for row in words}
    >>> print(
    ...     check_operator(
    ...         lambda w: w.group_by("word").count(), {"words": {"word": str}}, oracle=oracle
    ...     )
    ... )
    kept progress, silence, oracle, split, order, compaction, resume, rescale in 3 scripts
    """
    draws = [as_draw(name, description) for name, description in inputs.items()]
    keys = {each.name: each.key or None for each in draws}
    flow = build(operator, {each.name: each.schema for each in draws}, keys, in_order=True)
    judge = None if oracle is None else _judge(oracle, [each.name for each in draws])
    check = LawCheck(flow.plan, draws, judge, _listed(laws), patience)
    return check.all(script, seed, rounds, epochs, rows)


def check_dataflow(
    program: Dataflow | Callable[[], Dataflow],
    inputs: Mapping[str, Any] | None = None,
    *,
    oracle: Oracle | None = None,
    script: Iterable[Item] | None = None,
    seed: int = 0,
    rounds: int = 3,
    epochs: int = 5,
    rows: int = 5,
    laws: Iterable[str] | None = None,
    patience: int = 10_000,
) -> Checked:
    """Try all `laws` on a whole `program`, a dataflow or a function that makes one; all outputs count.

    As `check_operator`, with `script`, `seed`, `rounds`, `epochs`, `rows` and `patience` as there; besides, the program
    is resumed from checkpoints in a real directory. `inputs` may give example rows or a `Draw` for some inputs; rows of
    other inputs are drawn by their schemas. `oracle` is called with keywords, the names of the inputs, and gives the
    rows of each output by name, or the rows of the only output.

    >>> import riverrun as rr
    >>> from riverrun.testing import check_dataflow
    >>> flow = rr.Dataflow("friends")
    >>> likes = flow.input("likes", {"who": str, "whom": str})
    >>> flow.output(
    ...     "mutual", likes.join(likes.rename({"who": "whom", "whom": "who"}), on=["who", "whom"])
    ... )
    >>> check_dataflow(
    ...     flow, {"likes": [{"who": "a", "whom": "b"}, {"who": "b", "whom": "a"}]}
    ... ).exempt
    ()
    """
    flow = program() if callable(program) and not isinstance(program, Dataflow) else program
    if not isinstance(flow, Dataflow):
        raise PlanError(
            "testing.program",
            f"cannot check {flow!r}: it is no dataflow",
            hint="give a dataflow, or a function without arguments that returns one",
        )
    known = {name: tuple(node.operator.upsert_key) for name, node in flow.plan.inputs.items()}
    for name in inputs or {}:
        if name not in known:
            raise PlanError(
                "plan.input_unknown",
                f"cannot draw rows of {name!r}: the inputs are: {', '.join(known)}",
                hint="check the spelling",
                input=name,
            )
    draws = [
        as_draw(name, (inputs or {}).get(name, flow.schema(name)), flow.schema(name), key)
        for name, key in known.items()
    ]
    judge = None if oracle is None else (lambda bags: oracle(**bags))
    check = LawCheck(flow.plan, draws, judge, _listed(laws), patience, in_directory=True)
    return check.all(script, seed, rounds, epochs, rows)


def _judge(oracle: Oracle, names: list[str]) -> Callable[[Mapping[str, Any]], Any]:
    """The oracle as a function of rows by input name: called by position or by name, as the operator would be."""
    _, by_name = passing(oracle, names, in_order=True)
    if by_name:
        return lambda bags: oracle(**{name: bags[name] for name in names})
    return lambda bags: oracle(*(bags[name] for name in names))


def _listed(laws: Iterable[str] | None) -> list[str]:
    if laws is None:
        return list(LAWS)
    asked = list(laws)
    for law in asked:
        if law not in LAWS:
            raise PlanError(
                "testing.law",
                f"cannot check the law of {law!r}: there are {', '.join(LAWS)}",
                hint="check the spelling",
            )
    return [law for law in LAWS if law in asked]
