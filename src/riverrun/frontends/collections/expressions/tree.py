"""A Polars expression as a tree of plain dicts, lists and strings.

`rowwise`, `direct` and `compiled` look at expressions by way of this tree, which is the JSON that Polars writes of an
expression. A node is its kind (``"Len"``) or a dict from its kind to its parts (``{"Column": "x"}``). The kinds are
those of the installed version of Polars; `rowwise` refuses kinds that it does not know. Law:

- **Functions left out.** Every expression has a tree, also with Python functions in it that cannot be pickled: Polars
  writes the expression apart from its functions (`plan.expression_text`).

>>> import polars as pl
>>> read(pl.col("x") + 1)
{'BinaryExpr': {'left': {'Column': 'x'}, 'op': 'Plus', 'right': {'Literal': {'Dyn': {'Int': 1}}}}}
>>> kind_of(read(pl.col("x").cum_sum()))
('Function', {'input': [{'Column': 'x'}], 'function': {'CumSum': {'reverse': False}}})

Cost: writing and parsing the JSON once for each expression that is compiled; nothing while a program runs.
"""

from __future__ import annotations

import json
from typing import Any, TypeAlias

import polars as pl

from riverrun.plan.expression_text import written_apart

__all__ = ["Node", "kind_of", "read", "selects"]

Node: TypeAlias = str | dict[str, Any]


def read(expression: pl.Expr) -> Node:
    """The tree of an expression."""
    written, _ = written_apart(expression, "json")
    tree: Node = json.loads(written)
    return tree


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
