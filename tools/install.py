"""`pip install` with progress: one line that changes on a terminal, a line now and then elsewhere.

    python tools/install.py NAME ARGUMENTS...    NAME is shown to people, ARGUMENTS go to pip install

By itself pip is silent, or prints three lines for each package, and nothing while it unpacks packages. This tool shows
how many packages of how many are installed. If pip fails, its output is shown. Run the tool with the interpreter of the
environment.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import time
from pathlib import Path
from threading import Thread

EVERY = 10.0  # seconds between two lines where there is no terminal
LOOKING = 0.2


def main(arguments: list[str]) -> int:
    what, *rest = arguments
    start, said = time.monotonic(), -EVERY  # the first line comes at once
    command = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check"]
    pip = subprocess.Popen(
        [*command, "--no-color", "--progress-bar", "off", *rest],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    lines: list[str] = []
    assert pip.stdout is not None
    reader = Thread(target=lines.extend, args=(pip.stdout,))
    reader.start()
    before = installed()
    while pip.poll() is None:
        time.sleep(LOOKING)
        seconds = time.monotonic() - start
        if sys.stdout.isatty() or seconds - said > EVERY:
            said = seconds
            show(f"{what}: {state(list(lines), installed() - before)}, {seconds:.0f} s")
    reader.join()
    if pip.returncode:
        sys.stdout.write("\n" + "".join(lines))
        return pip.returncode
    count = max(installed() - before, 1)
    show(
        f"{what}: {count} package{'s' * (count > 1)}, after {time.monotonic() - start:.0f} s",
        last=True,
    )
    return 0


def state(lines: list[str], new: int) -> str:
    """What pip is at."""
    wanted = []
    for line in lines:
        word, _, rest = line.partition(" ")
        if word in ("Collecting", "Processing") and rest:
            wanted.append(Path(rest.split()[0]).name)
        elif line.startswith("Installing collected packages: "):
            return f"installing {new} of {line.count(',') + 1}"
    return f"looking for {wanted[-1]} ({len(wanted)})" if wanted else "starting"


def installed() -> int:
    """How many packages the environment has."""
    return len(list(Path(sysconfig.get_path("purelib")).glob("*.dist-info")))


def show(text: str, *, last: bool = False) -> None:
    if sys.stdout.isatty():
        sys.stdout.write(f"\r\x1b[K{text}" + ("\n" if last else ""))
    else:
        sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
