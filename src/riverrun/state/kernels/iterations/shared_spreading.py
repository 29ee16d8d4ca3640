"""Shared spreading: values that spread along edges where each worker has the keys of its own hashes.

`operators.iterations.shared_spreading` calls these kernels, and says how workers work together. The arrays are those of
`spreading`, and `links`. A worker has a slot for each of its own keys, and for each key of another worker that one of
its edges leads to: an *outpost*. The value of an outpost is the best message to that key from this worker; where it
changes, a letter goes to the worker that owns the key (`OUTBOX`). Laws:

- **Parents.** A value that is no start value has a *parent*: the slot or the worker whose message it is. Parents lead
  to a start value, and never in a circle.
- **Lost with its parent.** A value is lost exactly when its start row or its edge from the parent is gone, or when the
  value of the parent is lost; by the closure rule, when it could be reached from what is lost.

Why parents never lead in a circle: a value takes a parent only when it becomes better. Where messages are no better
than values, or different values have different messages, the last value on a circle to become better would have made
the next one better once more. Elsewhere the closure rule is used, which asks for no parents.
"""

from __future__ import annotations

import numpy as np

from riverrun.state.kernels.compiling import kernel
from riverrun.state.kernels.iterations.cells import (
    BUCKET,
    CURRENT,
    HOPS,
    NEXT,
    OLD_START,
    OLD_START_RANK,
    RANK,
    START_RANK,
    START_VALUE,
    STATE,
    TOUCHED,
    UPDATES,
)
from riverrun.state.kernels.iterations.edges import COUNT, IN, OUT, PLACE, SOURCE, START, TARGET
from riverrun.state.kernels.iterations.messages import CLOSED, COPY, NULL, VALUE, WORST, apply
from riverrun.state.kernels.iterations.spreading import (
    CLOSURE,
    CONSTANT,
    DIVERGES,
    DONE,
    FLIP,
    FORM,
    GONE,
    HIGH,
    LOW,
    LOWEST,
    MESSAGES,
    MOST_HOPS,
    OPERATION,
    OTHER,
    PATIENCE,
    QUEUED,
    ROUNDS,
    RULE,
    SLOT,
    SUPERSTEP,
    TRIMMED,
    WEIGHT,
    doubt,
    enter,
    equals_message,
    is_start,
    queue_of,
    reset,
    sends,
    touch,
)
from riverrun.state.kernels.iterations.spreading import HEAD as FIRST
from riverrun.state.kernels.iterations.spreading import TAIL as LAST

# Rows of `links`: int32 by slot.
PARENT = 0  # the slot of the parent; NO_PARENT; or OUTSIDE less the number of a worker
OWNER = 1  # the worker that owns the key
HEARD = 2  # one bit for each worker that sent a value, by its number modulo MASKS
LINK_FIELDS = 3

NO_PARENT = -1
OUTSIDE = -2
MASKS = 31

# Kinds of letters. The first two are the ranks VALUE and NULL.
LOST = 2  # the value that was sent is lost
REACHED = 3  # by the closure rule: what was lost leads here
ASK = 4  # send the value again
NEWS = 5  # of a worker, for workers: how many slots there are at the most, and whether the closure rule holds

# Rows of `scratch`, besides those of `spreading`.
LOST_SLOTS = 1
OUTBOX = 2

# Fields of `report`, besides those of `spreading`.
SENT = 12  # slots in the outbox
SHARED_REPORT_FIELDS = 13


@kernel
def post(slot: int, cells: np.ndarray, scratch: np.ndarray, report: np.ndarray) -> None:
    """Put an outpost into the outbox."""
    if cells[BUCKET, slot] < 0:
        cells[BUCKET, slot] = 0
        scratch[OUTBOX, report[SENT]] = slot
        report[SENT] += 1


@kernel
def wake(
    slot: int, own: int, words: np.ndarray, cells: np.ndarray, links: np.ndarray, queues: np.ndarray,
    scratch: np.ndarray, how: np.ndarray, report: np.ndarray,
) -> None:  # fmt: skip
    """Have a slot with a new value send it on."""
    if links[OWNER, slot] != own:
        post(slot, cells, scratch, report)
    elif how[SUPERSTEP] == 0:
        enter(slot, words, cells, queues, how, report)
    elif cells[BUCKET, slot] < 0:
        append(slot, report[LOWEST], cells, queues)
        report[QUEUED] += 1


