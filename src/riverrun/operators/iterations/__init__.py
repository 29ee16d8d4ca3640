"""Iterations on arrays: loops whose state is a value for each key, kept in arrays instead of collections of changes.

`spreading` has the loops in which the best value spreads along edges: components, shortest and widest paths,
reachability. Its parts are `slots` (numbers for keys), `adjacency` (edges), `starts` (start values) and `messages`
(what a value becomes along an edge). The loops over rows are in `state.kernels.iterations`.
"""
