"""Pure functions over arrays and addresses, compiled by Numba with the GIL released.

`layout` says what they see; `values` compares and hashes; the others sort, merge, search and gather.
Nothing else in the package imports Numba.
"""
