"""The tables of integers through which kernels see columns and blocks.

Kernels (`compiling`) are compiled loops, and take no Arrow objects. `state.columns` and `state.block` describe memory
to them by tables of int64, which have two kinds of rows:

- A *node* describes one Arrow array: the kind of its cells, their width, and the addresses of its buffers. An array of
  lists or structs is a tree of nodes in preorder. So one table of nodes describes all columns of a block, the key
  columns first.
- A *block descriptor* describes one block. (A block is a sorted piece of a state, at most about a million rows or 64
  MB, that never changes: `state.block`.)

The constants below are the positions of the fields in a row, and the kinds of nodes. An address is good only while the
memory behind it is there: whoever holds a table holds the arrays too (the *owners stay alive* law of `state.columns`).
"""

from __future__ import annotations

# One node: a row of NODE_FIELDS integers.
KIND = 0
WIDTH = 1  # bytes of one cell (fixed-width kinds)
DATA = 2  # address of the cells, or of the bytes of a variable-width column
OFFSETS = 3  # address of int64 offsets (BYTES and LIST)
VALID = 4  # address of the validity bitmap, 0 when no row is null
SIZE = 5  # nodes in the subtree, this one included: the next sibling is SIZE nodes on
DESCENDING = 6  # 1 when the declared order runs from large to small
ORIGIN = 7  # added to a row number: where a sliced Arrow array starts
NODE_FIELDS = 8
NODE_BYTES = NODE_FIELDS * 8

# Kinds of node.
NULL = 0  # every row is null
BIT = 1
INT = 2  # signed integers, dates, times, timestamps, durations
UINT = 3
FLOAT = 4
DECIMAL = 5  # little-endian two's complement, 4 to 32 bytes
FIXED = 6  # fixed-size binary
BYTES = 7  # strings and binary
LIST = 8
STRUCT = 9
HASHED = 10  # a key of signed integers or times that is not stored: it is recovered from its hash

MAX_DEPTH = 16  # how deep lists and structs may be nested

# One block descriptor: a row of BLOCK_FIELDS integers.
HASHES = 0
START = 1
STOP = 2
DIRECTORY = 3  # address of uint32 row numbers by bucket of hashes, 0 when the block has none
SHIFT = 4
BASE = 5  # the hash that bucket 0 starts at
CODES = 6
CODE_WIDTH = 7  # 0: every row has code 0
DIFFS = 8
DIFF_WIDTH = 9  # 0: every row has the diff in field DIFF
DIFF = 10
NODES = 11
FIRST = 12  # least hash of the rows in [START, STOP)
LAST = 13  # greatest hash of the rows in [START, STOP)
TIMES = 14  # address of the table of times: their join, then each of them, int64 by coordinate
TIME_COUNT = 15  # how many times are in that table, their join not counted
BLOCK_FIELDS = 16

# A row of some block, as one integer: the block's position in the list at hand, and the row in it.
ROW_BITS = 40
ROW_MASK = (1 << ROW_BITS) - 1
