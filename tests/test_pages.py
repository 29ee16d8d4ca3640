"""Pages say what the code says, every public name is in the reference, and links lead somewhere."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType
from urllib.parse import unquote

import pytest

from tools.check_site import loads
from tools.check_site import main as check_site
from tools.pages import INTERNAL, entries_of, filled, problems, public_names, read_pages, resolve

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = read_pages(DOCS)


def test_the_pages_say_what_the_code_says() -> None:
    assert problems(PAGES) == []


def test_every_public_name_has_one_entry_with_its_signature() -> None:
    """Once more, without the code of tools/pages: a heading, and the line of the signature where there is one."""
    import riverrun as rr

    text = "".join(text for page, text in PAGES.items() if page.startswith("reference/"))
    for kind in (rr.Dataflow, rr.Collection, rr.Grouped, rr.State, rr.Run, rr.Result, rr.Commit):
        for name, value in vars(kind).items():
            shown_as = callable(value) or isinstance(value, property)
            if (
                name.startswith("_")
                or not shown_as
                or f"riverrun.{kind.__name__}.{name}" in INTERNAL
            ):
                continue
            heading = f"\n### `{kind.__name__}.{name}`\n"
            assert text.count(heading) == 1, heading
            if callable(value):
                after = text.partition(heading)[2]
                assert after.startswith(f"\n```py\n{name}("), heading
                shown = after.partition("\n```\n")[0]
                for argument in value.__code__.co_varnames[1 : value.__code__.co_argcount]:
                    assert re.search(rf"\b{argument}\b", shown), f"{heading} {argument}"
    assert {"riverrun.sum", "riverrun.testing.play", "riverrun.graphs.bfs"} <= set(public_names())


def test_what_is_left_out_is_there() -> None:
    for name in INTERNAL:
        owner, _, member = name.rpartition(".")
        kind = resolve(owner)
        assert any(member in vars(base) for base in kind.__mro__), f"{name} is no more: take it out"


BROKEN = [
    # what is done to docs/reference/groups.md, and what is said of it
    ("<!-- entry: riverrun.sum -->", "<!-- entry: riverrun.mean -->", "riverrun.sum has no entry"),
    ("<!-- entry: riverrun.sum -->", "<!-- entry: riverrun.mean -->", "riverrun.mean has several"),
    ("<!-- entry: riverrun.sum -->", "<!-- entry: riverrun.total_of -->", "no public name"),
    ("The sum of a `column`", "The product of a `column`", "groups.md is not what the code says"),
    ("sum(column: Any)", "sum(column)", "groups.md is not what the code says"),
    ("## Aggregates\n", "## Aggregates\n<!-- end -->\n", "without its end"),
    (
        "<!-- end -->\n\n<!-- entry: riverrun.mean",
        "\n<!-- entry: riverrun.mean",
        "riverrun.mean has no entry",
    ),
]


@pytest.mark.parametrize(("old", "new", "words"), BROKEN)
def test_a_page_that_is_wrong_is_told(old: str, new: str, words: str) -> None:
    page = "reference/groups.md"
    assert PAGES[page].count(old) == 1
    broken = {**PAGES, page: PAGES[page].replace(old, new)}
    assert any(words in line for line in problems(broken)), problems(broken)


def test_an_argument_that_is_not_explained_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    import riverrun as rr

    monkeypatch.setattr(rr.Collection.drop, "__doc__", "All columns but some.")
    assert any(
        "Collection.drop: the docstring does not say what `columns`" in line
        for line in problems(PAGES)
    )


def test_a_module_that_is_a_public_name_is_a_namespace(monkeypatch: pytest.MonkeyPatch) -> None:
    import riverrun as rr

    def pepper(corns: int = 3) -> None:
        """Add `corns`."""

    spices = ModuleType("riverrun.spices")
    vars(spices).update(__all__=["pepper"], pepper=pepper)
    monkeypatch.setitem(sys.modules, "riverrun.spices", spices)
    monkeypatch.setattr(rr, "spices", spices, raising=False)
    monkeypatch.setattr(rr, "__all__", [*rr.__all__, "spices"])
    assert problems(PAGES) == ["riverrun.spices.pepper has no entry in docs/reference"]
    page = "# Spices\n\n<!-- entry: riverrun.spices.pepper -->\n<!-- end -->\n"
    pages = {**PAGES, "reference/spices.md": page}
    shown = filled("reference/spices.md", page, entries_of(pages))
    assert "### `rr.spices.pepper`\n\n```py\nrr.spices.pepper(corns: int = 3)" in shown


def test_pages_that_are_filled_stay_as_they_are() -> None:
    entries = entries_of(PAGES)
    for page, text in PAGES.items():
        assert filled(page, text, entries) == text


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as forges and the site make them."""
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", prose, re.MULTILINE)
    plain = [re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading) for heading in headings]
    return {re.sub(r"[^\w -]", "", heading.lower()).strip().replace(" ", "-") for heading in plain}


