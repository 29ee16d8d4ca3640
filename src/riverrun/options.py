"""Options of a run that belong together, as `Dataflow.run` takes them.

| argument | dataclass | says |
|---|---|---|
| ``checkpoint=`` | `Checkpoint` | where a run keeps checkpoints, how often, and how it goes on from the last one |
| ``recovery=`` | `Recovery` | what to do about workers that are lost, silent or slow |
| ``security=`` | `Security` | how the processes of a run keep strangers out |

>>> import tempfile
>>> import polars as pl, riverrun as rr
>>> flow = rr.Dataflow("shop")
>>> flow.output("sales", flow.input("sales", {"item": pl.String}))
>>> with tempfile.TemporaryDirectory() as path:
...     checkpoint = rr.options.Checkpoint(path, every=10, retain=3)
...     with flow.run(checkpoint=checkpoint) as run:
...         run.insert("sales", [("rope",)])
...         run.commit()
...     with flow.run(checkpoint=path) as run:  # the short form
...         run.read("sales").rows()
<Commit of epoch 0: done>
[('rope',)]
"""

from riverrun.run.options import Checkpoint, Recovery, Security

__all__ = ["Checkpoint", "Recovery", "Security"]
