"""Sinks: results that are written on as epochs complete, by a thread (`queue`) to a `destination`."""
