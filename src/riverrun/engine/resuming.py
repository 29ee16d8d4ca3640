"""Resuming: how a program goes on from a checkpoint, which another program may have written.

Three ways, and the first that is possible is taken:

- **straight**: every state that is needed is in the checkpoint (`comparing`). Others are dropped.
- **backfill**, when the user says ``rebuild=True``: some are, and the rest is built from them, in an epoch of
  its own before the next one (`backfill`).
- **replay**, when the user says so and the log still has all epochs: nothing is taken from the checkpoint, and
  all epochs are done again.

Otherwise the run is refused, with what differs and what would be needed. Laws:

1. **Compared with the checkpoint.** What a program is compared with is what the checkpoint says of the program
   that wrote it, and nothing else. Records of the log hold rows of inputs, whatever was made of them: there, an
   input that an epoch still to be done has rows for must be what it was when they were logged (`state.log`).
   So a run that ends before its first checkpoint leaves things as they were, whichever program comes next.
2. **Said once.** `Resume` is what instances are told. It applies to instances that begin at its epoch, which
   are those that are given the states of that checkpoint: later boundaries hold what the new program made.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from riverrun.engine.comparing import Comparison, Flow, Stored, compare
from riverrun.engine.messages import MakeInstance
from riverrun.engine.plan import Plan
from riverrun.errors import CheckpointError, RiverrunError
from riverrun.state.log import Way
from riverrun.state.manifest import Manifest
from riverrun.state.view import View

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Resume:
    """What instances that begin at `epoch` do with the states they are given."""

    epoch: int
    keep: Mapping[str, str]
    """Of each state, the name that it has in the checkpoint."""
    flow: Flow = field(default_factory=Flow)
    """What they build anew, and from what."""

    def take(self, states: Mapping[str, View]) -> dict[str, View]:
        """The states of a checkpoint under the names that they have now."""
        return {
            name: states[old] if name == old else replace(states[old], name=name)
            for name, old in self.keep.items()
        }


def told(make: MakeInstance, resume: Resume | None) -> MakeInstance:
    """Have the instances that something makes know how to resume."""
    if resume is None:
        return make
    resuming = getattr(make, "resuming", None)
    if resuming is None:
        raise TypeError(f"{make!r} cannot make instances that resume another program")
    made: MakeInstance = resuming(resume)
    return made


def decide(
    plan: Plan, manifest: Manifest, *, whole: bool, rebuild: bool
) -> tuple[Way, Resume | None]:
    """How to go on from a checkpoint; refuse it where that cannot be. `whole`: the log has all epochs."""
    about = manifest.about
    stored = Stored(
        int(about["epoch"]),
        about.get("fingerprint", {}),
        frozenset(manifest.states),
        about.get("lineage"),
    )
    found = compare(plan, stored)
    where = f"{plan.name!r} from checkpoint {manifest.number}"
    if found.is_straight:
        if found.dropped:
            _LOG.info("resuming %s: not needed any more: %s", where, ", ".join(found.dropped))
        if found.keep == {name: name for name in stored.states}:
            return Way.STRAIGHT, None
        return Way.STRAIGHT, Resume(stored.epoch, found.keep)
    if not rebuild:
        raise _incompatible(where, found, whole)
    flow = found.flow
    if not flow.inputs and not flow.stuck:
        _LOG.info("resuming %s: built anew: %s", where, ", ".join(found.rebuild))
        return Way.BACKFILL, Resume(stored.epoch - 1, found.keep, flow)
    if whole:
        _LOG.info("resuming %s: all epochs are done again", where)
        return Way.REPLAY, None
    raise _not_rebuildable(where, found)


def _incompatible(where: str, found: Comparison, whole: bool) -> CheckpointError:
    flow = found.flow
    if not flow.inputs and not flow.stuck:
        hint = "run with rebuild=True: what is kept is taken from the checkpoint, and the rest is built anew from it"
    elif whole:
        hint = "run with rebuild=True: the log has all epochs, and all are done again"
    else:
        hint = f"rebuild=True would not do: {_missing(flow)}. {_OTHERWISE}"
    return CheckpointError(
        "checkpoint.incompatible",
        f"cannot resume {where}: it is of another program:\n{found}",
        hint=hint,
        differ=[difference.name for difference in found.differences],
        keep=sorted(found.keep),
        rebuild=sorted(found.rebuild),
    )


_OTHERWISE = (
    "Run the program that wrote it; or use another path, and insert all rows again. From the start, "
    "keep_inputs=True has the log keep all rows, and an input that is keyed or arranged keeps what is in it"
)


def _not_rebuildable(where: str, found: Comparison) -> CheckpointError:
    return CheckpointError(
        "checkpoint.not_rebuildable",
        f"cannot rebuild {where}: {_missing(found.flow)}; it is of another program:\n{found}",
        hint=_OTHERWISE,
        differ=[difference.name for difference in found.differences],
        keep=sorted(found.keep),
        rebuild=sorted(found.rebuild),
        inputs=list(found.flow.inputs),
        stuck=[name for name, _ in found.flow.stuck],
    )


def not_rebuilt(error: RiverrunError) -> CheckpointError:
    """The error of a run that failed while states were built anew."""
    wrapped = CheckpointError(
        "checkpoint.not_rebuilt",
        f"cannot build anew what the checkpoint does not have: {error.message}",
        hint="nothing is lost: mend what fails and run again, or run the program that wrote the checkpoint",
    )
    wrapped.__cause__ = error
    return wrapped


def _missing(flow: Flow) -> str:
    said = []
    if flow.inputs:
        names = ", ".join(map(repr, flow.inputs))
        said.append(f"all rows of the input{'s' * (len(flow.inputs) > 1)} {names} are needed, and ")
        said[-1] += "the log does not have them any more"
    said += [f"{name!r} cannot be built from what is kept: {why}" for name, why in flow.stuck]
    return "; ".join(said)
