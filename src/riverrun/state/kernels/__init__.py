"""Kernels: pure functions over arrays and addresses, compiled by Numba with the GIL released.

All loops over rows are here. `layout` says how kernels see columns and blocks, `values` compares and hashes, and the
others sort, merge, search and gather; those of `iterations` keep loops in arrays. `compiling`, `machine_code` and
`targets` compile them and keep them in files. Nothing else in the package imports Numba.
"""
