"""What a user holds while a dataflow runs: a run, its results, and the rows given to it;
and results of runs that are over.
"""

from riverrun.run.checkpoints import read_checkpoint
from riverrun.run.commits import Commit
from riverrun.run.result import Result
from riverrun.run.rounds import Rounds
from riverrun.run.run import Run
from riverrun.run.sinks.queue import Sink

__all__ = ["Commit", "Result", "Rounds", "Run", "Sink", "read_checkpoint"]