def links(path: Path) -> list[str]:
    text = re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"`[^`\n]*`", "", text)
    return [target for target in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in target]


@pytest.mark.parametrize(
    "path",
    [ROOT / "README.md", ROOT / "ARCHITECTURE.md", *sorted(DOCS.rglob("*.md"))],
    ids=lambda path: path.relative_to(ROOT).as_posix(),
)
def test_links_lead_somewhere(path: Path) -> None:
    for target in links(path):
        file, _, anchor = unquote(target).partition("#")
        to = (path.parent / file).resolve() if file else path
        assert to.exists(), f"{path.name}: {target}"
        if anchor:
            assert anchor in anchors(to.read_text()), f"{path.name}: {target}: no such heading"


def test_the_site_has_every_page() -> None:
    """The navigation names each page of docs/ once."""
    nav = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    named = re.findall(r"([\w/-]+\.md)\s*$", nav, re.MULTILINE)
    assert sorted(named) == sorted(PAGES)


def test_the_glossary_has_the_words_of_the_architecture() -> None:
    """Each word that ARCHITECTURE.md defines has one entry, and each entry a link."""
    names = (ROOT / "ARCHITECTURE.md").read_text().partition("## Names to know")[2]
    defined = set(re.findall(r"\*\*([\w ]+)\*\*: ", names.partition("\n## ")[0]))
    assert len(defined) >= 9
    entries = re.findall(
        r"^- \*\*(.+?)\*\*: .+ \(\[.+?\]\(.+?\)\)\.$", PAGES["glossary.md"], re.MULTILINE
    )
    assert len(entries) == PAGES["glossary.md"].count("\n- ") > 70
    words = [word for entry in entries for word in entry.split(", ")]
    assert len(words) == len(set(words))
    assert defined <= set(words), defined - set(words)


LOADING = [
    ('<script src="https://host/x.js"></script>', "script src='https://host/x.js'"),
    ('<link rel="stylesheet" href="//host/x.css">', "link href='//host/x.css'"),
    ('<img src="http://host/x.png">', "img src"),
    ("<style>@import 'https://host/x.css';</style>", "@import"),
    ('<p style="background: url(https://host/x.png)">', "url(https://host/x.png"),
]


@pytest.mark.parametrize(("html", "words"), LOADING)
def test_a_site_that_loads_from_elsewhere_is_told(html: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text(f"<a href='https://host'>x</a><img src='x.svg'>{html}")
    assert any(words in line for line in loads(tmp_path)), loads(tmp_path)
    assert check_site([str(tmp_path)]) == 1


def test_a_site_that_loads_its_own_is_fine(tmp_path: Path) -> None:
    assert check_site([str(tmp_path)]) == 2
    (tmp_path / "index.html").write_text("<a href='https://host'>x</a><script src='x.js'></script>")
    (tmp_path / "x.css").write_text("p { background: url(x.png) }")
    assert check_site([str(tmp_path)]) == 0
