"""Every code block of the documentation runs.

The ``python`` blocks of a page run in order, in one namespace and an empty directory. A block of
``>>>`` lines is a doctest; any other is a program, and when a ``text`` block follows it with
nothing between, that is what it must have printed. Those with the title "Structured Streaming" have a
namespace of their own with `spark`, a session, and are left out where there is no Java. ``bash`` blocks may name
only targets that the Makefile has. A failure names the page and the line.
"""

from __future__ import annotations

import contextlib
import difflib
import doctest
import io
import linecache
import os
import re
import shutil
import sys
import textwrap
import traceback
import types
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import cloudpickle
import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = [
    page
    for page in (ROOT / "README.md", ROOT / "ARCHITECTURE.md", *sorted(ROOT.glob("docs/**/*.md")))
    if page.exists()
]
TARGETS = set(re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, the line number of its first line, its text."""

    language: str
    line: int
    text: str
    title: str
    adjacent: bool  # only blank lines and comments between it and the block before

    @property
    def is_session(self) -> bool:
        return self.text.lstrip().startswith(">>>")

    @property
    def needs_spark(self) -> bool:
        return self.title == "Structured Streaming"

    @property
    def end(self) -> int:
        return self.line + self.text.count("\n")


def blocks(page: Path) -> Iterator[Block]:
    lines = page.read_text(encoding="utf-8").splitlines(keepends=True)
    adjacent, opened = False, None
    for number, line in enumerate(lines, start=1):
        fence = re.match(r"\s*```\s*(\S*)(?: title=\"(.*)\")?", line)
        if opened is None and fence:
            opened = (fence[1], fence[2] or "", number)
        elif opened is not None and re.fullmatch(r"\s*```\s*", line):
            language, title, start = opened
            text = textwrap.dedent("".join(lines[start : number - 1]))
            yield Block(language, start + 1, text, title, adjacent)
            adjacent, opened = True, None
        elif opened is None and line.strip() and not line.startswith("<!--"):
            adjacent = False
    if opened is not None:
        pytest.fail(f"{page.name}:{opened[2]}: a code block that is never closed", pytrace=False)


@contextlib.contextmanager
def spark_session() -> Iterator[object]:
    """The session that there is, or one for a while."""
    from pyspark.sql import SparkSession

    active = SparkSession.getActiveSession()
    if active is not None:
        yield active
        return
    builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    session = builder.getOrCreate()
    try:
        yield session
    finally:
        session.stop()


def has_java() -> bool:
    return "JAVA_HOME" in os.environ or shutil.which("java") is not None


def run_page(page: Path) -> None:
    with contextlib.ExitStack() as ending:
        run_blocks(page, ending)


def run_blocks(page: Path, ending: contextlib.ExitStack) -> None:
    page_blocks = list(blocks(page))
    programs = [
        block for block in page_blocks if block.language == "python" and not block.is_session
    ]

    # Examples define classes and functions whose module and source the library looks up.
    module = types.ModuleType("page_" + re.sub(r"\W", "_", page.stem))
    module.__file__ = str(page)
    source = [""] * (max((block.end for block in page_blocks), default=0) + 1)
    for block in programs:
        source[block.line - 1 : block.end - 1] = block.text.splitlines()
    lines = [f"{line}\n" for line in source]
    streaming: dict[str, object] = {}
    linecache.cache[str(page)] = (sum(map(len, lines)), None, lines, str(page))
    sys.modules[module.__name__] = module
    cloudpickle.register_pickle_by_value(module)  # as `__main__`, which the page is to its readers
    try:
        for index, block in enumerate(page_blocks):
            if block.needs_spark:
                if not has_java():
                    continue
                if not streaming:
                    streaming["spark"] = ending.enter_context(spark_session())
            if block.language == "python":
                after = page_blocks[index + 1] if index + 1 < len(page_blocks) else None
                shown = after is not None and after.language == "text" and after.adjacent
                names = streaming if block.needs_spark else module.__dict__
                run_block(page, block, names, after.text if shown else None)
            elif block.language in {"bash", "sh", "console"}:
                check_commands(page, block)
    finally:
        cloudpickle.unregister_pickle_by_value(module)
        del sys.modules[module.__name__], linecache.cache[str(page)]


def run_block(page: Path, block: Block, names: dict[str, object], expected: str | None) -> None:
    place = f"{page.name}:{block.line}"
    printed = io.StringIO()
    if block.is_session:
        example = doctest.DocTestParser().get_doctest(
            block.text, {}, place, str(page), block.line - 1
        )
        example.globs = names
        runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS, verbose=False)
        if runner.run(example, out=printed.write, clear_globs=False).failed:
            report = printed.getvalue()
            pytest.fail(f"{place}: the example gives something else\n{report}", pytrace=False)
        return
    try:
        code = compile("\n" * (block.line - 1) + block.text, str(page), "exec", dont_inherit=True)
        with contextlib.redirect_stdout(printed):
            exec(code, names)
    except Exception:
        pytest.fail(f"{place}: the block fails\n{traceback.format_exc()}", pytrace=False)
    if expected is not None and printed.getvalue().rstrip() != expected.rstrip():
        lines = difflib.ndiff(expected.splitlines(), printed.getvalue().splitlines())
        difference = "\n".join(lines)
        pytest.fail(
            f"{place}: the block prints something else (- page, + printed)\n{difference}",
            pytrace=False,
        )


def check_commands(page: Path, block: Block) -> None:
    for offset, line in enumerate(block.text.splitlines()):
        command = re.sub(r"(^|\s)#.*", "", line)
        for words in re.findall(r"(?:^|[;&|\s])make\s+([^;&|]*)", command):
            for word in words.split():
                if re.fullmatch(r"[a-z][\w-]*", word) and word not in TARGETS:
                    pytest.fail(
                        f"{page.name}:{block.line + offset}: the Makefile has no target {word!r}",
                        pytrace=False,
                    )


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_the_code_of_a_page_runs(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run_page(page)


GOOD = """\
# A page
```python
import inspect

def twice(x):
    return 2 * x

print(twice(21))
```

```text
42
```
```python
>>> twice(4)
8
>>> print(inspect.getsource(twice).splitlines()[-1].strip())
return 2 * x
```
In between, prose.
```python
class Pair:
    left: int
print(Pair.__module__, inspect.getsource(Pair).count("left"))
```
```text
page_good 1
```
```bash
make test ARGS="-k tiny" && make check  # make coffee
```
"""


def test_a_good_page_passes(tmp_path: Path) -> None:
    page = tmp_path / "good.md"
    page.write_text(GOOD)
    run_page(page)
    assert [block.line for block in blocks(page)] == [3, 12, 15, 22, 27, 30]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("```python\nx = 1\nx.no\n```\n", r"bad\.md:2: the block fails(.|\n)*line 3(.|\n)*x\.no"),
        ("a\n```python\nprint(1)\n```\n\n```text\n2\n```\n", r"bad\.md:3: .*prints something else"),
        ("```python\nif\n```\n", r"bad\.md:2: the block fails(.|\n)*SyntaxError"),
        ("```python\n>>> 1 + 1\n3\n```\n", r"bad\.md:2: the example gives something else"),
        ("```bash\nls\nmake coffee\n```\n", r"bad\.md:3: the Makefile has no target 'coffee'"),
        ("\n```python\nx = 1\n", r"bad\.md:2: a code block that is never closed"),
    ],
)
def test_a_bad_page_fails_at_its_line(text: str, message: str, tmp_path: Path) -> None:
    page = tmp_path / "bad.md"
    page.write_text(text)
    with pytest.raises(pytest.fail.Exception, match=message):
        run_page(page)
