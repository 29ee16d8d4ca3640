"""Progress tracking: which times can still arrive at which port, and so which times are complete.

``engine.schedule`` asks this room when an operator may run at a time. Batches, spines and checkpoints use its
frontiers. The room knows times and the shape of a graph, and nothing of data, workers or I/O. It imports the standard
library and ``riverrun.errors`` only.

- ``timestamp``: tuples of an epoch and rounds, their partial order, join and meet.
- ``summary``: how a path through the graph changes a time.
- ``frontier``: sets of times that can still come, as values (antichains) and held by counts.
- ``topology``: ports and how time passes between them; a graph in which a time would never complete is refused.
- ``reachability``: the progress protocol. Workers tell each other every message and capability, each works out what
  can still arrive at every port; with the proof that no worker believes a time complete too early.
- ``crossing``: the same protocol, in which workers tell each other only what crosses from one worker to another. This
  is what runs.

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
