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
2. **Translated where it is read.** `Resume` says under which names the states of one checkpoint, the one that the run
   goes on from, are to be had now. Workers give them their new names when they read that checkpoint, so what they pin,
   send and save has the names of the new program, also at the very boundary that the run began at.
3. **Filled once.** What is built anew is built by instances that begin at `Resume.epoch`, before the checkpoint's own
   epoch is run: later boundaries hold what the new program made.
4. **A checkpoint of its own.** The checkpoint that a changed program goes on from is not one of that program. Asked for
   a checkpoint before its first epoch, the run publishes one (`Coordinator`): with its own names, outputs and lineage,
   and the same blocks.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from riverrun.engine.messages import MakeInstance
from riverrun.errors import CheckpointError, RiverrunError
from riverrun.plan.diff import Comparison, Flow, StoredProgram, compare, states_of
from riverrun.plan.plan import Plan
from riverrun.state.view import View
from riverrun.storage.manifest import Manifest
from riverrun.storage.takeover import Continuation

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Resume:
    """How the states of a checkpoint are gone on with."""

    epoch: int
    """The epoch that instances begin at which are given these states."""
    keep: Mapping[str, str]
    """Of each state, the name that it has in the checkpoint."""
    flow: Flow = field(default_factory=Flow)
    """What they build anew, and from what."""
    number: int = 0
    """The number of the checkpoint."""

    def translate(self, number: int, states: Mapping[str, View]) -> Mapping[str, View]:
        """The states of a checkpoint under the names that they have now (law 2)."""
        if number != self.number:
            return states
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
) -> tuple[Continuation, Resume | None]:
    """How to go on from a checkpoint; refuse it where that cannot be. `whole`: the log has all epochs."""
    about = manifest.about
    stored = StoredProgram(
        int(about["epoch"]),
        about.get("fingerprint", {}),
        frozenset(manifest.states),
        about.get("lineage"),
        about.get("code"),
    )
    found = compare(plan, stored)
    where = f"{plan.name!r} from checkpoint {manifest.number}"
    if found.is_straight:
        if found.dropped:
            _LOG.info("resuming %s: not needed any more: %s", where, ", ".join(found.dropped))
        needed = {name for node in plan.nodes for name in states_of(node)}
        if needed == stored.states and all(new == old for new, old in found.keep.items()):
            return Continuation.STRAIGHT, None
        return Continuation.STRAIGHT, Resume(stored.epoch, found.keep, number=manifest.number)
    if not rebuild:
        raise _incompatible(where, found, whole)
    flow = found.flow
    if not flow.inputs and not flow.stuck:
        _LOG.info("resuming %s: built anew: %s", where, ", ".join(found.rebuild))
        return Continuation.BACKFILL, Resume(stored.epoch - 1, found.keep, flow, manifest.number)
    if whole:
        _LOG.info("resuming %s: all epochs are done again", where)
        return Continuation.REPLAY, None
    raise _not_rebuildable(where, found)


def _incompatible(where: str, found: Comparison, whole: bool) -> CheckpointError:
    flow = found.flow
    if not flow.inputs and not flow.stuck:
        hint = "run with rebuild=True: what is kept is taken from the checkpoint, and the rest is built anew from it"
    elif whole:
        hint = (
            "where inputs have the columns and types that they had, run with rebuild=True: the log has all epochs, and "
            f"all are done again. Where they have others, that would not do. {_OTHERWISE}"
        )
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
