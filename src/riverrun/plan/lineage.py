"""Lineage: for each node of a plan, one *word* for what the node is and for all that leads to it.

A checkpoint stores the words of the program that wrote it. `plan.diff` compares these with the words of the program
that goes on, and finds the states that both programs make. Laws:

- **What a word covers.** The word of a node covers the operator (`Operator.identity`), the columns, and the words of
  the nodes before it, in order. Inside a loop, the word covers the loop as seen from the node, round before round.
  Nodes at which all rows pass unchanged (probes, inspections) are left out.
- **As written.** The words are those of the program as it was written (`Plan.written`), whatever the optimizer made of
  it. A node that the optimizer moved has the word that it would have, had it been written in its new place.
- **No names.** A word contains no names but those that users know inputs and outputs by. So nodes that give the same in
  two programs have the same word, whatever the nodes are called.

Cost: some ten microseconds for each node; for the nodes of a loop, times the rounds that it takes to tell them apart.
The words of a plan are worked out once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, MutableMapping, Sequence
from weakref import WeakKeyDictionary

from riverrun.plan.plan import FROM, Plan, Port

_KNOWN: MutableMapping[Plan, Mapping[str, str]] = WeakKeyDictionary()
"""The words of plans, as long as the plans live."""


def lineage_of(plan: Plan) -> Mapping[str, str]:
    """For each node, by name, its word (the law *what a word covers*)."""
    if plan not in _KNOWN:
        _KNOWN[plan] = _words_of(plan) if plan.written is None else _words_as_written(plan)
    return _KNOWN[plan]


def _words_as_written(plan: Plan) -> dict[str, str]:
    """The words of the plan as it was written, and of the nodes that were made since (*as written*)."""
    assert plan.written is not None
    words = dict(lineage_of(plan.written))
    for node in plan.nodes:
        if node.written is not None:
            own = without_sources(plan.fingerprint[node.written])
            by_number = {port.node: words[plan.nodes[port.node].name] for port in node.inputs}
            words[node.name] = _word(own, node.inputs, by_number)
    return words


def without_sources(text: str) -> str:
    """The part of a node's fingerprint that is about the node itself, without the names of the nodes it takes from."""
    return text.rsplit(FROM, 1)[0]


def _words_of(plan: Plan) -> dict[str, str]:
    words: dict[int, str] = {}
    own = {node.number: without_sources(plan.fingerprint[node.name]) for node in plan.nodes}
    passed: dict[Port, Port] = {}
    sources = {
        node.number: [_passed(plan, port, passed) for port in node.inputs] for node in plan.nodes
    }
    for together in plan.cycles:
        at = together[0]
        if len(together) > 1 or any(port.node == at for port in sources[at]):
            words |= _words_around(plan, together, own, sources, words)
        else:
            words[at] = _word(own[at], sources[at], words)
    return {node.name: words[node.number] for node in plan.nodes}


def _word(own: str, sources: Sequence[Port], words: Mapping[int, str]) -> str:
    froms = [f"{words[port.node]}.{port.output}" for port in sources]
    return hashlib.sha256(f"{own}{FROM}{froms}".encode()).hexdigest()[:16]


def _words_around(
    plan: Plan,
    together: Sequence[int],
    own: Mapping[int, str],
    sources: Mapping[int, Sequence[Port]],
    outside: Mapping[int, str],
) -> dict[int, str]:
    """The words of nodes that lead to each other, around the feedbacks of loops.

    The word of each node is made of what the node is and of the words of the nodes that lead to it. This is repeated,
    each time looking one round of the loop further back, until a repetition tells no more nodes apart than the one
    before. *Why that is enough:* take two nodes, of two programs in which the same words occur, whose words agree then.
    The nodes before them agree in their words as well, and so do those before these. So both give the same in every
    round.
    """
    inside = set(together)
    back = {at for at in together if plan.nodes[at].operator.is_feedback}
    order, done = [at for at in together if at in back], set(back)
    for start in together:
        waiting = [start]
        while waiting:
            at = waiting[-1]
            missing = [
                port.node
                for port in sources[at]
                if port.node in inside and port.node not in done and at not in done
            ]
            if missing:
                waiting += missing
                continue
            waiting.pop()
            if at not in done:
                done.add(at)
                order.append(at)
    last_words: Mapping[int, str] = dict.fromkeys(inside, "around")
    distinct = 0
    while True:
        words: dict[int, str] = {}
        before = _Either(outside, last_words)
        now = _Either(outside, words)
        for at in order:
            words[at] = _word(own[at], sources[at], before if at in back else now)
        last_words = words
        if len(set(words.values())) == distinct:
            break
        distinct = len(set(words.values()))
    around = hashlib.sha256(" ".join(sorted(set(words.values()))).encode()).hexdigest()[:16]
    return {
        at: hashlib.sha256(f"{word} {around}".encode()).hexdigest()[:16]
        for at, word in words.items()
    }


class _Either(dict[int, str]):
    """Two mappings of words as one, without copying them; `inside` is asked first."""

    def __init__(self, outside: Mapping[int, str], inside: Mapping[int, str]) -> None:
        super().__init__()
        self._outside, self._inside = outside, inside

    def __missing__(self, at: int) -> str:
        return self._inside[at] if at in self._inside else self._outside[at]


def _passed(plan: Plan, port: Port, known: dict[Port, Port]) -> Port:
    """The port that rows come from, behind all nodes at which all rows pass unchanged. `known` caches the answers."""
    way = []
    while port not in known and plan.nodes[port.node].operator.passes_all:
        way.append(port)
        (port,) = plan.nodes[port.node].inputs
    port = known.get(port, port)
    known.update(dict.fromkeys(way, port))
    return port
