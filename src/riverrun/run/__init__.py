"""What a user holds while a dataflow runs: a run, its results, and the rows given to it;
and results of runs that are over.
"""

from riverrun.run.following import Sink
from riverrun.run.live import Commit, Run
from riverrun.run.result import Result
from riverrun.run.stored import read_checkpoint

__all__ = ["Commit", "Result", "Run", "Sink", "read_checkpoint"]
