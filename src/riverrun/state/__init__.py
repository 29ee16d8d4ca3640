"""State: changes `(key, value, time, diff)` in sorted columnar batches that can be read as of a time.

Read `batch` and `spine` first; `kernels` is where the time goes.
"""
