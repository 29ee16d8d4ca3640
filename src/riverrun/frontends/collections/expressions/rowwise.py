"""Which expressions are row-wise: only those made of functions that this module knows to be row-wise.

`compiled` has each expression that computes anything checked here, as a tree of nodes (`tree`), when the program is
built. Laws:

- **One row alone.** The result for a row depends on that row alone: not on other rows, their order or their number, nor
  on chance or a clock. So results do not show how rows were cut into batches (the *split* law of `testing.laws`), and
  deleting a row takes back exactly what inserting the row gave.
- **Known nodes only.** A node that the tables of this module do not name is refused. New functions of Polars are added
  to the tables by hand.
- **Inside a list column.** In ``list.eval``, ``list.agg`` and ``list.filter``, aggregates, sorts and the like of the
  items are allowed, since all items of one list belong to one row. Functions of chance are refused there too.
- **Steady digits.** For a few divisions and powers Polars gives another last digit when the same rows are cut into
  batches in another way. These are refused: inside lists by `check`, elsewhere by `check_steady`, which `compiled`
  calls for the expressions that it leaves to Polars.

Two things are allowed on trust. A Python function counts as row-wise when the user says so, by ``map_elements``, or by
``map_batches`` with ``is_elementwise=True``; nothing checks the function. And ``hash`` is allowed, though Polars
promises the same hashes within one version of Polars only: after an upgrade, a state from a checkpoint may hold hashes
that Polars does not give any more.

In the example `check` returns the columns that an expression looks at, and refuses another expression.

>>> import polars as pl, pyarrow as pa
>>> schema = pa.schema({"a": pa.int64(), "b": pa.int64()})
>>> sorted(check(read(pl.col("a") + pl.col("b").abs()), schema, "select", "c").columns)
['a', 'b']
>>> check(read(pl.col("a").cum_sum()), schema, "select from 'sales'", "c")
Traceback (most recent call last):
    ...
riverrun.errors.PlanError: cannot select from 'sales': column 'c' uses cum_sum(), which is not row-wise; ...
Hint: rows of a collection have no order; ...

Cost: a walk over the tree when the program is built, and nothing for each row.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NoReturn

import pyarrow as pa

from riverrun.errors import PlanError
from riverrun.frontends.collections.expressions.tree import Node, kind_of, read
from riverrun.rows.values import show

__all__ = ["RowwiseFacts", "check", "check_steady", "read"]


def _names(text: str, group: str = "") -> Iterator[str]:
    return (f"{group}.{name}" if group else name for name in text.split())


_ROW_WISE = frozenset(
    [
        *_names(
            "Abs Negate Sign Floor Ceil Round RoundSF Truncate Clip Exp Expm1 Log Log1p Erf Erfc Atan2 Hash "
            "FillNull Coalesce MinHorizontal MaxHorizontal SumHorizontal MeanHorizontal AsStruct RepeatBy "
            "Replace ReplaceStrict Reinterpret ToPhysical Cut Bin FillNullWithStrategy"
        ),
        *_names("Generic Sqrt Cbrt", "Pow"),
        *_names(
            "Cos Cot Sin Tan ArcCos ArcSin ArcTan Cosh Sinh Tanh ArcCosh ArcSinh ArcTanh Degrees Radians",
            "Trigonometry",
        ),
        *_names(
            "IsNull IsNotNull IsNan IsNotNan IsFinite IsInfinite Not IsIn IsBetween IsClose AllHorizontal "
            "AnyHorizontal",
            "Boolean",
        ),
        *_names(
            "CountOnes CountZeros LeadingOnes LeadingZeros TrailingOnes TrailingZeros", "Bitwise"
        ),
        *_names("AddBusinessDay IsBusinessDay BusinessDayCount", "Business"),
        *_names("IntRanges DateRanges DatetimeRanges TimeRanges LinearSpaces", "Range"),
        *_names("Physical LenBytes LenChars StartsWith EndsWith Slice", "Categorical"),
        *_names(
            "Contains HexDecode HexEncode Base64Decode Base64Encode StartsWith EndsWith Get Head Tail Slice "
            "Size Reinterpret",
            "BinaryExpr",
        ),
        *_names(
            "FieldByName SelectFields RenameFields PrefixFields SuffixFields Drop JsonEncode",
            "StructExpr",
        ),
        *_names(
            "Contains ContainsAny CountMatches HexDecode HexEncode Base64Decode Base64Encode StartsWith "
            "EndsWith EscapeRegex Extract ExtractAll ExtractGroups ExtractMany Find FindMany Head Tail Slice "
            "JsonDecode JsonPathMatch LenBytes LenChars Normalize PadStart PadEnd Replace ReplaceMany Reverse "
            "Split SplitExact SplitN SplitRegex StripChars StripCharsStart StripCharsEnd StripPrefix "
            "StripSuffix Strptime ToDecimal ToInteger Lowercase Uppercase Titlecase ZFill ConcatHorizontal "
            "Format",
            "StringExpr",
        ),
        *_names(
            "BaseUtcOffset DSTOffset CastTimeUnit Century Combine ConvertTimeZone ReplaceTimeZone Date Day "
            "DaysInMonth Hour IsLeapYear IsoYear Microsecond Millennium Millisecond Minute Month MonthEnd "
            "MonthStart Nanosecond OffsetBy OrdinalDay Quarter Replace Round Second Time TimeStamp ToString "
            "TotalDays TotalHours TotalMinutes TotalSeconds TotalMilliseconds TotalMicroseconds "
            "TotalNanoseconds Truncate Week WeekDay Year DatetimeFunction Duration",
            "TemporalExpr",
        ),
        *_names(
            "ArgMin ArgMax Concat Contains CountMatches Diff DropNulls Gather GatherEvery Get Join Length Min "
            "Max Mean Median SetOperation Shift Slice Sort Std Sum ToArray ToStruct Var",
            "ListExpr",
        ),
        *_names(
            "ArgMin ArgMax Concat Contains CountMatches Dot Get Join Length Min Max Mean Median Shift Slice "
            "Sort Std Sum ToList ToStruct Var",
            "ArrayExpr",
        ),
    ]
)

_IN_A_LIST = frozenset(
    [
        *_names(
            "Reverse Unique Shift Diff PctChange CumSum CumProd CumMin CumMax CumCount Rank ArgMin ArgMax "
            "ArgSort ArgUnique DropNulls DropNans NullCount Product Quantile Skew Kurtosis"
        ),
        *_names("Any All HasNulls IsUnique IsDuplicated IsFirstDistinct IsLastDistinct", "Boolean"),
    ]
)

_GROUPS = {
    "Boolean": "",
    "Pow": "",
    "Trigonometry": "",
    "Bitwise": "bitwise_",
    "Business": "dt.",
    "Range": "",
    "StringExpr": "str.",
    "TemporalExpr": "dt.",
    "ListExpr": "list.",
    "ArrayExpr": "arr.",
    "StructExpr": "struct.",
    "BinaryExpr": "bin.",
    "Categorical": "cat.",
}

# Inputs that have to be literals: Polars would read a column there as a whole, as the set of values to look for.
_LITERAL_INPUTS = {
    "Replace": (1, 2),
    "ReplaceStrict": (1, 2),
    "StringExpr.ContainsAny": (1,),
    "StringExpr.ExtractMany": (1,),
    "StringExpr.FindMany": (1,),
    "StringExpr.ReplaceMany": (1, 2),
    "Business.AddBusinessDay": (2,),
    "Business.IsBusinessDay": (1,),
    "Business.BusinessDayCount": (2,),
}

_CALLED = {
    "ArgWhere": "arg_true",
    "QCut": "qcut",
    "RLE": "rle",
    "RLEID": "rle_id",
    "SetSortedFlag": "set_sorted",
    "Len": "len",
    "StringExpr.ConcatVertical": "str.join",
    "FoldHorizontal": "fold",
    "ReduceHorizontal": "reduce",
    "CumFoldHorizontal": "cum_fold",
    "CumReduceHorizontal": "cum_reduce",
}

_AGGREGATES = frozenset(
    _names(
        "len sum mean median min max count n_unique std var first last item implode quantile product any all "
        "null_count approx_n_unique approx_quantile mode entropy skew kurtosis has_nulls bitwise_and bitwise_or "
        "bitwise_xor corr correlation arg_min arg_max min_by max_by is_empty is_sorted hist str.join top_k top_k_by "
        "value_counts unique_counts lower_bound upper_bound first_non_null last_non_null"
    )
)
_SHORTER = frozenset(_names("filter drop_nulls drop_nans slice gather gather_every head tail get"))
_ORDERED = frozenset(
    _names(
        "over shift diff pct_change rank sort sort_by arg_sort arg_true arg_unique reverse int_range peak_max "
        "peak_min"
    )
)
_DISTINCT = frozenset(_names("unique is_unique is_duplicated is_first_distinct is_last_distinct"))


@dataclass
class RowwiseFacts:
    """The columns that a checked expression looks at."""

    columns: set[str] = field(default_factory=set)
    selects: bool = False
    """Whether the expression selects columns by pattern, type or place, and so may look at any column."""


def check(tree: Node, schema: pa.Schema, what: str, column: str | None) -> RowwiseFacts:
    """The columns that a row-wise expression looks at. Raises `PlanError` for an expression that is not row-wise."""
    walk = _RowwiseCheck(schema, what, column)
    walk.node(tree)
    return walk.facts


def check_steady(tree: Node, schema: pa.Schema, what: str, column: str | None) -> None:
    """Refuse expressions whose last digit depends on how rows are cut: certain divisions and powers of a choice.

    Where a choice (``when``, ``coalesce``) falls on a literal for every row of a batch, Polars makes a scalar of the
    choice. Polars divides scalars by a literal, and takes powers of scalars, in another way than with columns.
    """
    walk = _RowwiseCheck(schema, what, column)
    for kind, parts in _nodes(tree):
        # The functions of bytes have this name too.
        if kind == "BinaryExpr" and "op" in parts and parts["op"] == "TrueDivide":
            if not _varies(parts["right"]) and _chooses(parts["left"]):
                walk.refuse(
                    "a division of a choice by a literal",
                    "multiply with the inverse: pl.when(...).then(...).otherwise(...) * (1 / 7)",
                )
        elif kind == "Function" and parts["function"] == {"Pow": "Generic"}:
            base, exponent = parts["input"]
            if _varies(exponent) and (_chooses(base) or _chooses(exponent)):
                walk.refuse(
                    "a power of a choice",
                    "choose among powers: pl.when(...).then(x**2).otherwise(x**3)",
                )


def _nodes(tree: Any) -> Iterator[tuple[str, Any]]:
    """Every part of a tree that looks like a node."""
    if isinstance(tree, list):
        for each in tree:
            yield from _nodes(each)
    elif isinstance(tree, dict):
        if len(tree) == 1:
            yield kind_of(tree)
        for each in tree.values():
            yield from _nodes(each)


def _chooses(tree: Node) -> bool:
    """Whether a tree has a choice that may fall on a literal for all rows of one batch, and not in another batch."""
    for kind, parts in _nodes(tree):
        if kind == "Ternary" and not (_varies(parts["truthy"]) and _varies(parts["falsy"])):
            return True
        if (
            kind == "Function"
            and parts["function"] == "Coalesce"
            and not all(map(_varies, parts["input"]))
        ):
            return True
    return False


class _RowwiseCheck:
    def __init__(self, schema: pa.Schema, what: str, column: str | None) -> None:
        self.schema = schema
        self.what = what
        self.column = column
        self.facts = RowwiseFacts()
        self.in_list = 0
        self.in_struct = 0

    def node(self, node: Node) -> None:
        kind, parts = kind_of(node)
        visit = getattr(self, f"_{kind}", None)
        if visit is not None:
            visit(parts)
        elif self.in_list and kind in ("Sort", "SortBy", "Slice", "Filter", "Gather", "Explode"):
            for key in ("expr", "input", "by", "offset", "length", "idx"):
                self._all(parts.get(key, []))
        elif not (self.in_list and kind == "Len"):
            self.refuse(_called(kind))

    def _all(self, nodes: Node | list[Node]) -> None:
        for node in nodes if isinstance(nodes, list) else [nodes]:
            if not (self.in_list and _is_series(node)):
                self.node(node)

    def _Column(self, name: str) -> None:  # noqa: N802
        if not (self.in_list and name == ""):
            self.facts.columns.add(name)

    def _Selector(self, _: Any) -> None:  # noqa: N802
        self.facts.selects = True

    def _Literal(self, value: Node) -> None:  # noqa: N802
        if kind_of(value)[0] not in ("Dyn", "Scalar"):
            self.refuse(
                "lit(a Series)",
                "write the values as a list, or join with a collection that holds them",
            )

    def _Alias(self, parts: list[Any]) -> None:  # noqa: N802
        self.node(parts[0])

    def _KeepName(self, node: Node) -> None:  # noqa: N802
        self.node(node)

    def _RenameAlias(self, parts: dict[str, Any]) -> None:  # noqa: N802
        self.node(parts["expr"])

    def _BinaryExpr(self, parts: dict[str, Any]) -> None:  # noqa: N802
        if self.in_list and parts["op"] == "TrueDivide" and not _varies(parts["right"]):
            # Polars divides otherwise, in the last digit, when all the lists of a batch hold one item.
            self.refuse(
                "a division inside a list", "multiply with the inverse: pl.element() * (1 / 7)"
            )
        self.node(parts["left"])
        self.node(parts["right"])

    def _Ternary(self, parts: dict[str, Any]) -> None:  # noqa: N802
        for key in ("predicate", "truthy", "falsy"):
            self.node(parts[key])

    def _Cast(self, parts: dict[str, Any]) -> None:  # noqa: N802
        self.node(parts["expr"])
        if kind_of(parts["dtype"])[0] != "Literal":
            self.refuse("cast(the type of another expression)", "name the type: .cast(pl.Int64)")
        self._type(parts["dtype"])

    def _type(self, dtype: Any) -> None:
        if isinstance(dtype, list):
            for each in dtype:
                self._type(each)
        elif isinstance(dtype, dict):
            for key, each in dtype.items():
                if key == "Categorical":
                    self.refuse(
                        "cast(pl.Categorical)",
                        "codes of categories depend on which was seen first: use pl.Enum([...]) or pl.String",
                    )
                self._type(each)

    def _Element(self, _: None) -> None:  # noqa: N802
        if not self.in_list:
            self.refuse("element", "pl.element() stands for the items of a list, in list.eval(...)")

    def _Field(self, _: Any) -> None:  # noqa: N802
        if not self.in_struct:
            self.refuse("field", "pl.field() stands for a field, in struct.with_fields(...)")

    def _Eval(self, parts: dict[str, Any]) -> None:  # noqa: N802
        variant = kind_of(parts["variant"])[0]
        if variant not in ("List", "ListAgg", "Array", "ArrayAgg"):
            self.refuse(f"{variant.lower()}_eval")
        self.node(parts["expr"])
        self.in_list += 1
        self.node(parts["evaluation"])
        self.in_list -= 1

    def _StructEval(self, parts: dict[str, Any]) -> None:  # noqa: N802
        self.node(parts["expr"])
        self.in_struct += 1
        self._all(parts["evaluation"])
        self.in_struct -= 1

    def _Agg(self, parts: dict[str, Any]) -> None:  # noqa: N802
        kind, inner = kind_of(parts)
        if not self.in_list:
            self.refuse(_called(kind))
        if isinstance(inner, list):
            inner = inner[0]
        elif isinstance(inner, dict) and "input" in inner:
            inner = inner["input"]
        self.node(inner)

    def _AnonymousFunction(self, parts: dict[str, Any]) -> None:  # noqa: N802
        flags = set(parts["options"]["flags"].split(" | "))
        if not {"ROW_SEPARABLE", "LENGTH_PRESERVING"} <= flags:
            self.refuse(
                "map_batches",
                "map_elements calls a function for each row; with is_elementwise=True you promise the same of "
                "map_batches; .map_batches(...) of the collection takes functions of whole batches",
            )
        self._all(parts["input"])

    def _Function(self, parts: dict[str, Any]) -> None:  # noqa: N802
        kind, options = kind_of(parts["function"])
        name = kind
        if kind in _GROUPS:
            inner, options = kind_of(options)
            name = f"{kind}.{inner}"
        if name not in _ROW_WISE and not (self.in_list and name in _IN_A_LIST):
            self.refuse(_called(name, options))
        self._options(name, options)
        self._inputs(name, parts["input"])

    def _options(self, name: str, options: Any) -> None:
        """Refuse a function on the list with options that make it not row-wise, or not steady."""
        if name == "StringExpr.Strptime" and options[1]["format"] is None:
            self.refuse(
                "str.strptime(format=None)",
                'the first row decides the format: give it, for instance "%Y-%m-%d"',
            )
        if name == "StringExpr.JsonDecode":
            self._type(options)
        if name == "FillNullWithStrategy" and kind_of(options)[0] not in ("Zero", "One"):
            strategy = kind_of(options)[0].lower()
            self.refuse(f'fill_null(strategy="{strategy}")', _hint("shift"))
        if name == "Bin":
            method, rest = kind_of(options["method"])
            if method != "Intervals" or kind_of(rest["spec"])[0] != "Breaks":
                self.refuse(
                    f"bin_{method.lower()}", "give the breaks: bin_intervals([...], labels=[...])"
                )
        if name == "Unique" and options is not True:
            self.refuse("unique", "its order is left open: unique(maintain_order=True)")
        if name == "Rank" and options["options"]["method"] == "Random":
            self.refuse('rank(method="random")', _hint("sample"))

    def _inputs(self, name: str, inputs: list[Node]) -> None:
        if self.in_list and name == "Pow.Generic" and _varies(inputs[1]):
            self.refuse("a power inside a list", "an exponent inside a list is a literal")
        literal = _LITERAL_INPUTS.get(name, ())
        for at, node in enumerate(inputs):
            if at in literal:
                if kind_of(node)[0] != "Literal":
                    self.refuse(
                        f"{_called(name)} with values from an expression",
                        "write them as a list, or join with a collection that holds them",
                    )
            elif name == "Boolean.IsIn" and at == 1:
                self._is_in(node)
            else:
                self.node(node)

    def _is_in(self, node: Node) -> None:
        kind, parts = kind_of(node)
        if kind == "Literal":
            return
        at = self.schema.get_field_index(parts) if kind == "Column" else -1
        if at < 0 or not pa.types.is_nested(self.schema.field(at).type):
            self.refuse(
                "is_in(an expression)",
                "is_in takes a list of values, or a column of lists; "
                "to keep rows whose value is in another collection, join with it",
            )
        self.node(node)

    def refuse(self, function: str, hint: str | None = None) -> NoReturn:
        uses = "the condition" if self.column is None else f"column {show(self.column)}"
        shown = function if "(" in function or " " in function else f"{function}()"
        raise PlanError(
            "plan.not_row_wise",
            f"cannot {self.what}: {uses} uses {shown}, which is not row-wise; the result for a row may "
            "depend on that row alone, or how rows are cut into batches would show",
            hint=hint or _hint(function),
            function=function,
            column=self.column,
        )


def _varies(node: Node) -> bool:
    """Whether a node has anything in it that is not a literal."""
    return any(kind in json.dumps(node) for kind in ('"Element"', '"Column"', '"Field"'))


def _is_series(node: Node) -> bool:
    kind, parts = kind_of(node)
    return kind == "Literal" and kind_of(parts)[0] == "Series"


def _called(name: str, options: Any = None) -> str:
    """The name that users know for a function, from the name in Polars' tree."""
    if name in _CALLED:
        return _CALLED[name]
    if name == "Random":
        return _called(kind_of(options["method"])[0])
    if name in ("RollingExpr", "RollingExprBy"):
        inner = options.get("function", options.get("function_by", ""))
        return f"rolling_{_called(kind_of(inner)[0])}"
    group, _, inner = name.rpartition(".")
    snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", inner).lower()
    return _GROUPS.get(group, "") + snake


def _hint(function: str) -> str:
    if function in _AGGREGATES:
        return "aggregate with group_by(...).agg(...), then join the result back where it is needed"
    if function.endswith("explode"):
        return "flat_map makes several rows of one"
    if function in _SHORTER:
        return ".filter(...) of the collection leaves out rows; pl.when(...) leaves out values"
    if function in _DISTINCT:
        return ".distinct() of the collection, or group_by(...).agg(...) to count what is equal"
    if function in ("sample", "shuffle", "list.sample"):
        return (
            "make chance of the row: pl.col(...).hash(seed) % 100 < 5 keeps about one row in twenty"
        )
    if function in ("fold", "reduce", "cum_fold", "cum_reduce"):
        return (
            "write it out, for instance with functools.reduce, or use sum_horizontal and its kind"
        )
    if function in _ORDERED or function.startswith(
        ("cum", "rolling", "ewm_", "interpolate", "rle")
    ):
        return (
            "rows of a collection have no order; group_by(...).agg(...) sees the rows of a group together, "
            "and there an order can be named"
        )
    return ".map_batches(...) of the collection runs any function over whole batches, where you answer for it"
