"""Resuming: how a program goes on from a checkpoint, which another program may have written.

When a run takes a checkpoint path over, its cluster calls `decide`, which compares the plan with what the checkpoint
says (`plan.diff`). There are three ways to go on, and the first that is possible is taken:

- **straight**: the checkpoint has every state that the program needs. Other states of the checkpoint are dropped.
- **backfill**, where the user says ``rebuild=True``: the checkpoint has some of the states, and the others are built
  from these, in an epoch of its own before the next epoch (`engine.backfill`). The user need not say so where the
  checkpoint lacks a state only since the optimizer had left it out, as nobody read it (`plan.optimizer.unread`).
- **replay**, where the user says ``rebuild=True`` and the log still has all epochs: nothing is taken from the
  checkpoint, and all epochs are done again.

Otherwise the run is refused, with the differences and with what would be needed. Laws:

- **Compared with the checkpoint.** The program is compared with what the checkpoint says of the program that wrote it,
  and with nothing else. Records of the log hold rows of inputs, whatever a program made of them: an input that an epoch
  still to be done has rows for must be what it was when the rows were logged (`storage.log`). So a run that ends before
  its first checkpoint leaves the path as it was, whichever program comes next.
- **Translated where it is read.** `Resume` has the new names for the states of one checkpoint, which is the checkpoint
  that the run goes on from. Workers rename the states when they read this checkpoint. So all that workers pin,
  send and save has the names of the new program, also at the boundary at which the run began.
- **At its depth.** A state that the optimizer has moved out of a loop, or into one, since the checkpoint was made is
  read at the times of its new place (`View.at_depth`).
- **Filled once.** States that are built anew are built by instances that begin at `Resume.epoch`, before the
  checkpoint's own epoch is run. Later boundaries hold what the new program made.
- **A checkpoint of its own.** The checkpoint that a changed program goes on from is not a checkpoint of that program.
  Asked for a checkpoint before its first epoch, the run publishes one (`coordinator`): with its own names, outputs and
  lineage, and the same blocks.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from riverrun.engine.messages import MakeInstance
from riverrun.errors import CheckpointError, RiverrunError
from riverrun.plan.diff import BackfillRoutes, Comparison, StoredProgram, compare, states_of
from riverrun.plan.plan import Plan
from riverrun.state.view import View
from riverrun.storage.manifest import Manifest
from riverrun.storage.takeover import Continuation

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Resume:
    """How a run goes on with the states of a checkpoint."""

    epoch: int
    """The epoch at which instances begin that start with these states."""
    keep: Mapping[str, str]
    """The states that are taken from the checkpoint: the name of each, and the name that it has in the checkpoint."""
    routes: BackfillRoutes = field(default_factory=BackfillRoutes)
    """Which states instances build anew, and from what."""
    number: int = 0
    """The number of the checkpoint."""
    depths: Mapping[str, int] = field(default_factory=dict)
    """The states whose times have another depth now than in the checkpoint, each with the depth."""

    def translate(self, number: int, states: Mapping[str, View]) -> Mapping[str, View]:
        """The states of a checkpoint under the names that they have now (*translated where it is read*)."""
        if number != self.number:
            return states
        translated = {}
        for name, old in self.keep.items():
            view = states[old]
            if name in self.depths:
                view = view.at_depth(self.depths[name])
            translated[name] = view if name == old else replace(view, name=name)
        return translated


def make_resuming(make: MakeInstance, resume: Resume | None) -> MakeInstance:
    """Have the instances that `make` makes go on as `resume` says; None: they need not know."""
    if resume is None:
        return make
    resuming = getattr(make, "resuming", None)
    if resuming is None:
        raise TypeError(f"{make!r} cannot make instances that resume another program")
    make_instance: MakeInstance = resuming(resume)
    return make_instance


def decide(
    plan: Plan, manifest: Manifest, whole: bool, *, rebuild: bool
) -> tuple[Continuation, Resume | None]:
    """Decide how a program goes on from a checkpoint, or refuse the run where it cannot.

    `whole` says whether the log has all epochs, and `rebuild` whether the user lets states be built anew.
    """
    about = manifest.about
    stored = StoredProgram(
        int(about["epoch"]),
        about.get("fingerprint", {}),
        frozenset(manifest.states),
        about.get("lineage"),
        about.get("code"),
    )
    comparison = compare(plan, stored)
    depths = _depths(plan, manifest, comparison.keep)
    where = f"{plan.name!r} from checkpoint {manifest.number}"
    if comparison.is_straight:
        if comparison.dropped:
            _LOG.info("resuming %s: not needed any more: %s", where, ", ".join(comparison.dropped))
        needed = {name for node in plan.nodes for name in states_of(node)}
        is_same = all(new == old for new, old in comparison.keep.items())
        if needed == stored.states and is_same and not depths:
            return Continuation.STRAIGHT, None
        return Continuation.STRAIGHT, Resume(
            stored.epoch, comparison.keep, number=manifest.number, depths=depths
        )
    if not rebuild and not (comparison.only_left_out and _is_possible(comparison)):
        raise _incompatible(where, comparison, whole)
    routes = comparison.routes
    if _is_possible(comparison):
        _LOG.info("resuming %s: built anew: %s", where, ", ".join(comparison.rebuild))
        return Continuation.BACKFILL, Resume(
            stored.epoch - 1, comparison.keep, routes, manifest.number, depths
        )
    if whole:
        _LOG.info("resuming %s: all epochs are done again", where)
        return Continuation.REPLAY, None
    raise _not_rebuildable(where, comparison)


def _is_possible(comparison: Comparison) -> bool:
    """Whether all states can be built from what is kept."""
    return not comparison.routes.inputs and not comparison.routes.stuck


def _depths(plan: Plan, manifest: Manifest, keep: Mapping[str, str]) -> dict[str, int]:
    """The kept states whose times have another depth in the plan than in a checkpoint, each with its depth now."""
    depths = {}
    for node in plan.nodes:
        for name in states_of(node):
            shares = manifest.states[keep[name]] if name in keep else ()
            if any(len(time) != node.depth for share in shares for time in share.upper):
                depths[name] = node.depth
    return depths


def _incompatible(where: str, comparison: Comparison, whole: bool) -> CheckpointError:
    routes = comparison.routes
    if _is_possible(comparison):
        hint = "run with rebuild=True: what is kept is taken from the checkpoint, and the rest is built anew from it"
    elif whole:
        hint = (
            "where inputs have the columns and types that they had, run with rebuild=True: the log has all epochs, and "
            f"all are done again. Where they have others, that would not do. {_OTHERWISE}"
        )
    else:
        hint = f"rebuild=True would not do: {_missing(routes)}. {_OTHERWISE}"
    return CheckpointError(
        "checkpoint.incompatible",
        f"cannot resume {where}: it is of another program:\n{comparison}",
        hint=hint,
        differ=[difference.name for difference in comparison.differences],
        keep=sorted(comparison.keep),
        rebuild=sorted(comparison.rebuild),
    )


_OTHERWISE = (
    "Run the program that wrote it; or use another path, and insert all rows again. From the start, "
    "keep_inputs=True has the log keep all rows, and an input that is keyed or arranged keeps what is in it"
)


def _not_rebuildable(where: str, comparison: Comparison) -> CheckpointError:
    return CheckpointError(
        "checkpoint.not_rebuildable",
        f"cannot rebuild {where}: {_missing(comparison.routes)}; it is of another program:\n{comparison}",
        hint=_OTHERWISE,
        differ=[difference.name for difference in comparison.differences],
        keep=sorted(comparison.keep),
        rebuild=sorted(comparison.rebuild),
        inputs=list(comparison.routes.inputs),
        stuck=[name for name, _ in comparison.routes.stuck],
    )


def not_rebuilt(error: RiverrunError) -> CheckpointError:
    """The error of a run that failed while it built states anew."""
    wrapped = CheckpointError(
        "checkpoint.not_rebuilt",
        f"cannot build anew what the checkpoint does not have: {error.message}",
        hint="nothing is lost: mend what fails and run again, or run the program that wrote the checkpoint",
    )
    wrapped.__cause__ = error
    return wrapped


def _missing(routes: BackfillRoutes) -> str:
    reasons = []
    if routes.inputs:
        names = ", ".join(map(repr, routes.inputs))
        reasons.append(
            f"all rows of the input{'s' * (len(routes.inputs) > 1)} {names} are needed, and "
        )
        reasons[-1] += "the log does not have them any more"
    reasons += [f"{name!r} cannot be built from what is kept: {why}" for name, why in routes.stuck]
    return "; ".join(reasons)
