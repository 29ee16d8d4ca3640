"""`make setup` finds a Java that Spark can use, installs it where it may, or says what to install."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tools.install import state
from tools.one_jvm import piece

ROOT = Path(__file__).resolve().parent.parent
REAL = ("date", "env", "sed", "sh")  # what the script uses, and these tests do not fake


@dataclass(frozen=True)
class Machine:
    """Programs on PATH, the usual folder of JVMs, and what was asked of `apt-get` and `mkdir`."""

    root: Path

    @property
    def path(self) -> Path:
        return self.root / "bin"

    @property
    def jvms(self) -> Path:
        return self.root / "jvms"

    @property
    def asked(self) -> list[str]:
        return (self.root / "asked").read_text().splitlines()

    def program(self, path: Path, lines: str) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\n{lines}\n")
        path.chmod(0o755)
        return path

    def java(self, home: Path, version: str) -> Path:
        """A Java that, like real ones, says where it lives and its version on stderr."""
        command = f'echo "    java.home = {home}" >&2; echo \'openjdk version "{version}"\' >&2'
        return self.program(home / "bin" / "java", command)

    def debian(self, *packages: str) -> None:
        """`apt-get` that has these packages; to install one makes a Java 17."""
        java = self.java(self.root / "installed", "17.0.15")
        cases = "".join(f"*\\ {package}) ln -s {java} {self.path}/java;;" for package in packages)
        log = f'echo "apt-get $*" >>{self.root}/asked'
        self.program(
            self.path / "apt-get", f'{log}; case "$*" in {cases} update*) ;; *) exit 100;; esac'
        )
        (self.path / "ln").symlink_to(shutil.which("ln") or "ln")

    def run(self, *command: str, user: int = 1000, **environment: str) -> tuple[int, str, str]:
        self.program(self.path / "id", f"echo {user}")
        done = subprocess.run(
            [ROOT / "tools" / "with_java", *command],
            env={"PATH": str(self.path), "JVMS": str(self.jvms), **environment},
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout, done.stderr

    def home(self, **environment: str) -> Path:
        code, out, err = self.run("sh", "-c", 'echo "$JAVA_HOME"', user=1000, **environment)
        assert code == 0, err
        return Path(out.strip())


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    host = Machine(tmp_path)
    host.path.mkdir()
    for name in REAL:
        (host.path / name).symlink_to(shutil.which(name) or name)
    host.program(host.path / "mkdir", f'echo "mkdir $*" >>{tmp_path}/asked')
    (tmp_path / "asked").touch()
    return host


def test_java_home_is_first(machine: Machine) -> None:
    mine, path = machine.root / "with space", machine.root / "usr"
    machine.java(mine, "21.0.2")
    (machine.path / "java").symlink_to(machine.java(path, "17.0.15"))
    assert machine.home(JAVA_HOME=str(mine)) == mine
    assert machine.home() == path


@pytest.mark.parametrize("version", ["11.0.2", "1.8.0_392", "16"])
def test_what_is_too_old_is_passed_over(machine: Machine, version: str) -> None:
    old = machine.root / "old"
    machine.java(old, version)
    (machine.path / "java").symlink_to(old / "bin" / "java")
    machine.java(machine.jvms / "a-first", version)
    machine.java(machine.jvms / "b-second", "17.0.1")
    assert machine.home(JAVA_HOME=str(old)) == machine.jvms / "b-second"


@pytest.mark.parametrize("version", ["17", "17.0.15", "21-ea", "25.0.1"])
def test_what_is_recent_is_taken(machine: Machine, version: str) -> None:
    machine.java(machine.jvms / "only", version)
    assert machine.home() == machine.jvms / "only"


def test_a_java_on_the_path_may_be_a_script_elsewhere(machine: Machine) -> None:
    real = machine.java(machine.root / "real", "17.0.15")
    machine.program(machine.path / "java", f'exec {real} "$@"')
    assert machine.home() == machine.root / "real"


def test_without_one_it_says_what_to_install(machine: Machine) -> None:
    machine.java(machine.root / "old", "11.0.2")
    code, out, err = machine.run("sh", "-c", "echo ran", JAVA_HOME=str(machine.root / "old"))
    assert (code, out) == (1, "")
    assert "needs Java 17 or later; none was found" in err
    assert "Debian, Ubuntu:  sudo apt-get install openjdk-17-jre-headless" in err
    assert "elsewhere: " in err
    assert "JAVA_HOME=" in err


def test_only_root_installs(machine: Machine) -> None:
    machine.debian("openjdk-17-jre-headless")
    assert machine.run()[0] == 1
    assert machine.asked == []
    code, _, err = machine.run(user=0)
    assert code == 0
    begun, ended = err.splitlines()
    assert begun == "no Java 17+ found: apt-get install openjdk-17-jre-headless"
    assert re.fullmatch(r"installed openjdk-17-jre-headless, after \d+ s", ended)
    mkdir_line, updated, installed = machine.asked
    assert mkdir_line == "mkdir -p /usr/share/man/man1"
    assert updated.startswith("apt-get update")
    assert installed.endswith(" openjdk-17-jre-headless")
    assert machine.home() == machine.root / "installed"


def test_a_newer_debian_has_another_package(machine: Machine) -> None:
    machine.debian("default-jre-headless")
    assert machine.run(user=0)[0] == 0
    assert machine.asked[-1].endswith(" default-jre-headless")


def test_root_without_the_package_is_told_as_well(machine: Machine) -> None:
    machine.debian()
    code, _, err = machine.run(user=0)
    assert code == 1
    assert "none was found" in err


def test_tests_with_a_jvm_are_one_piece_of_work() -> None:
    assert piece("tests/spark/test_a.py::test_one") == piece("tests/spark/b/test_b.py::test_two[x]")
    assert piece("src/riverrun/spark/a.py::riverrun.spark.a") == piece("tests/spark/test_a.py::t")
    assert piece("tests/run/test_a.py::test_one") != piece("tests/run/test_a.py::test_two")


def test_make_passes_the_java_on() -> None:
    """Every target that may run Spark does so through the script."""
    dry = subprocess.run(
        ["make", "-n", "test", "test-cluster", "soak", "demo"],
        cwd=ROOT,
        env={**os.environ, "MAKEFLAGS": ""},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    runs = [line for line in dry.splitlines() if " -m pytest " in line or " -m examples" in line]
    assert len(runs) == 4
    assert all(line.startswith("tools/with_java .venv/bin/python ") for line in runs)
    assert sum("-p tools.one_jvm -n " in line for line in runs) == 3
    assert sum("-m 'not cluster and not soak and not wheel'" in line for line in runs) == 1


def test_an_installation_says_where_it_is_and_shows_what_pip_said_when_it_fails() -> None:
    done = subprocess.run(
        [
            sys.executable,
            ROOT / "tools" / "install.py",
            "installing it",
            "--no-index",
            "no-such-thing",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stdout.startswith("installing it: ")
    assert "No matching distribution found for no-such-thing" in done.stdout


def test_what_pip_is_at() -> None:
    assert state([], 0) == "starting"
    lines = ["Collecting numpy==2.4 (from -r lock (line 1))\n", "Processing /some/numba-1.whl\n"]
    assert state(lines, 0) == "looking for numba-1.whl (2)"
    assert (
        state([*lines, "Installing collected packages: numpy, numba\n"], 1) == "installing 1 of 2"
    )
