"""A Polars expression as a tree of plain dicts, lists and strings.

`rowwise`, `direct` and `compiled` look at expressions by way of this tree, which is the JSON that Polars writes of an
expression. A node is its kind (``"Len"``) or a dict from its kind to its parts (``{"Column": "x"}``). The kinds are
those of the installed version of Polars; `rowwise` refuses kinds that it does not know. Law:

- **Functions left out.** Every expression has a tree, whatever Python functions are in it. Polars pickles the functions
  when it writes an expression, which fails without cloudpickle, or for a function that cannot be pickled. The tree does
  not need the functions. So where writing fails, Polars writes the expression once more, and finds in the place of
  cloudpickle a module that pickles nothing. (A lock keeps other trees from being written meanwhile.)
- **Depth.** A tree is as deep as its expression. An expression that is too deep for Python's stack, some hundred
  operations inside each other, is refused with ``plan.too_deep``, be it here or where a tree is walked.

>>> import polars as pl
>>> read(pl.col("x") + 1)
{'BinaryExpr': {'left': {'Column': 'x'}, 'op': 'Plus', 'right': {'Literal': {'Dyn': {'Int': 1}}}}}
>>> kind_of(read(pl.col("x").cum_sum()))
('Function', {'input': [{'Column': 'x'}], 'function': {'CumSum': {'reverse': False}}})

Cost: writing and parsing the JSON once for each expression that is compiled; nothing while a program runs.
"""

from __future__ import annotations

import json
import sys
from threading import Lock
from types import ModuleType
from typing import Any, TypeAlias

import polars as pl

from riverrun.errors import PlanError
from riverrun.rows.values import show

__all__ = ["Node", "kind_of", "read", "selects", "too_deep"]

Node: TypeAlias = str | dict[str, Any]

_swapping = Lock()


def read(expression: pl.Expr) -> Node:
    """The tree of an expression."""
    try:
        written = expression.meta.serialize(format="json")
    except pl.exceptions.ComputeError:
        written = _write_without_functions(expression)
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


def _write_without_functions(expression: pl.Expr) -> str:
    stand_in = ModuleType("cloudpickle")
    stand_in.dumps = lambda function, *_, **__: b""  # type: ignore[attr-defined]
    with _swapping:
        real = sys.modules.get("cloudpickle")
        sys.modules["cloudpickle"] = stand_in
        try:
            return expression.meta.serialize(format="json")
        finally:
            if real is None:
                del sys.modules["cloudpickle"]
            else:
                sys.modules["cloudpickle"] = real
