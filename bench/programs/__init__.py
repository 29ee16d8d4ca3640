"""Programs of peers, each run in a process of its own (`bench.apart`): they import nothing of ours.

Each takes sizes as options, checks its own result, and prints one JSON line.
"""
