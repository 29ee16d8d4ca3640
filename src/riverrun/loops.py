"""Words for loops: which of two rows of one key is better.

| for | words |
|---|---|
| ``iterate_delta(..., better=...)`` | `least`, `greatest` |

>>> import riverrun as rr
>>> rr.loops.least("distance")
least('distance')
"""

from riverrun.frontends.collections.best import greatest, least

__all__ = ["greatest", "least"]
