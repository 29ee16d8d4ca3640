"""Sources: where rows come in.

The engine feeds an input with the rows of an epoch; the input sends them on at once and keeps nothing. One input is
fed by the engine itself: the clock (`CLOCK`), which has a row for each epoch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from riverrun.plan.operator import Actor, Context, Operator, Role
from riverrun.state.changes import Changes

CLOCK = "__clock__"
"""The name of the clock: an input with a row for each epoch, which users do not feed."""


@dataclass(frozen=True)
class Input(Operator):
    """Where rows come in. `key` names the columns by which they are upserted, if any."""

    name: str
    key: tuple[str, ...] = ()
    kind: ClassVar[str] = "input"

    @property
    def role(self) -> Role:  # type: ignore[override]
        return Role.CLOCK if self.name == CLOCK else Role.INPUT

    @property
    def public_name(self) -> str:
        return self.name

    @property
    def upsert_key(self) -> tuple[str, ...]:
        return self.key

    def describe(self) -> str:
        return f"input {self.name!r}" + (f" keyed by {', '.join(self.key)}" if self.key else "")

    @property
    def from_content(self) -> bool:
        return self.name != CLOCK

    def start(self, context: Context) -> Source:
        return Source(context)


class Source(Actor):
    """An input on a worker: sends on at once the rows with which it is fed."""

    def feed(self, changes: Changes) -> None:
        self.context.push(changes, 0)
