"""Storage: what outlives a process. Files in an object store, checkpoints, the log, who owns a path."""

from riverrun.storage.checkpoint import Checkpoints

__all__ = ["Checkpoints"]
