"""State: changes `(key, value, time, diff)` in sorted columnar batches that can be read as of a time.

Read `batch` and `spine` first; `kernels` is where the time goes. In the order in which they build
on each other: `schema` and `columns` (what rows are), `times` (times as codes), `changes` (what comes
in, unsorted), `block` and `batch` (sorted runs), `merge` (two become one, a step at a time), `keys`
and `view` (reads), `matching` (pairs of equal keys), `sums` (floats that add up exactly), `spine`
(the chain of batches that takes changes in), `files`, `storage`, `manifest`, `joining` and
`checkpoint` (the same on disk), `inspecting` and `stored` (looked at, and read, with no run alive).
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
