"""Kernels of the iterations that work on arrays: numbers for keys, edges, and values that spread along edges.

`operators.iterations` calls them, and says what they are for.
"""