@kernel
def append(slot: int, queue: int, cells: np.ndarray, queues: np.ndarray) -> None:
    cells[BUCKET, slot] = queue
    cells[NEXT, slot] = -1
    tail = queues[LAST, queue]
    if tail >= 0:
        cells[NEXT, tail] = slot
    else:
        queues[FIRST, queue] = slot
    queues[LAST, queue] = slot


@kernel
def lose_value(
    slot: int, words: np.ndarray, flags: np.ndarray, links: np.ndarray, scratch: np.ndarray, report: np.ndarray
) -> None:  # fmt: skip
    """Mark a slot whose value has lost its parent; but a start value needs none."""
    if is_start(slot, words, flags):
        links[PARENT, slot] = NO_PARENT
        return
    flags[STATE, slot] = GONE
    scratch[LOST_SLOTS, report[TRIMMED]] = slot
    report[TRIMMED] += 1


@kernel
def lose(
    words: np.ndarray, flags: np.ndarray, lists: np.ndarray, ends: np.ndarray, weights: np.ndarray,
    links: np.ndarray, started: np.ndarray, gone: np.ndarray, heard: np.ndarray, kinds: np.ndarray,
    senders: np.ndarray, scratch: np.ndarray, how: np.ndarray, report: np.ndarray,
) -> None:  # fmt: skip
    """Find the values that are lost as start values differ, as edges are gone, and by what was heard.

    Slots that are lost are added to LOST_SLOTS, and counted in TRIMMED. Values stay as they are.
    """
    closure = how[RULE] == CLOSURE
    weighted = weights.shape[1] > 0
    done = report[TRIMMED]
    for at in range(started.shape[0]):
        slot = np.int64(started[at])
        rank, start_rank = flags[RANK, slot], flags[START_RANK, slot]
        if flags[STATE, slot] != 0:
            continue
        if rank == CLOSED or start_rank == CLOSED:
            if rank != start_rank:
                flags[STATE, slot] = GONE
                scratch[LOST_SLOTS, report[TRIMMED]] = slot
                report[TRIMMED] += 1
            continue
        old, old_rank = words[OLD_START, slot], flags[OLD_START_RANK, slot]
        start = words[START_VALUE, slot]
        worse = start > old or (start == old and start_rank > old_rank)
        if worse and sends(rank) and (closure or links[PARENT, slot] == NO_PARENT):
            lose_value(slot, words, flags, links, scratch, report)
    for at in range(gone.shape[0]):
        source, target, weight = gone[at, 0], gone[at, 1], gone[at, 2]
        null = target < 0
        if null:
            target = ~target
        if not weighted:
            weight = how[CONSTANT]
        if flags[STATE, target] != 0 or not sends(flags[RANK, target]):
            continue
        if not sends(flags[RANK, source]):
            continue
        if closure or (
            links[PARENT, target] == source
            and equals_message(source, target, null, weight, words, flags, how)
        ):
            lose_value(target, words, flags, links, scratch, report)
    for at in range(heard.shape[0]):
        slot = np.int64(heard[at])
        if flags[STATE, slot] != 0 or not sends(flags[RANK, slot]):
            continue
        if kinds[at] == REACHED or links[PARENT, slot] == OUTSIDE - senders[at]:
            lose_value(slot, words, flags, links, scratch, report)
    while done < report[TRIMMED]:
        slot = np.int64(scratch[LOST_SLOTS, done])
        done += 1
        if not sends(flags[RANK, slot]):
            continue
        start = lists[OUT, START, slot]
        for at in range(start, start + lists[OUT, COUNT, slot]):
            target = np.int64(ends[OUT, at])
            if target < 0:
                target = ~target
            if flags[STATE, target] != 0 or not sends(flags[RANK, target]):
                continue
            if closure or links[PARENT, target] == slot:
                lose_value(target, words, flags, links, scratch, report)


@kernel
def offer(
    source: int, target: int, null: bool, weight: int, words: np.ndarray, cells: np.ndarray, flags: np.ndarray,
    links: np.ndarray, scratch: np.ndarray, how: np.ndarray, report: np.ndarray,
) -> bool:  # fmt: skip
    """Send one message along an edge of this worker: whether it became the value of `target`."""
    word, rank = np.int64(WORST), np.int64(NULL)
    if not null and flags[RANK, source] == VALUE:
        rank = np.int64(VALUE)
        fits, word = apply(
            how[OPERATION],
            how[FORM],
            how[FLIP],
            how[LOW],
            how[HIGH],
            words[CURRENT, source],
            weight,
        )
        if not fits:
            doubt(source, flags, scratch, report)
            return False
    current = words[CURRENT, target]
    if word > current or (word == current and (word != WORST or rank >= flags[RANK, target])):
        return False
    touch(target, words, cells, flags, scratch, report)
    words[CURRENT, target], flags[RANK, target] = word, rank
    links[PARENT, target] = source
    return True


