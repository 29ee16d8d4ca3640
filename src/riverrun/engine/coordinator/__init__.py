"""The coordinator of a run, and its parts: members, epochs, the log, checkpoints, outages, losses."""
