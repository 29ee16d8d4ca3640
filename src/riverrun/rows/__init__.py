"""Rows, as people give and get them: what columns are declared as, what values are cells, what inputs are fed.

`types` is the table of column types, `spellings` reads types and columns written as text, `schemas` declarations in any
form, `values` cells, `convert` rows in any form, and `column_names` arguments that name columns. `commands` makes what
inputs are fed; `records` and `conditions` are about rows on their way out. Operators and everything after them use this
room; it knows how states keep values (`state`), and nothing of plans or runs.
"""