@kernel
def put_start(
    slot: int, words: np.ndarray, cells: np.ndarray, flags: np.ndarray, links: np.ndarray, scratch: np.ndarray,
    report: np.ndarray,
) -> None:  # fmt: skip
    """Give a slot its start value."""
    reset(slot, words, cells, flags, scratch, report)
    links[PARENT, slot] = NO_PARENT


@kernel
def turn(
    own: int, anew: bool, words: np.ndarray, cells: np.ndarray, flags: np.ndarray, lists: np.ndarray,
    ends: np.ndarray, weights: np.ndarray, edges: np.ndarray, edge_weights: np.ndarray, links: np.ndarray,
    started: np.ndarray, fresh: np.ndarray, queues: np.ndarray, scratch: np.ndarray, how: np.ndarray,
    report: np.ndarray,
) -> None:  # fmt: skip
    """Bring what is lost back to start values, and have everything sent that is new. `anew`: there is no value yet."""
    if anew:
        for at in range(started.shape[0]):
            slot = np.int64(started[at])
            put_start(slot, words, cells, flags, links, scratch, report)
            if sends(flags[RANK, slot]):
                wake(slot, own, words, cells, links, queues, scratch, how, report)
        return
    weighted = weights.shape[1] > 0
    weight = how[CONSTANT]
    lost = scratch[LOST_SLOTS]
    total = report[TRIMMED]
    for at in range(total):
        put_start(np.int64(lost[at]), words, cells, flags, links, scratch, report)
        flags[STATE, lost[at]] = 0
    for at in range(total):
        slot = np.int64(lost[at])
        if flags[RANK, slot] == CLOSED:
            continue
        begin, length = lists[IN, START, slot], lists[IN, COUNT, slot]
        for place in range(begin, begin + length):
            source = np.int64(ends[IN, place])
            null = source < 0
            if null:
                source = ~source
            if sends(flags[RANK, source]):
                if weighted:
                    weight = weights[IN, place]
                offer(source, slot, null, weight, words, cells, flags, links, scratch, how, report)
        report[MESSAGES] += length
    for at in range(total):
        slot = np.int64(lost[at])
        if sends(flags[RANK, slot]):
            wake(slot, own, words, cells, links, queues, scratch, how, report)
    for at in range(started.shape[0]):
        slot = np.int64(started[at])
        start, rank = words[START_VALUE, slot], flags[START_RANK, slot]
        current = words[CURRENT, slot]
        if start < current or (start == current and rank < flags[RANK, slot]):
            put_start(slot, words, cells, flags, links, scratch, report)
            wake(slot, own, words, cells, links, queues, scratch, how, report)
    weighted = edge_weights.shape[0] > 0
    weight = how[CONSTANT]
    for at in range(fresh.shape[0]):
        edge = np.int64(fresh[at])
        source, target = np.int64(edges[SOURCE, edge]), np.int64(edges[TARGET, edge])
        if source < 0 or edges[PLACE, edge] < 0 or not sends(flags[RANK, source]):
            continue
        null = target < 0
        if null:
            target = ~target
        if weighted:
            weight = edge_weights[edge]
        report[MESSAGES] += 1
        if offer(source, target, null, weight, words, cells, flags, links, scratch, how, report):
            wake(target, own, words, cells, links, queues, scratch, how, report)


@kernel
def hear(
    own: int, slots: np.ndarray, kinds: np.ndarray, senders: np.ndarray, row_words: np.ndarray,
    row_hops: np.ndarray, words: np.ndarray, cells: np.ndarray, flags: np.ndarray, links: np.ndarray,
    queues: np.ndarray, scratch: np.ndarray, how: np.ndarray, report: np.ndarray,
) -> int:  # fmt: skip
    """Take the values that other workers sent, and the questions for values; the number of values that were taken, or
    -1 where one goes on getting better."""
    taken = 0
    for at in range(slots.shape[0]):
        slot, kind = np.int64(slots[at]), np.int64(kinds[at])
        if kind == ASK:
            if links[OWNER, slot] != own and sends(flags[RANK, slot]):
                post(slot, cells, scratch, report)
            continue
        links[HEARD, slot] |= np.int64(1) << (senders[at] % MASKS)
        word, current = row_words[at], words[CURRENT, slot]
        if word > current or (word == current and (word != WORST or kind >= flags[RANK, slot])):
            continue
        touch(slot, words, cells, flags, scratch, report)
        words[CURRENT, slot], flags[RANK, slot] = word, kind
        links[PARENT, slot] = OUTSIDE - senders[at]
        cells[UPDATES, slot] += 1
        cells[HOPS, slot] = row_hops[at]
        taken += 1
        if cells[UPDATES, slot] > how[PATIENCE] or row_hops[at] > how[MOST_HOPS]:
            report[SLOT] = report[OTHER] = slot
            return -1
        wake(slot, own, words, cells, links, queues, scratch, how, report)
    return taken


