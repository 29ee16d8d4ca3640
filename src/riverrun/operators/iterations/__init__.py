"""Iterations: operators of loops in which each key has one row.

`spread` runs a whole loop on arrays, in one node: the best value spreads along edges (components, shortest paths). Its
core is `spreading`, whose parts are `slots` (numbers for keys), `adjacency` (edges), `starts` (start values) and
`messages` (what a value becomes along an edge); the loops over rows are in `state.kernels.iterations`.

`pull` is such a node for another kind of loop, in which each key makes its row anew in every round, of the parts that
come along its edges: PageRank. `pull_loop` describes the loop, and `pulling` runs the rounds, over `compressed` edges
and the keys of `numbering`; `parts` and `words` are its rows and columns. Both nodes have an actor of `array_loop`.

`only_row` is a part of the reduce of a loop on collections.
"""
