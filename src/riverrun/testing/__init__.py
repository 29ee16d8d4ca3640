"""Testing programs and operators: one-line runs, scripts with failures, and the eight laws.

- `once` and `each_epoch`: the results of a program, in one line.
- `play`: a script of changes and failures (``COMMIT``, ``KILL``, ``CRASH``, ...) done to a dataflow.
- `check_operator` and `check_dataflow`: a check that a program keeps the laws of operators; if the program breaks one,
  `LawBroken` shows the smallest script that does so.

>>> from riverrun.testing import check_operator, once
>>> once(lambda words: words.distinct(), words=[{"word": "sea"}, {"word": "sea"}]).rows()
[('sea',)]
>>> print(check_operator(lambda words: words.distinct(), {"words": {"word": str}}, rounds=1))
kept progress, silence, oracle, split, order, compaction, resume, rescale in 1 scripts
"""

from riverrun.testing.checking import check_dataflow, check_operator
from riverrun.testing.draws import Draw
from riverrun.testing.harness import each_epoch, once
from riverrun.testing.laws import LAWS, Checked, LawBroken
from riverrun.testing.playing import play
from riverrun.testing.script import (
    CHECKPOINT,
    COMMIT,
    CRASH,
    KILL,
    REFUSE,
    SCALE,
    delete,
    insert,
    upsert,
)

__all__ = [
    "CHECKPOINT",
    "COMMIT",
    "CRASH",
    "KILL",
    "LAWS",
    "REFUSE",
    "SCALE",
    "Checked",
    "Draw",
    "LawBroken",
    "check_dataflow",
    "check_operator",
    "delete",
    "each_epoch",
    "insert",
    "once",
    "play",
    "upsert",
]
