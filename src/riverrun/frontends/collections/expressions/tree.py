"""A Polars expression as a tree of plain dicts, lists and strings.

`rowwise`, `direct` and `compiled` look at expressions by way of this tree, which is the JSON that Polars writes of an
expression. A node is its kind (``"Len"``) or a dict from its kind to its parts (``{"Column": "x"}``). The kinds are
those of the installed version of Polars, which calls this JSON unstable; `rowwise` refuses kinds that it does not know.
Laws:

- **Functions left out.** Every expression has a tree, also with Python functions in it that cannot be pickled: Polars
  writes the expression apart from its functions (`plan.expression_text`).
- **Expected form.** Before the first tree is read, Polars writes those of `_forms`, and each has to be written
  as it is there. A Polars that writes other trees is refused: trees misread would be wrong results.
- **Depth.** A tree is as deep as its expression. An expression that is too deep for Python's stack, some hundred
  operations inside each other, is refused with ``plan.too_deep``, be it here or where a tree is walked.

>>> import polars as pl
>>> read(pl.col("x") + 1)
{'BinaryExpr': {'left': {'Column': 'x'}, 'op': 'Plus', 'right': {'Literal': {'Dyn': {'Int': 1}}}}}
>>> kind_of(read(pl.col("x").cum_sum()))
('Function', {'input': [{'Column': 'x'}], 'function': {'CumSum': {'reverse': False}}})

Cost: writing and parsing the JSON once for each expression that is compiled, and once a process for the dozen
expressions of `_forms`; nothing while a program runs.
"""

from __future__ import annotations

import json
from functools import cache
from typing import Any, TypeAlias

import polars as pl

from riverrun.errors import PlanError
from riverrun.plan.expression_text import written_apart
from riverrun.rows.values import show

__all__ = ["Node", "kind_of", "read", "selects", "too_deep"]

Node: TypeAlias = str | dict[str, Any]

TESTED = "2.0.0 to 2.1.0"
"""The versions of Polars that these trees were tested with; `pyproject.toml` asks for them."""


def read(expression: pl.Expr) -> Node:
    """The tree of an expression."""
    _check_form()
    written, _ = written_apart(expression, "json")
    try:
        tree: Node = json.loads(written)
    except RecursionError:
        raise too_deep(expression) from None
    return tree


def too_deep(expression: pl.Expr) -> PlanError:
    """The refusal of an expression that is nested more deeply than Python can follow (*depth*)."""
    columns = ", ".join(show(name) for name in sorted(set(expression.meta.root_names()))[:5])
    return PlanError(
        "plan.too_deep",
        f"cannot use an expression of {columns or 'no columns'} that is nested so deeply: some hundred operations "
        "stand inside each other",
        hint="is_in([...]) says in one step that a value is one of many, replace_strict({...}) gives a value for each; "
        "pl.any_horizontal(...), pl.all_horizontal(...) and pl.sum_horizontal(...) take any number of expressions side "
        "by side",
    )


def kind_of(node: Node) -> tuple[str, Any]:
    """The kind of a node, or of a function, and its parts; None for a kind without parts."""
    if isinstance(node, str):
        return node, None
    [(kind, parts)] = node.items()
    return kind, parts


def selects(tree: Any) -> bool:
    """Whether some part selects columns by pattern, type or place, so that its meaning depends on the columns there
    are.

    >>> selects(read(pl.sum_horizontal(pl.col(pl.Int64)).max())), selects(read(pl.col("x").max()))
    (True, False)
    """
    if isinstance(tree, dict):
        return "Selector" in tree or any(map(selects, tree.values()))
    return isinstance(tree, list) and any(map(selects, tree))


@cache
def _check_form() -> None:
    """Refuse a Polars that writes other trees than those that this package reads (the expected-form law)."""
    for expression, form in _forms():
        try:
            written = json.loads(written_apart(expression, "json")[0])
        except (pl.exceptions.PolarsError, TypeError, ValueError) as error:
            written = f"{type(error).__name__}: {error}"
        if isinstance(written, dict) and "AnonymousFunction" in written:
            written["AnonymousFunction"].pop("function", None)  # bytes of the version of Python
        if written != form:
            raise PlanError(
                "plan.polars_form",
                f"cannot read expressions: Polars {pl.__version__} writes {expression} as {json.dumps(written)}, and "
                f"Riverrun expects {json.dumps(form)}, as Polars {TESTED} write it; an expression that is misread "
                "would give a wrong result",
                hint=f"install a version of Polars that Riverrun was tested with, {TESTED}, or a newer Riverrun",
                version=pl.__version__,
                tested=TESTED,
            )


def _forms() -> list[tuple[pl.Expr, Node]]:
    """Expressions and their trees: of each kind of node that is looked into, by `rowwise` or by `direct`, one."""
    x = pl.col("x")
    of_x: Node = {"Column": "x"}
    one: Node = {"Literal": {"Dyn": {"Int": 1}}}
    flags = "OPTIONAL_RE_ENTRANT | ROW_SEPARABLE | LENGTH_PRESERVING"

    def call(function: Node, *inputs: Node) -> Node:
        return {"Function": {"input": [of_x, *inputs], "function": function}}

    def binary(left: Node, op: str, right: Node) -> Node:
        return {"BinaryExpr": {"left": left, "op": op, "right": right}}

    return [
        (pl.len(), "Len"),
        ((x / 1).alias("y"), {"Alias": [binary(of_x, "TrueDivide", one), "y"]}),
        (
            (x >= pl.lit(1, pl.Int64)) & (x != "a"),
            binary(
                binary(of_x, "GtEq", {"Literal": {"Scalar": {"Int64": 1}}}),
                "And",
                binary(of_x, "NotEq", {"Literal": {"Scalar": {"String": "a"}}}),
            ),
        ),
        (
            pl.when(x.is_null()).then(1.5).otherwise(x.fill_null(1)),
            {
                "Ternary": {
                    "predicate": call({"Boolean": "IsNull"}),
                    "truthy": {"Literal": {"Dyn": {"Float": 1.5}}},
                    "falsy": call("FillNull", one),
                }
            },
        ),
        (
            x.cast(pl.Float64),
            {"Cast": {"expr": of_x, "dtype": {"Literal": "Float64"}, "options": "Strict"}},
        ),
        (x.cum_sum(), call({"CumSum": {"reverse": False}})),
        (x.shift(1), call("Shift", one)),
        (x.sum(), {"Agg": {"Sum": of_x}}),
        (x.max(), {"Agg": {"Max": {"input": of_x, "propagate_nans": False}}}),
        (
            x.str.to_date("%Y"),
            call(
                {
                    "StringExpr": {
                        "Strptime": [
                            {"Literal": "Date"},
                            {"format": "%Y", "strict": True, "exact": True, "cache": True},
                        ]
                    }
                },
                {"Literal": {"Scalar": {"String": "raise"}}},
            ),
        ),
        (
            x.list.eval(pl.element() + 1),
            {
                "Eval": {
                    "expr": of_x,
                    "evaluation": binary("Element", "Plus", one),
                    "variant": "List",
                }
            },
        ),
        (
            pl.sum_horizontal(pl.col(pl.Int64)),
            {
                "Function": {
                    "input": [{"Selector": {"ByDType": {"AnyOf": ["Int64"]}}}],
                    "function": {"SumHorizontal": {"ignore_nulls": True}},
                }
            },
        ),
        (
            x.map_batches(len, pl.Int64, is_elementwise=True),
            {
                "AnonymousFunction": {
                    "input": [of_x],
                    "options": {"check_lengths": True, "flags": flags},
                }
            },
        ),
    ]
