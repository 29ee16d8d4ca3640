"""Benchmarks: one program per question, run with `python -m bench NAME`; peers beside us in the same run."""
