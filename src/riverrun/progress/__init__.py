"""Progress: when is a time finished?

This folder knows times and the shape of a graph, and nothing of data, workers or I/O. It imports
the standard library only.

- ``timestamp``: tuples of an epoch and rounds, their partial order, join and meet.
- ``summary``: what travelling along a path does to a time.
- ``frontier``: which times can still come: antichains, and frontiers held by counts.
- ``topology``: ports and how time passes between them; refuses graphs that would never finish.
- ``reachability``: what can still arrive where, as one worker knows it from what all have done,
  and why that is safe.
- ``crossing``: the same among workers, who tell each other only of what crosses between them.

>>> builder = TopologyBuilder()
>>> source = builder.node("source", outputs=[1])
>>> sink = builder.node("sink", inputs=[1])
>>> builder.edge(source.outputs[0], sink.inputs[0])
>>> tracker = Tracker(builder.build(), initial=[(source.outputs[0], (0,))])
>>> tracker.frontier(sink.inputs[0])
Antichain([(0,)])
"""

from __future__ import annotations

from .crossing import Border
from .frontier import Antichain, CountedFrontier, Counts, FrontierChange
from .reachability import Ledger, Pointstamp, ProgressChange, Tracker
from .summary import Summary
from .timestamp import Timestamp, join, less_equal, less_than, meet
from .topology import Location, NodePorts, Topology, TopologyBuilder

__all__ = [
    "Antichain",
    "Border",
    "CountedFrontier",
    "Counts",
    "FrontierChange",
    "Ledger",
    "Location",
    "NodePorts",
    "Pointstamp",
    "ProgressChange",
    "Summary",
    "Timestamp",
    "Topology",
    "TopologyBuilder",
    "Tracker",
    "join",
    "less_equal",
    "less_than",
    "meet",
]
