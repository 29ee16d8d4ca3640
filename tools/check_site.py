"""Checks that the site needs no network: no script, style, font, picture or frame comes from another host.

Links that a reader may follow can lead anywhere; what a page loads by itself may not.

    python tools/check_site.py site
"""

from __future__ import annotations

import re
import sys
from html.parser import HTMLParser
from pathlib import Path

LOADED = {  # what a browser loads by itself: tag -> attributes
    "script": ("src",),
    "link": ("href",),
    "img": ("src", "srcset"),
    "source": ("src", "srcset"),
    "iframe": ("src",),
    "video": ("src", "poster"),
    "audio": ("src",),
    "embed": ("src",),
    "object": ("data",),
}
ELSEWHERE = re.compile(r"^\s*(?:https?:)?//", re.IGNORECASE)
IN_STYLES = re.compile(
    r"""(?:url\(\s*["']?|@import\s+["'])(?:https?:)?//[^)"'\s]+""", re.IGNORECASE
)


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.loads: list[str] = []
        self._style = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._style = tag == "style"
        for name, value in attrs:
            if value and name in LOADED.get(tag, ()) and ELSEWHERE.match(value):
                self.loads.append(f"<{tag} {name}={value!r}>")
            if value and name == "style":
                self.loads += IN_STYLES.findall(value)

    def handle_data(self, data: str) -> None:
        if self._style:
            self.loads += IN_STYLES.findall(data)


def loads(folder: Path) -> list[str]:
    """What the pages and styles under a folder load from elsewhere, with the file that does."""
    from_elsewhere = []
    for path in sorted(folder.rglob("*")):
        if path.suffix == ".html":
            page = _Page()
            page.feed(path.read_text(encoding="utf-8"))
            items = page.loads
        elif path.suffix == ".css":
            items = IN_STYLES.findall(path.read_text(encoding="utf-8"))
        else:
            continue
        from_elsewhere += [f"{path.relative_to(folder)}: {item}" for item in items]
    return from_elsewhere


def main(arguments: list[str]) -> int:
    """Print what is loaded from elsewhere; the exit code says whether anything is, or the site is not there."""
    folder = Path(arguments[0])
    if not (folder / "index.html").exists():
        print(f"no index.html in {folder}", file=sys.stderr)
        return 2
    from_elsewhere = loads(folder)
    print("\n".join(from_elsewhere) if from_elsewhere else "site: loads nothing from elsewhere")
    return 1 if from_elsewhere else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
