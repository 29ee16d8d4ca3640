"""What supersteps did, by round, against a run in plain Python; and that all of an epoch is in its rounds."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest

from riverrun.operators.iterations.spreading import Message, Spreading
from riverrun.plan.loop_figures import MOST
from riverrun.state.kernels.iterations import spreading as kernels
from tests.soaking import seeds


def spreading(order, edges, nodes):
    """Labels that spread along edges, from each node its own."""
    made = Spreading([pa.int64()], pa.int64(), Message("copy"), order=order)
    labels = pa.array(np.asarray(nodes, np.int64))
    made.change_solution([labels], labels, np.ones(len(nodes), np.int64))
    change(made, edges, 1)
    return made


def change(made, edges, diff):
    sources, targets = np.array(edges, np.int64).reshape(-1, 2).T
    made.change_edges(
        [pa.array(sources)], [pa.array(targets)], None, np.full(len(edges), diff, np.int64)
    )


def in_rounds(edges, nodes):
    """For each round, how many nodes sent, and how many messages: in each round those send that changed before it.

    A node takes a message at once, and sends in its turn what it has then.
    """
    out = {node: [] for node in nodes}
    for source, target in edges:
        out[source].append(target)
    labels, senders, rounds = {node: node for node in nodes}, list(nodes), []
    while senders:
        rounds.append((len(senders), sum(len(out[node]) for node in senders)))
        waiting, following = dict.fromkeys(senders), {}
        for node in senders:
            del waiting[node]
            for target in out[node]:
                if labels[node] < labels[target]:
                    labels[target] = labels[node]
                    if target not in waiting:
                        following[target] = None
        senders = list(following)
    return rounds


def told(settled):
    return [(each.touched, each.messages) for each in settled.history]


@pytest.mark.drawn
@pytest.mark.parametrize("seed", seeds(8, soak=300))
def test_supersteps_tell_who_sent_and_how_much(seed):
    draw = random.Random(seed)
    nodes = list(range(draw.choice([3, 10, 60])))
    edges = [
        (draw.choice(nodes), draw.choice(nodes)) for _ in range(draw.choice([1, 2, 4]) * len(nodes))
    ]
    edges = list(dict.fromkeys(edges))
    made = spreading("superstep", edges, nodes)
    settled = made.converge()
    assert [each.at for each in settled.history] == [(at,) for at in range(settled.rounds)]
    assert sum(each.messages for each in settled.history) == settled.messages
    # All are put into the queue for what they have at the start; new edges send besides.
    expected = in_rounds(edges, nodes)
    assert [touched for touched, _ in told(settled)] == [touched for touched, _ in expected]
    assert told(settled)[1:] == expected[1:]
    assert all(each.seconds >= 0 for each in settled.history)
    gone = draw.sample(edges, len(edges) // 3)
    change(made, gone, -1)
    settled = made.converge()
    assert sum(each.messages for each in settled.history) == settled.messages
    assert all(each.rounds in (0, 1) for each in settled.history)


def test_work_in_order_of_values_is_one_row():
    made = spreading("best", [(0, 1), (1, 2)], [0, 1, 2])
    (whole,) = made.converge().history
    assert (whole.at, whole.rounds, whole.touched) == ((), 0, 3)
    assert whole.messages >= 2
    assert whole.seconds > 0
    assert made.converge().history == ()  # nothing to do


def test_a_step_that_changes_nothing_has_no_round():
    made = spreading("superstep", [(0, 1), (1, 2)], [0, 1, 2])
    made.converge()
    change(made, [(0, 2)], 1)
    (tried,) = made.converge().history
    assert (tried.at, tried.rounds, tried.touched, tried.messages) == ((), 0, 0, 1)


def test_rounds_go_on_after_pauses():
    """More messages than there are between two pauses, in few rounds; and more rounds, with few messages."""
    draw = np.random.default_rng(3)
    nodes = np.arange(30_000)
    edges = draw.integers(0, len(nodes), (200_000, 2))
    fast, slow = (spreading(order, edges, nodes).converge() for order in ("best", "superstep"))
    assert slow.messages > 2 * kernels.PAUSE
    assert fast.rows() == slow.rows()
    assert len(slow.history) == slow.rounds > 3
    assert sum(each.messages for each in slow.history) == slow.messages
    assert all(each.touched for each in slow.history)

    length = MOST + 500
    path = spreading("superstep", [(at + 1, at) for at in range(length)], range(length + 1))
    path.converge()
    change(path, [(0, length)], 1)  # the least label goes around, one step in each round
    settled = path.converge()
    assert settled.rounds == length
    *single, later = settled.history
    assert [(each.touched, each.messages) for each in single[1:]] == [(1, 1)] * (MOST - 1)
    assert (later.at, later.rounds, later.touched) == ((), length - MOST, length - MOST)
    assert sum(each.messages for each in settled.history) == settled.messages
