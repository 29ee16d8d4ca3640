"""Iterations: operators of loops in which each key has one row.

`spread` runs a whole loop on arrays, in one node: the best value spreads along edges (components, shortest and widest
paths, reachability). Its core is `spreading`, whose parts are `slots` (numbers for keys), `adjacency` (edges), `starts`
(start values) and `messages` (what a value becomes along an edge); the loops over rows are in
`state.kernels.iterations`.

`pull_loop` describes another kind of loop, in which each key makes its value anew in every round of the parts that come
along its edges: PageRank. `pulling` runs the rounds, over `compressed` edges and the keys of `numbering`; `parts` and
`words` are its rows and columns. `pull` runs it as a node.

`only_row` is a part of the reduce of a loop on collections.
"""
