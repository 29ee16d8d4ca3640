"""A wheel is built, installed into a clean environment, and runs README's program without compiling anything.

For each supported Python that is on this machine: `make test-wheel` shows which, how long each took, and which were
skipped. What a wheel needs is installed from the locked versions, by pip.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PYTHONS = ("3.11", "3.12", "3.13")
VERSION = "import ensurepip, sys, venv; print('%d.%d' % sys.version_info[:2])"
"""Prints the version of a Python that can make an environment: Debian's comes without ensurepip."""
WATCHED = """
import json, sys, time
start = time.perf_counter()
answers, shown = [], print
def print(*words):
    answers.append(time.perf_counter() - start)
    shown(*words)
exec(compile(open(sys.argv[1]).read(), "README.md", "exec"), {"print": print, "__name__": "__main__"})
import riverrun
from riverrun.state.kernels import compiling
kernels = compiling.KERNELS.values()
sys.stderr.write(json.dumps({
    "seconds": answers[0],
    "loaded": sum(sum(kernel.stats.cache_hits.values()) for kernel in kernels),
    "compiled": sum(sum(kernel.stats.cache_misses.values()) for kernel in kernels),
    "package": riverrun.__file__,
}))
"""

pytestmark = pytest.mark.wheel


@dataclass(frozen=True)
class Environment:
    """A virtual environment with what Riverrun needs, and without Riverrun."""

    python: Path
    folder: Path

    def run(self, *arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
        outside = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PYTHON", "NUMBA", "RIVERRUN", "VIRTUAL_ENV"))
        }
        done = subprocess.run(
            [self.python, *arguments],
            cwd=cwd,
            env=outside,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{arguments}:\n{done.stdout}\n{done.stderr}"
        return done

    def pip(self, *arguments: str | Path) -> None:
        constraints = ("-c", ROOT / "requirements.lock")
        quiet = ("-qq", "--disable-pip-version-check")
        self.run("-m", "pip", "install", *quiet, *constraints, *arguments, cwd=self.folder)


def interpreter(version: str) -> str | None:
    """A Python of this version on this machine that can make environments: this one, one on the path, or one of
    pyenv's."""
    places = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    for candidate in (sys.executable, f"python{version}", *map(str, places)):
        try:
            asked = subprocess.run(
                [candidate, "-c", VERSION], capture_output=True, text=True, check=False
            )
        except OSError:
            continue
        if asked.stdout.strip() == version:
            return candidate
    return None


def readme() -> tuple[str, str]:
    """README's program, and what it prints."""
    text = (ROOT / "README.md").read_text()
    code, rest = text.split("```python\n", 1)[1].split("```\n", 1)
    return code, rest.split("```text\n", 1)[1].split("```", 1)[0]


@pytest.mark.parametrize("version", PYTHONS)
def test_a_wheel_runs_the_first_program_at_once(
    version: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    python = interpreter(version)
    if python is None:
        pytest.skip(f"there is no Python {version} with venv and ensurepip on this machine")
    subprocess.run([python, "-m", "venv", tmp_path / "environment"], check=True)
    environment = Environment(tmp_path / "environment" / "bin" / "python", tmp_path)
    needed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    environment.pip(*needed, "setuptools")
    wheels = tmp_path / "wheels"
    environment.run(ROOT / "tools" / "wheels.py", wheels, cwd=tmp_path)
    number = version.replace(".", "")
    (wheel,) = wheels.glob(f"riverrun-*-cp{number}-cp{number}-*.whl")
    assert len(list(wheels.glob("riverrun-*-py3-none-any.whl"))) == 1

    environment.pip(wheel)
    code, answers = readme()
    empty = tmp_path / "empty"
    empty.mkdir()
    (tmp_path / "readme.py").write_text(code)
    (tmp_path / "watched.py").write_text(WATCHED)
    program = environment.run(tmp_path / "watched.py", tmp_path / "readme.py", cwd=empty)
    assert program.stdout == answers
    report = json.loads(program.stderr)  # and nothing else was said
    assert Path(report["package"]).is_relative_to(tmp_path / "environment")
    assert report["compiled"] == 0
    assert report["loaded"] > 10
    pinned = environment.run("-m", "pip", "show", "riverrun", cwd=empty).stdout
    assert "numba" in pinned
    with capsys.disabled():
        size = wheel.stat().st_size / 1e6
        print(f"\nPython {version}: first answer after {report['seconds']:.1f} s; {size:.1f} MB")
