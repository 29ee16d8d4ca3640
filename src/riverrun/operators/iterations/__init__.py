"""Executors of loops over arrays, in place of one dataflow operator per step."""