@kernel
def work(
    own: int, quantum: int, words: np.ndarray, cells: np.ndarray, flags: np.ndarray, lists: np.ndarray,
    ends: np.ndarray, weights: np.ndarray, links: np.ndarray, queues: np.ndarray, scratch: np.ndarray,
    how: np.ndarray, report: np.ndarray,
) -> int:  # fmt: skip
    """Have slots in the queues send messages: about `quantum` slots, best first, or those of one round; the status."""
    operation, form, flip = how[OPERATION], how[FORM], how[FLIP]
    low, high, patience, superstep = how[LOW], how[HIGH], how[PATIENCE], how[SUPERSTEP] != 0
    current, ranks = words[CURRENT], flags[RANK]
    buckets, following = cells[BUCKET], cells[NEXT]
    updates, hops, most_hops = cells[UPDATES], cells[HOPS], how[MOST_HOPS]
    heads, tails = queues[FIRST], queues[LAST]
    starts, lengths, targets = lists[OUT, START], lists[OUT, COUNT], ends[OUT]
    target_weights, parents, owners = weights[OUT], links[PARENT], links[OWNER]
    weighted = weights.shape[1] > 0
    weight = how[CONSTANT]
    queue, queued = report[LOWEST], report[QUEUED]
    messages, done = np.int64(0), np.int64(0)
    while queued > 0 and done < quantum:
        slot = np.int64(heads[queue])
        if slot < 0:
            if superstep:
                break
            queue += 1
            continue
        queued -= 1
        done += 1
        heads[queue] = following[slot]
        if heads[queue] < 0:
            tails[queue] = -1
        buckets[slot] = -1
        word, rank = current[slot], np.int64(ranks[slot])
        hop = np.int64(hops[slot]) + 1
        start, stop = starts[slot], starts[slot] + lengths[slot]
        messages += stop - start
        same = operation == COPY or rank == NULL
        for at in range(start, stop):
            target = np.int64(targets[at])
            message, message_rank = word, rank
            if not same or target < 0:
                if target < 0:
                    target = ~target
                    message, message_rank = np.int64(WORST), np.int64(NULL)
                else:
                    if weighted:
                        weight = target_weights[at]
                    fits, message = apply(operation, form, flip, low, high, word, weight)
                    if not fits:
                        doubt(slot, flags, scratch, report)
                        continue
            if message > current[target] or (
                message == current[target] and (message != WORST or message_rank >= ranks[target])
            ):
                continue
            touch(target, words, cells, flags, scratch, report)
            current[target], ranks[target], parents[target] = message, message_rank, slot
            updates[target] += 1
            hops[target] = hop
            if updates[target] > patience or hop > most_hops:
                report[SLOT], report[OTHER], report[WEIGHT] = target, slot, weight
                report[MESSAGES] += messages
                return DIVERGES
            if owners[target] != own:
                post(target, cells, scratch, report)
            elif buckets[target] < 0:
                other = 1 - queue if superstep else queue_of(message, form)
                queued += 1
                append(target, other, cells, queues)
                if not superstep and other < queue:
                    queue = other
    if superstep:
        queue = 1 - queue
    report[LOWEST], report[QUEUED] = queue, queued
    report[MESSAGES] += messages
    report[ROUNDS] += 1
    return DONE


@kernel
def empty_outbox(
    words: np.ndarray, cells: np.ndarray, flags: np.ndarray, scratch: np.ndarray, slots: np.ndarray,
    row_words: np.ndarray, row_kinds: np.ndarray, row_hops: np.ndarray, report: np.ndarray,
) -> None:  # fmt: skip
    """Write the letters of the outposts in the outbox, which is empty then."""
    for at in range(report[SENT]):
        slot = np.int64(scratch[OUTBOX, at])
        cells[BUCKET, slot] = -1
        slots[at], row_words[at] = slot, words[CURRENT, slot]
        row_kinds[at] = flags[RANK, slot]
        row_hops[at] = cells[HOPS, slot] if flags[TOUCHED, slot] != 0 else 0
    report[SENT] = 0
