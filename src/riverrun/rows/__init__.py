"""Rows, as people give and get them: declarations of columns, values, rows of inputs.

Rows on their way in: `types` is the table of column types, `spellings` reads types and columns written as text,
`schemas` reads declarations in any form, `values` single values, `convert` rows in any form, `column_names` arguments
that name columns, and `commands` makes the batches that inputs are fed. Rows on their way out: `records` and
`conditions`. Operators and all rooms after them use this room; this room knows how states keep values (`state`), and
nothing of plans or runs.
"""
