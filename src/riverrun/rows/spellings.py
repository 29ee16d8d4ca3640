"""Types and columns as people write them in text: Spark's DDL, the types that Arrow prints, and plain names of types.

`parse_columns` reads columns, ``"src long, dst long not null"``, and `parse_type` one type, ``"timestamp[us, UTC]"``.
`rows.schemas` calls both for declarations that are text. Both read one language, in which a name of a type means what
the table of types (`rows.types`) says; the table has the names of Arrow, NumPy, Polars and Spark::

    columns   column, column, ...                       or struct<column, ...>, as Spark prints a schema
    column    name type                                 or name: type; behind it, if wanted and in any order,
                                                        NOT NULL and COMMENT 'text'
    name      letters, digits and _                     or anything in backquotes: `my column`
    type      a name of the table, in any case          int64, bigint, str
              a name with parameters                    decimal(10, 2), timestamp[us, UTC], varchar(20)
              a type made of other types                array<type>, list<item: type>, struct<column, ...>
              a type made of values                     enum<'low', 'high'>, dictionary<values=string, indices=int8>
              Spark's spans and collations              INTERVAL DAY TO SECOND, STRING COLLATE name

Comments of SQL, ``-- text`` to the end of a line and ``/* text */``, stand wherever a blank does. Laws:

- **Read back.** A column type as Arrow or Spark prints it (``str(type)``, ``simpleString()``, DDL) is read as that
  type. There is one exception: Arrow prints the names of a struct's fields bare, and a name with characters other than
  letters, digits and _ is read only in backquotes. What Polars prints is read only where it is a plain name: ``Int64``
  is, ``List(Int64)`` is not.
- **Named refusals.** A refusal names the column and the text, and what is wrong with the text: a name that is no type,
  with the type that was perhaps meant; a character, with what is expected there; or a rule that the text breaks.

>>> parse_columns(
...     "src long, dst long not null, tags array<string> COMMENT 'free'", "declare input 'edges'"
... )
src: int64
dst: int64 not null
tags: list<item: string>
  child 0, item: string
>>> parse_columns("src long, dst lnog", "declare input 'edges'")
Traceback (most recent call last):
    ...
riverrun.errors.SchemaError: cannot declare input 'edges': column 'dst' is declared as 'lnog', which is no type of ...
Hint: did you mean 'long'?

Cost: some microseconds for each column.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from typing import NoReturn, TypeVar

import pyarrow as pa

from riverrun.errors import SchemaError
from riverrun.rows.types import BY_NAME, UnknownParameters, named_type
from riverrun.rows.values import show
from riverrun.state.types import EnumType

_BLANK = re.compile(r"(?:\s+|--[^\n]*|/\*.*?\*/)*", re.DOTALL)
_WORD = re.compile(r"\w+")
_QUOTED_NAME = re.compile(r"`((?:[^`]|``)*)`")
_STRING = re.compile(r"'((?:[^'\\]|\\.|'')*)'|\"((?:[^\"\\]|\\.|\"\")*)\"", re.DOTALL)
_ARGUMENTS = re.compile(r"\(([^()<>]*)\)|\[([^\[\]<>]*)\]")
_FIELD = re.compile(r"(?:\w+|`(?:[^`]|``)*`)\s*:")
_SCHEMA = re.compile(r"struct\s*<", re.IGNORECASE)
_INTERVAL = re.compile(r"(day|hour|minute|second)(\s+to\s+(hour|minute|second))?\b", re.IGNORECASE)
_ONE_TYPE = re.compile(r"\s*(\w+)\s*(?:$|[(\[<]|not\s+null\s*$)", re.IGNORECASE)
_ALMOST = 0.75
_BACKENDS = ("pyarrow", "python")  # pandas writes these in brackets behind the name of a type
_DEEPEST = 100
_T = TypeVar("_T")

_A_NAME, _A_TYPE = "the name of a column", "a type"
_WRITE = 'write a name and a type for each column: "src long, dst long"'
_WRITE_TYPE = 'write the name of one type: "int64", "timestamp[us, UTC]", "array<long>"'
_QUOTE = (
    "a name with other characters than letters, digits and _ stands in backquotes: `my column` long"
)
_KNOWN = (
    "known are, among others: long, int64, double, string, boolean, date, timestamp, timestamp[us], decimal(10, 2), "
    "binary, array<long>, struct<a: long>"
)
_OF_WHAT = {
    "array": "array<long>",
    "list": "list<int64>",
    "large_list": "large_list<int64>",
    "fixed_size_list": "fixed_size_list<float>[3]",
    "struct": "struct<a: long>",
    "enum": "enum<'low', 'high'>",
    "dictionary": "dictionary<values=string, indices=int32>",
}
"""An example of each type that is written with other types, or with values, in brackets."""
_HINTS = {
    "map": "turn it into a list of structs: array<struct<key: string, value: long>>",
    "object": 'pandas says object of columns of anything: say what the values are, "string" for text',
    "category": "a categorical is kept as its text: string; an enum says its values: enum<'low', 'high'>",
    "variant": "keep it as text, string, or as the columns that are wanted",
    **dict.fromkeys(("text", "clob", "nvarchar", "varchar2", "character"), "text is string"),
    **dict.fromkeys(
        ("json", "jsonb"), "keep it as text, string, or as the columns that are wanted"
    ),
    "uuid": "keep it as text, string, or as fixed_size_binary[16]",
    **dict.fromkeys(("blob", "bytea", "varbinary"), "bytes are binary"),
    "timestamptz": "an instant is timestamp, or timestamp[us, UTC]",
    "number": "long, double, or decimal(10, 2), which keeps the digits",
    "interval": "a span of days to seconds is INTERVAL DAY TO SECOND, or duration[us]; months have no one length",
}
"""Advice for names of types that no column can have."""
_NO_PART = {
    "precision": "double has a name of one word: double",
    "varying": "text is string: character varying is string too",
    "with": "timestamp is an instant: leave out WITH TIME ZONE; timestamp[us, Europe/Rome] has another zone than UTC",
    "without": "a timestamp without a time zone is timestamp_ntz, or timestamp[us]",
    "default": "columns have no defaults: leave out DEFAULT; a row gives a value for every column",
    "null": "a column may be null unless it is NOT NULL: leave out NULL",
    "nullable": "a column may be null unless it is NOT NULL: leave out NULLABLE",
    "primary": 'the key is an argument of the input: flow.input("people", "id long, name string", key="id")',
    "unsigned": "unsigned integers are uint8, uint16, uint32 and uint64",
    "generated": "columns are not computed where they are declared: compute it by with_columns(...)",
    **dict.fromkeys(
        ("unique", "references", "check", "constraint"),
        "a schema has no constraints besides NOT NULL",
    ),
}
"""Advice for words of SQL that stand behind the name of a type, where a comma or the end of the text is expected."""


def nearest_type(name: str) -> str:
    """Advice on what to write in place of an unknown name of a type."""
    if name in _HINTS:
        return _HINTS[name]
    close = get_close_matches(name, [*BY_NAME, *_OF_WHAT], n=1)
    return f"did you mean {_OF_WHAT.get(close[0], close[0])!r}?" if close else _KNOWN


def is_type_text(text: str) -> bool:
    """Whether a text is meant as a type, and not as prose: the name of a type, or nearly so, and what is in brackets.

    >>> [
    ...     is_type_text(each)
    ...     for each in ("int", "decimal(10, 2)", "lnog", "the date of birth", "title")
    ... ]
    [True, True, True, False, False]
    """
    matched = _ONE_TYPE.match(text)
    if matched is None:
        return False
    return bool(get_close_matches(matched[1].lower(), [*BY_NAME, *_OF_WHAT], n=1, cutoff=_ALMOST))


def parse_columns(text: str, attempt: str) -> pa.Schema:
    """The columns that a text declares; `attempt` is the purpose, for errors: "declare input 'edges'"."""
    return _TextReader(text, attempt).columns()


def parse_type(text: str, column: str, attempt: str) -> pa.Field:
    """The field of a column whose type is written as text, NOT NULL included."""
    return _TextReader(text, attempt, column).single(column)


class _TextReader:
    """Reads a text from left to right; `_at` is the character that comes next."""

    def __init__(self, text: str, attempt: str, column: str | None = None) -> None:
        self._text = text
        self._attempt = attempt
        self._at = 0
        self._single = column is not None
        self._path = [] if column is None else [column]
        """The column being read, then the fields inside it that lead to the one being read."""

    def columns(self) -> pa.Schema:
        self._skip()
        if not self._text[self._at :]:
            self._refuse_text("it declares no column")
        if _SCHEMA.match(self._text, self._at):
            self._word("struct")
            fields = self._inside(self._fields)
        else:
            fields = self._fields()
        self._end("a comma and another column, or nothing more")
        return pa.schema(fields)

    def single(self, column: str) -> pa.Field:
        field = self._attributes(column, self._type())
        self._end("nothing more")
        return field

    # -- columns

    def _fields(self) -> list[pa.Field]:
        fields: list[pa.Field] = []
        if self._is_next(">"):
            return fields
        while True:
            fields.append(self._field())
            if not self._take(","):
                return fields

    def _field(self) -> pa.Field:
        name = self._name()
        self._take(":")
        with self._of(name):
            return self._attributes(name, self._type())

    def _name(self) -> str:
        quoted = self._match(_QUOTED_NAME)
        if quoted is not None:
            return quoted[1].replace("``", "`")
        return self._word(_A_NAME)

    def _attributes(self, name: str, kind: pa.DataType) -> pa.Field:
        nullable = True
        while True:
            if self._keyword("not"):
                if not self._keyword("null"):
                    self._refuse_text("NULL is expected behind NOT")
                if pa.types.is_null(kind):
                    self._refuse_text("a column of nulls has nulls, and is declared NOT NULL")
                nullable = False
            elif self._keyword("comment"):
                self._string("the text of a comment, in quotes,")
            else:
                return pa.field(name, kind, nullable)

    # -- types

    def _type(self) -> pa.DataType:
        start = self._at
        if len(self._path) > _DEEPEST:
            self._refuse_text(f"its types are nested more than {_DEEPEST} deep")
        word = self._word(_A_TYPE)
        name = word.lower()
        if self._is_next("<"):
            if name == "struct":
                return pa.struct(self._inside(self._fields))
            if name in ("array", "list"):
                return pa.list_(self._inside(self._item))
            if name == "large_list":
                return pa.large_list(self._inside(self._item))
            if name == "fixed_size_list":
                return pa.list_(self._inside(self._item), self._size(word))
            if name == "enum":
                return self._enum()
            if name == "dictionary":
                return self._inside(self._dictionary)
            self._refuse_type(self._bracketed(start), name)
        if name == "interval" and self._match(_INTERVAL):
            return pa.duration("us")
        arguments = self._arguments()
        spelling = self._text[start : self._at].strip()
        if name in _OF_WHAT:
            self._refuse_type(
                spelling, name, "which does not say of what", f"for instance {_OF_WHAT[name]}"
            )
        if name == "string" and self._keyword("collate"):
            self._word("the name of a collation")
        try:
            kind = named_type(name, arguments)
        except UnknownParameters as refusal:
            self._refuse_type(spelling, name, f"but {refusal}", refusal.hint)
        if kind is None:
            self._refuse_type(spelling, name)
        return kind

    def _item(self) -> pa.Field:
        """The items of a list: a type, or a field with a name, as Arrow writes it."""
        self._skip()
        if _FIELD.match(self._text, self._at):
            return self._field()
        with self._of("item"):
            return self._attributes("item", self._type())

    def _size(self, word: str) -> int:
        arguments = self._arguments()
        if len(arguments) != 1 or not arguments[0].isdecimal():
            self._refuse_text(f"{word}<...> has a size behind it: {word}<float>[3]")
        return int(arguments[0])

    def _enum(self) -> EnumType:
        def categories() -> list[str]:
            listed = [self._string("a value of the enum, in quotes,")]
            while self._take(","):
                listed.append(self._string("a value of the enum, in quotes,"))
            return listed

        listed = self._inside(categories)
        if len(set(listed)) < len(listed):
            self._refuse_text("a value stands twice in its enum")
        return EnumType(listed)

    def _dictionary(self) -> pa.DataType:
        """A dictionary as Arrow writes it."""
        parts: dict[str, pa.DataType] = {}
        ordered = False
        while True:
            word = self._word("values=, indices= or ordered=").lower()
            if word not in ("values", "indices", "ordered") or not self._take("="):
                self._refuse_text(
                    "a dictionary is written as dictionary<values=string, indices=int32>"
                )
            if word == "ordered":
                ordered = self._word("0 or 1") == "1"
            else:
                parts[word] = self._type()
            if not self._take(","):
                break
        indices = parts.get("indices", pa.int32())
        if "values" not in parts or not pa.types.is_integer(indices):
            self._refuse_text("a dictionary says its values, and has integers for indices")
        return pa.dictionary(indices, parts["values"], ordered)

    def _arguments(self) -> list[str]:
        """The parameters in brackets behind a name, without the back end that pandas writes there."""
        listed: list[str] = []
        while True:
            brackets = self._match(_ARGUMENTS)
            if brackets is None:
                return listed
            inside = brackets[1] if brackets[1] is not None else brackets[2]
            each = [part.strip() for part in inside.split(",")] if inside.strip() else [""]
            if each not in [[backend] for backend in _BACKENDS]:
                listed += each

    # -- characters

    def _skip(self) -> None:
        blank = _BLANK.match(self._text, self._at)
        assert blank is not None  # the pattern matches the empty text
        self._at = blank.end()

    def _match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        self._skip()
        matched = pattern.match(self._text, self._at)
        if matched is not None:
            self._at = matched.end()
        return matched

    def _is_next(self, sign: str) -> bool:
        self._skip()
        return self._text.startswith(sign, self._at)

    def _take(self, sign: str) -> bool:
        taken = self._is_next(sign)
        self._at += len(sign) if taken else 0
        return taken

    def _keyword(self, word: str) -> bool:
        self._skip()
        next_word = _WORD.match(self._text, self._at)
        if next_word is None or next_word[0].lower() != word:
            return False
        self._at = next_word.end()
        return True

    def _word(self, wanted: str) -> str:
        next_word = self._match(_WORD)
        if next_word is None:
            self._refuse_next(wanted)
        return next_word[0]

    def _string(self, wanted: str) -> str:
        quoted = self._match(_STRING)
        if quoted is None:
            self._refuse_next(wanted)
        quote = quoted[0][0]
        inside = quoted[1] if quoted[1] is not None else quoted[2]
        return re.sub(r"\\(.)", r"\1", inside.replace(quote * 2, quote), flags=re.DOTALL)

    def _inside(self, read: Callable[[], _T]) -> _T:
        """Read what stands between < and >, by `read`."""
        if not self._take("<"):
            self._refuse_next("<")
        result = read()
        if not self._take(">"):
            self._refuse_next("a comma or >")
        return result

    def _end(self, wanted: str) -> None:
        self._skip()
        if self._at < len(self._text):
            self._refuse_next(wanted)

    @contextmanager
    def _of(self, name: str) -> Iterator[None]:
        self._path.append(name)
        yield
        self._path.pop()

    # -- refusals

    def _bracketed(self, start: int) -> str:
        """The text from `start` to the > that closes the < at hand."""
        depth = 0
        for at in range(self._at, len(self._text)):
            depth += {"<": 1, ">": -1}.get(self._text[at], 0)
            if not depth:
                return self._text[start : at + 1].strip()
        return self._text[start:].strip()

    @property
    def _column(self) -> str:
        return ".".join(self._path)

    def _refuse_next(self, wanted: str) -> NoReturn:
        """Refuse the text at the next character, where `wanted` is expected."""
        self._skip()
        rest = self._text[self._at :]
        there = f"where {show(rest)} stands" if rest else "where the text ends"
        is_name = wanted in (_A_NAME, _A_TYPE) and re.match(r"[^\w\s,:<>()]", rest) is not None
        word = _WORD.match(rest)
        hint = (
            _NO_PART.get(word[0].lower(), "") if word and wanted not in (_A_NAME, _A_TYPE) else ""
        )
        if is_name and not self._single:
            hint = _QUOTE
        self._refuse_text(f"{wanted} is expected at character {self._at + 1}, {there}", hint)

    def _refuse_text(self, why: str, hint: str = "") -> NoReturn:
        column = f"column {self._column!r} of " if self._path else "columns from "
        raise SchemaError(
            "schema.malformed",
            f"cannot {self._attempt}: {column}{show(self._text)} cannot be read: {why}",
            hint=hint or (_WRITE_TYPE if self._single else _WRITE),
            column=self._column or None,
            declared=self._text,
            at=self._at,
        )

    def _refuse_type(
        self, spelling: str, name: str, rule: str = "which is no type of columns", hint: str = ""
    ) -> NoReturn:
        raise SchemaError(
            "schema.type_unsupported",
            f"cannot {self._attempt}: column {self._column!r} is declared as {show(spelling)}, {rule}",
            hint=hint or nearest_type(name),
            column=self._column,
            declared=spelling,
        )
