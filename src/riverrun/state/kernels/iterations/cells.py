"""The arrays by slot, in which a value and all that belongs to it lies: the numbers of their rows.

Each of `words` (int64), `cells` (int32) and `flags` (int8) is a table with one row for each of these fields, and one
column for each slot. What is *old* is of the last epoch, and holds where TOUCHED (of values) or STARTED (of start
values) says so.
"""

from __future__ import annotations

# Rows of `words`.
CURRENT = 0  # the word of the value
START_VALUE = 1  # the best word of the rows of the solution and of the workset
OLD = 2
OLD_START = 3
WORD_FIELDS = 4

# Rows of `cells`.
DEPTH = 0  # how many messages the value is away from a start value
OLD_DEPTH = 1
NEXT = 2  # the next slot in the same queue
BUCKET = 3  # the queue that the slot is in, or -1
UPDATES = 4  # how often the value has become better in this epoch
FIRST_ROW = 5  # the first row of start values, or -1
SOLUTIONS = 6  # how many different rows of the solution there are
HOPS = 7  # how many messages of this epoch the value is away from one that was there before
CELL_FIELDS = 8

# Rows of `flags`.
RANK = 0
START_RANK = 1
OLD_RANK = 2
OLD_START_RANK = 3
TOUCHED = 4
STARTED = 5
STATE = 6  # what trimming knows of the slot
DOUBTED = 7  # some message of the slot did not fit
FLAG_FIELDS = 8
