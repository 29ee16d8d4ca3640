"""State: changes `(key, value, time, diff)` in sorted columnar batches that can be read as of a time.

A state is what an operator remembers on one worker. Operators append to states and read them, checkpoints write them to
files (`storage`), and the results of a run are reads of states. Whoever comes new reads `batch` and `spine` first. All
modules, in the order in which they build on each other:

- **Columns.** `types` and `schema` say what rows are, `columns` how kernels see columns, `buffers` where memory comes
  from, `times` how the times of rows are kept as small numbers, by a table of the distinct times.
- **Changes.** `changes` are what arrives, unsorted; `block` and `batch` are sorted changes; `merge` makes one batch of
  two, a bounded step at a time; `spine` is the chain of batches of one state, to which changes are appended.
- **Reads.** `view` reads a spine as it was at one moment, `keys` are the keys to look up, `matching` finds pairs of
  equal keys for joins, `sums` adds up floats exactly.
- **Workers and files.** `shards` says which worker owns which hashes, `block_files` writes blocks to files. Kernels
  check no bounds, so `soundness` checks rows that come from files or from other processes, before kernels see them.
- **Kernels.** The folder `kernels` has the compiled loops, in which nearly all time is spent; `entries` lists which of
  them Python calls, and `preparing` compiles them ahead.
"""

from riverrun.state.batch import Batch
from riverrun.state.schema import Order, Schema
from riverrun.state.shards import END
from riverrun.state.spine import ReadHold, Spine
from riverrun.state.view import Selection, View

__all__ = [
    "END",
    "Batch",
    "Order",
    "ReadHold",
    "Schema",
    "Selection",
    "Spine",
    "View",
]
