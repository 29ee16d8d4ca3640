"""The commands of ``riverrun``, and how errors are printed. This module is light: a command imports what it needs."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from riverrun.errors import RiverrunError
from riverrun.version import __version__

DAMAGED = 1
FAILED = 2
EARLIER = ("--output", "--state")  # what --name was called


def main(arguments: Sequence[str] | None = None) -> int:
    """Do as the arguments say; return the exit code."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.command == "version":
        sys.stdout.write(f"riverrun {__version__}\n")
        return 0
    try:
        if options.command == "kernels":
            from riverrun.cli.kernels import prepare

            return prepare(options.folder, few=options.common)
        _check(parser, options)
        from riverrun.cli.checkpoints import run

        return run(options)
    except RiverrunError as error:
        sys.stderr.write(f"{error.message}\n" + (f"Hint: {error.hint}\n" if error.hint else ""))
        return FAILED
    except BrokenPipeError:  # the reader of the output, such as head, has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="riverrun",
        description="Look at what runs of Riverrun have left, and make ready what they need.",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser("version", help="say which version this is")
    kernels = commands.add_parser(
        "kernels",
        help="compile what runs need, before they do",
        description="Compile the kernels that are not ready for this machine, on all cores, and say where they are.",
    )
    kernels.add_argument(
        "--folder", metavar="PATH", help="copy what is compiled there as well, to be shipped"
    )
    kernels.add_argument(
        "--common",
        action="store_true",
        help="only those of programs that join, group and iterate; others are compiled when a run needs them",
    )
    checkpoints = commands.add_parser(
        "checkpoints",
        help="list, verify and show checkpoints",
        description="List the checkpoints at a path, verify them, or show what is in one. Nothing is changed there.",
    )
    checkpoints.add_argument(
        "path", metavar="PATH", help="a directory, or a URL such as s3://bucket/path"
    )
    checkpoints.add_argument("number", metavar="NUMBER", nargs="?", type=int, help="one checkpoint")
    checkpoints.add_argument(
        "--verify", action="store_true", help="read every file; exit code 1 says damage"
    )
    checkpoints.add_argument(
        "--name",
        metavar="NAME",
        help="show rows of an output or shared state; or those that a step keeps, and how often each is there",
    )
    for earlier in EARLIER:
        checkpoints.add_argument(earlier, help=argparse.SUPPRESS)
    checkpoints.add_argument(
        "--epoch", metavar="EPOCH", type=int, help="an epoch that is held; the last by default"
    )
    checkpoints.add_argument(
        "--limit", metavar="N", type=int, default=20, help="at most so many rows (20)"
    )
    checkpoints.add_argument("--json", action="store_true", help="for programs")
    return parser


def _check(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    for earlier in EARLIER:
        if (name := getattr(options, earlier.strip("-"))) is not None:
            parser.error(f"outputs, states and steps are read by one option: --name {name}")
    if options.name is not None and options.verify:
        parser.error("--verify looks at files, and --name shows rows: one at a time")
    if options.epoch is not None and options.name is None:
        parser.error("--epoch says when rows are read: give --name as well")
    if options.limit < 0:
        parser.error("--limit is a number of rows, from 0 on")
