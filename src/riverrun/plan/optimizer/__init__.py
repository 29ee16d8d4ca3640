"""The optimizer: from the plan that a program was written as to a plan that gives the same rows, sooner.

Rewriting is from plan to plan, before a run starts, and depends on the plan alone: so all workers, and a run that
resumes, do the same. `ways` takes one of several ways to the same rows.
"""

from riverrun.plan.optimizer.ways import optimized

__all__ = ["optimized"]
