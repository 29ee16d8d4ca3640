"""Words for loops: which of two rows of one key is better.

| for | words |
|---|---|
| ``iterate_delta(..., better=...)`` | `least`, `greatest` |
| ``iterate(..., until=...)`` | `unchanged`, `tolerance` |

`iterate` here is for loops of several collections; of one collection, it is a method.

>>> import riverrun as rr
>>> rr.loops.least("distance")
least('distance')
"""

from riverrun.frontends.collections.best import greatest, least
from riverrun.frontends.collections.loops import iterate_together as iterate
from riverrun.frontends.collections.stopping import tolerance, unchanged

__all__ = ["greatest", "iterate", "least", "tolerance", "unchanged"]
