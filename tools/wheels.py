"""Builds the wheels: a pure one for every Python and platform, and one that brings its kernels compiled.

    python tools/wheels.py [FOLDER]        both, for the Python that runs this; FOLDER is dist/
    python tools/wheels.py --pure [FOLDER] the pure one

A wheel with kernels is the pure wheel with machine code for the platform's baseline (`kernels/targets.py`) added. So it
has the tag of one Python and one platform, and requires the very versions of Numba and llvmlite that compiled the
kernels: other versions could not use them, and each machine would compile its own. Where both wheels fit, pip prefers
the one with kernels. The tag names the platform as it is (linux_x86_64), not as one for all Linuxes: the machine code
links to no library, but no tool can check that.

Setuptools does the work, in this environment: nothing is downloaded. Sources are copied first, so that the checkout
stays as it is; kernels that the checkout has compiled are taken from there, and missing ones are compiled.
"""

from __future__ import annotations

import argparse
import base64
import csv
import hashlib
import io
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COPIED = ("pyproject.toml", "LICENSE", "README.md", "src")
INSIDE = "riverrun/state/kernels/compiled"
PINNED = ("numba", "llvmlite")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="tools/wheels.py")
    parser.add_argument("folder", nargs="?", default=str(ROOT / "dist"), type=Path)
    parser.add_argument("--pure", action="store_true")
    options = parser.parse_args(arguments)
    options.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        pure = build_pure(Path(scratch), options.folder)
        _say(pure)
        if not options.pure:
            _say(with_kernels(pure, compiled(Path(scratch)), options.folder))
    return 0


def build_pure(scratch: Path, folder: Path) -> Path:
    """The wheel that setuptools makes of the sources, without build isolation."""
    sources, built = scratch / "sources", scratch / "built"
    sources.mkdir()
    for name in COPIED:
        if (ROOT / name).is_dir():
            ignored = shutil.ignore_patterns("__pycache__", "compiled", "*.egg-info")
            shutil.copytree(ROOT / name, sources / name, ignore=ignored)
        else:
            shutil.copy2(ROOT / name, sources)
    build = "from setuptools.build_meta import build_wheel; import sys; build_wheel(sys.argv[1])"
    built.mkdir()
    subprocess.run(
        [sys.executable, "-c", build, str(built)],
        cwd=sources,
        check=True,
        stdout=subprocess.DEVNULL,
    )
    (wheel,) = built.glob("*.whl")
    return Path(shutil.copy2(wheel, folder))


def compiled(scratch: Path) -> Path:
    """A folder with one folder in it, of the kernels for this Python and the baseline."""
    folder = scratch / "kernels"
    command = [sys.executable, "-m", "riverrun", "kernels", "--folder", str(folder)]
    subprocess.run(command, cwd=ROOT / "src", check=True)
    names = [each.name for each in folder.iterdir()]
    if len(names) != 1 or ("x86-64-v3" not in names[0] and "generic" not in names[0]):
        raise SystemExit(
            f"kernels were compiled for {', '.join(names)}, which is no baseline: a wheel of them would serve this "
            "machine only\nHint: unset RIVERRUN_CPU and Numba's settings of the processor; "
            "use a machine that has the baseline"
        )
    return folder


def tag() -> str:
    """The tag of this very Python on this platform."""
    number = f"cp{sys.version_info.major}{sys.version_info.minor}"
    flags = getattr(sys, "abiflags", "")
    platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    return f"{number}-{number}{flags}-{platform}"


def with_kernels(pure: Path, kernels: Path, folder: Path) -> Path:
    """Another wheel like `pure`, that has kernels besides, and says what they need."""
    name, number, *_ = pure.name.split("-")
    information = f"{name}-{number}.dist-info"
    target = folder / f"{name}-{number}-{tag()}.whl"
    with zipfile.ZipFile(pure) as archive:
        content = {each: archive.read(each) for each in archive.namelist()}
    del content[f"{information}/RECORD"]
    content[f"{information}/WHEEL"] = (
        content[f"{information}/WHEEL"]
        .replace(b"Root-Is-Purelib: true", b"Root-Is-Purelib: false")
        .replace(b"Tag: py3-none-any", f"Tag: {tag()}".encode())
    )
    pins = "".join(f"Requires-Dist: {each}=={version(each)}\n" for each in PINNED)
    head, blank, text = content[f"{information}/METADATA"].decode().partition("\n\n")
    content[f"{information}/METADATA"] = f"{head}\n{pins}{blank[1:]}{text}".encode()
    for file in sorted(kernels.rglob("*.kernel")):
        content[f"{INSIDE}/{file.relative_to(kernels).as_posix()}"] = file.read_bytes()
    record = io.StringIO()
    rows = csv.writer(record, lineterminator="\n")
    for each, data in content.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        rows.writerow([each, f"sha256={digest}", len(data)])
    rows.writerow([f"{information}/RECORD", "", ""])
    content[f"{information}/RECORD"] = record.getvalue().encode()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for each, data in content.items():
            about = zipfile.ZipInfo(each, (1980, 1, 1, 0, 0, 0))
            about.external_attr = 0o644 << 16
            about.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(about, data)
    return target


def _say(wheel: Path) -> None:
    print(f"{wheel}: {wheel.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
