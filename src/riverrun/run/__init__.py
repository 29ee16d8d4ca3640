"""What a user holds while a dataflow runs: a run, its results, and the rows given to it."""

from riverrun.run.following import Sink
from riverrun.run.live import Commit, Run
from riverrun.run.result import Result

__all__ = ["Commit", "Result", "Run", "Sink"]
