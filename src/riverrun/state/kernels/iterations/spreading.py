"""Spreading: values go along edges until no message is better than the value of the key that it reaches.

`operators.iterations.spreading` calls `settle` once an epoch, and says what is computed. The steps of an epoch:

1. *Trim.* Values that lost what they were made of are found, by one of the rules below.
2. *Reset.* These slots go back to their start values, and pull what the sources of their edges offer.
3. *Spread.* Slots whose value has changed send messages, in the order of queues.
4. *Doubts.* A message that did not fit its type counts only if the last value of its source still has it.

Rules of trimming. In each, a slot is *supported* if its value is its start value, or the message of a source that
precedes it, is not trimmed, and is equal to its value.

- `BY_VALUE`, where no message is better than the value that it is made of: *precedes* is a better value, or the same
  value with less depth.
- `BY_DEPTH`, where different values have different messages: *precedes* is less depth.
- `CLOSURE`: everything that can be reached from what was lost is trimmed, except for slots that have their start value.

Why: by the first two rules every value that is kept has a chain of supports that ends at a start value, since
*precedes* has no cycles. That every value has a support to begin with is the *support* law of `operators.iterations`.
By the third rule, what is kept never depended on what was lost.
"""

from __future__ import annotations

import numpy as np

from riverrun.state.kernels.compiling import kernel
from riverrun.state.kernels.iterations.cells import (
    BUCKET,
    CURRENT,
    DEPTH,
    DOUBTED,
    HOPS,
    NEXT,
    OLD,
    OLD_DEPTH,
    OLD_RANK,
    OLD_START,
    OLD_START_RANK,
    RANK,
    START_RANK,
    START_VALUE,
    STARTED,
    STATE,
    TOUCHED,
    UPDATES,
)
from riverrun.state.kernels.iterations.edges import COUNT, IN, OUT, PLACE, SOURCE, START, TARGET
from riverrun.state.kernels.iterations.messages import (
    CLOSED,
    COPY,
    DOUBLE,
    NULL,
    VALUE,
    WORST,
    apply,
)

# Fields of `how`.
OPERATION = 0
FORM = 1
FLIP = 2
LOW = 3
HIGH = 4
CONSTANT = 5  # the weight of every edge, where edges have none
RULE = 6
RESTART = 7  # 1: forget all values, and begin at the start values
SUPERSTEP = 8  # 1: in order of arrival, round by round; 0: best first
PATIENCE = 9
SLOTS = 10
MOST_HOPS = 11  # a value that is more messages of this epoch away went around a cycle without end
HOW_FIELDS = 12

BY_VALUE = 0
BY_DEPTH = 1
CLOSURE = 2

# Fields of `report`.
STATUS = 0
SLOT = 1  # what a bad status is about
OTHER = 2
WEIGHT = 3
TOUCHES = 4  # slots in the row TOUCHED_SLOTS of `scratch`
MESSAGES = 5
TRIMMED = 6
DEEPEST = 7  # the greatest depth that a value has got
ROUNDS = 8
DOUBTS = 9
LOWEST = 10  # the first queue that may have slots
QUEUED = 11  # slots in queues
REPORT_FIELDS = 12

DONE = 0
DIVERGES = 1
DOES_NOT_FIT = 2
PAUSED = 3  # between two rounds; the next call goes on

# Rows of `history`: int64 by round of a call.
SENDERS = 0
SENT = 1
HISTORY_FIELDS = 2
PAUSE = (
    1 << 16
)  # messages after which the end of a round is a pause, so that the caller can look at the clock

# Rows of `scratch`: int32, as many as slots.
TOUCHED_SLOTS = 0
TRIMMED_SLOTS = 1
HEAP = 2
SUSPECTS = 3
DOUBTED_SLOTS = 4
STARTED_SLOTS = 5
SCRATCH_FIELDS = 6

# States of trimming.
SUSPECT = 1
FORCED = 2
GONE = 3

# Rows of `queues`: int32 by queue.
HEAD = 0
TAIL = 1
QUEUES = 8192  # by sign and exponent of a double, and one bit more


@kernel
def touch(
    slot: int, words: np.ndarray, cells: np.ndarray, flags: np.ndarray, scratch: np.ndarray, report: np.ndarray
) -> None:  # fmt: skip
    """Keep the value that a slot has had in the last epoch."""
    if flags[TOUCHED, slot] == 0:
        flags[TOUCHED, slot] = 1
        words[OLD, slot] = words[CURRENT, slot]
        flags[OLD_RANK, slot] = flags[RANK, slot]
        cells[OLD_DEPTH, slot] = cells[DEPTH, slot]
        cells[HOPS, slot] = cells[UPDATES, slot] = 0
        scratch[TOUCHED_SLOTS, report[TOUCHES]] = slot
        report[TOUCHES] += 1


@kernel
def queue_of(word: int, form: int) -> int:
    """The queue for a value: by its number of bits, or the exponent of a double. Better values are not in later
    queues."""
    if form >= DOUBLE:
        return (word >> 51) + 4096
    size, rest = 0, word if word >= 0 else ~word
    while rest > 0:
        rest >>= 1
        size += 1
    return 64 + size if word >= 0 else 64 - size


@kernel
def enqueue(
    slot: int, queue: int, cells: np.ndarray, queues: np.ndarray, report: np.ndarray
) -> None:
    if cells[BUCKET, slot] >= 0:
        return
    cells[BUCKET, slot] = queue
    cells[NEXT, slot] = -1
    tail = queues[TAIL, queue]
    if tail >= 0:
        cells[NEXT, tail] = slot
    else:
        queues[HEAD, queue] = slot
    queues[TAIL, queue] = slot
    report[QUEUED] += 1
    if queue < report[LOWEST]:
        report[LOWEST] = queue


@kernel
def precedes(
    rule: int, words: np.ndarray, cells: np.ndarray, flags: np.ndarray, a: int, b: int
) -> bool:
    """Whether the value of slot `a` can be what that of slot `b` was made of, by the rule."""
    if flags[RANK, a] != flags[RANK, b]:
        return flags[RANK, a] < flags[RANK, b]
    if rule == BY_VALUE and words[CURRENT, a] != words[CURRENT, b]:
        return words[CURRENT, a] < words[CURRENT, b]
    return cells[DEPTH, a] < cells[DEPTH, b]


@kernel
def push(
    slot: int, size: int, rule: int, words: np.ndarray, cells: np.ndarray, flags: np.ndarray, heap: np.ndarray
) -> int:  # fmt: skip
    """Add a slot to a heap of `size` slots, whose first is preceded by no other; the new size."""
    at = size
    while at > 0:
        parent = (at - 1) >> 1
        if not precedes(rule, words, cells, flags, slot, np.int64(heap[parent])):
            break
        heap[at] = heap[parent]
        at = parent
    heap[at] = slot
    return size + 1


@kernel
def pop(
    size: int, rule: int, words: np.ndarray, cells: np.ndarray, flags: np.ndarray, heap: np.ndarray
) -> int:
    """Take the first slot off a heap of `size` slots."""
    first, last = np.int64(heap[0]), np.int64(heap[size - 1])
    size -= 1
    at = 0
    while True:
        child = 2 * at + 1
        if child >= size:
            break
        if child + 1 < size and precedes(
            rule, words, cells, flags, np.int64(heap[child + 1]), np.int64(heap[child])
        ):
            child += 1
        if not precedes(rule, words, cells, flags, np.int64(heap[child]), last):
            break
        heap[at] = heap[child]
        at = child
    heap[at] = last
    return first


@kernel
def sends(rank: int) -> bool:
    return rank == VALUE or rank == NULL


@kernel
def is_start(slot: int, words: np.ndarray, flags: np.ndarray) -> bool:
    """Whether the value of a slot is its start value."""
    return (
        words[CURRENT, slot] == words[START_VALUE, slot]
        and flags[RANK, slot] == flags[START_RANK, slot]
    )


@kernel
def equals_message(
    source: int,
    target: int,
    null: bool,
    weight: int,
    words: np.ndarray,
    flags: np.ndarray,
    how: np.ndarray,
) -> bool:
    """Whether the value of `target` is the message of `source` along an edge with this weight."""
    rank = flags[RANK, target]
    if null or flags[RANK, source] == NULL:
        return rank == NULL
    if rank != VALUE:
        return False
    fits, word = apply(
        how[OPERATION], how[FORM], how[FLIP], how[LOW], how[HIGH], words[CURRENT, source], weight
    )
    return fits and word == words[CURRENT, target]


@kernel
def is_supported(
    slot: int, words: np.ndarray, cells: np.ndarray, flags: np.ndarray, lists: np.ndarray, ends: np.ndarray,
    weights: np.ndarray, how: np.ndarray,
) -> bool:  # fmt: skip
    """Whether a value is a start value, or the message of a slot that precedes it and is not gone."""
    if is_start(slot, words, flags):
        return True
    weighted = weights.shape[1] > 0
    weight = how[CONSTANT]
    start = lists[IN, START, slot]
    for at in range(start, start + lists[IN, COUNT, slot]):
        source = np.int64(ends[IN, at])
        null = source < 0
        if null:
            source = ~source
        if flags[STATE, source] == GONE or not sends(flags[RANK, source]):
            continue
        if weighted:
            weight = weights[IN, at]
        if equals_message(source, slot, null, weight, words, flags, how) and precedes(
            how[RULE], words, cells, flags, source, slot
        ):
            return True
    return False


@kernel
def trim(
    words: np.ndarray, cells: np.ndarray, flags: np.ndarray, lists: np.ndarray, ends: np.ndarray,
    weights: np.ndarray, started: np.ndarray, gone: np.ndarray, scratch: np.ndarray, how: np.ndarray,
) -> int:  # fmt: skip
    """Write the slots that go back to their start values to TRIMMED_SLOTS; the number of them."""
    rule = how[RULE]
    heap, suspects, trimmed = scratch[HEAP], scratch[SUSPECTS], scratch[TRIMMED_SLOTS]
    weighted = weights.shape[1] > 0
    weight = how[CONSTANT]
    size, count, total = 0, 0, 0
    for at in range(started.shape[0]):
        slot = np.int64(started[at])
        rank, start_rank = flags[RANK, slot], flags[START_RANK, slot]
        if rank == CLOSED or start_rank == CLOSED:
            if rank == start_rank:
                continue
            # What is opened has no messages to take back, what is closed has.
            if rank == CLOSED:
                flags[STATE, slot] = GONE
                trimmed[total] = slot
                total += 1
                continue
            state = FORCED
        else:
            old, old_rank = words[OLD_START, slot], flags[OLD_START_RANK, slot]
            start = words[START_VALUE, slot]
            worse = start > old or (start == old and start_rank > old_rank)
            mattered = rule == CLOSURE or (old == words[CURRENT, slot] and old_rank == rank)
            if not worse or not mattered or not sends(rank) or is_start(slot, words, flags):
                continue
            state = SUSPECT
        flags[STATE, slot] = state
        suspects[count] = slot
        count += 1
        if rule != CLOSURE:
            size = push(slot, size, rule, words, cells, flags, heap)
    for at in range(gone.shape[0]):
        source, target, weight = gone[at, 0], gone[at, 1], gone[at, 2]
        null = target < 0
        if null:
            target = ~target
        if not weighted:
            weight = how[CONSTANT]
        if flags[STATE, target] != 0 or not sends(flags[RANK, target]):
            continue
        if not sends(flags[RANK, source]) or is_start(target, words, flags):
            continue
        if rule != CLOSURE:
            if not precedes(rule, words, cells, flags, source, target):
                continue
            if not equals_message(source, target, null, weight, words, flags, how):
                continue
        flags[STATE, target] = SUSPECT
        suspects[count] = target
        count += 1
        if rule != CLOSURE:
            size = push(target, size, rule, words, cells, flags, heap)
    weight = how[CONSTANT]
    if rule == CLOSURE:
        done = 0
        while done < count:
            slot = np.int64(suspects[done])
            done += 1
            flags[STATE, slot] = GONE
            trimmed[total] = slot
            total += 1
            start = lists[OUT, START, slot]
            for at in range(start, start + lists[OUT, COUNT, slot]):
                target = np.int64(ends[OUT, at])
                if target < 0:
                    target = ~target
                if (
                    flags[STATE, target] == 0
                    and sends(flags[RANK, target])
                    and not is_start(target, words, flags)
                ):
                    flags[STATE, target] = SUSPECT
                    suspects[count] = target
                    count += 1
        return total
    while size > 0:
        slot = pop(size, rule, words, cells, flags, heap)
        size -= 1
        if flags[STATE, slot] != FORCED and is_supported(
            slot, words, cells, flags, lists, ends, weights, how
        ):
            continue
        flags[STATE, slot] = GONE
        trimmed[total] = slot
        total += 1
        start = lists[OUT, START, slot]
        for at in range(start, start + lists[OUT, COUNT, slot]):
            target = np.int64(ends[OUT, at])
            null = target < 0
            if null:
                target = ~target
            if flags[STATE, target] != 0 or not sends(flags[RANK, target]):
                continue
            if weighted:
                weight = weights[OUT, at]
            if precedes(rule, words, cells, flags, slot, target) and equals_message(
                slot, target, null, weight, words, flags, how
            ):
                flags[STATE, target] = SUSPECT
                suspects[count] = target
                count += 1
                size = push(target, size, rule, words, cells, flags, heap)
    for at in range(count):  # those that stay
        if flags[STATE, suspects[at]] != GONE:
            flags[STATE, suspects[at]] = 0
    return total


@kernel
def doubt(slot: int, flags: np.ndarray, scratch: np.ndarray, report: np.ndarray) -> None:
    """Note that a message of a slot did not fit."""
    if flags[DOUBTED, slot] == 0:
        flags[DOUBTED, slot] = 1
        scratch[DOUBTED_SLOTS, report[DOUBTS]] = slot
        report[DOUBTS] += 1


@kernel
def send(
    source: int, target: int, null: bool, weight: int, words: np.ndarray, cells: np.ndarray, flags: np.ndarray,
    scratch: np.ndarray, how: np.ndarray, report: np.ndarray,
) -> bool:  # fmt: skip
    """Send one message: whether it became the value of `target`."""
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
    depth = cells[DEPTH, source] + 1
    words[CURRENT, target], flags[RANK, target], cells[DEPTH, target] = word, rank, depth
    if depth > report[DEEPEST]:
        report[DEEPEST] = depth
    return True


@kernel
def enter(
    slot: int,
    words: np.ndarray,
    cells: np.ndarray,
    queues: np.ndarray,
    how: np.ndarray,
    report: np.ndarray,
) -> None:
    """Put a slot into the queue for its value."""
    queue = 0 if how[SUPERSTEP] != 0 else queue_of(words[CURRENT, slot], how[FORM])
    enqueue(slot, queue, cells, queues, report)


@kernel
def reset(
    slot: int,
    words: np.ndarray,
    cells: np.ndarray,
    flags: np.ndarray,
    scratch: np.ndarray,
    report: np.ndarray,
) -> None:
    """Give a slot its start value."""
    touch(slot, words, cells, flags, scratch, report)
    words[CURRENT, slot], flags[RANK, slot] = words[START_VALUE, slot], flags[START_RANK, slot]
    cells[DEPTH, slot] = 0


@kernel
def pull(
    slot: int, words: np.ndarray, cells: np.ndarray, flags: np.ndarray, lists: np.ndarray, ends: np.ndarray,
    weights: np.ndarray, scratch: np.ndarray, how: np.ndarray, report: np.ndarray,
) -> None:  # fmt: skip
    """Take the best message of the sources of a slot's edges."""
    weighted = weights.shape[1] > 0
    weight = how[CONSTANT]
    start, length = lists[IN, START, slot], lists[IN, COUNT, slot]
    for at in range(start, start + length):
        source = np.int64(ends[IN, at])
        null = source < 0
        if null:
            source = ~source
        if sends(flags[RANK, source]):
            if weighted:
                weight = weights[IN, at]
            send(source, slot, null, weight, words, cells, flags, scratch, how, report)
    report[MESSAGES] += length


@kernel
def spread(
    words: np.ndarray, cells: np.ndarray, flags: np.ndarray, lists: np.ndarray, ends: np.ndarray,
    weights: np.ndarray, queues: np.ndarray, scratch: np.ndarray, how: np.ndarray, report: np.ndarray,
    history: np.ndarray,
) -> int:  # fmt: skip
    """Have the slots in the queues send messages until the queues are empty, or, round by round, until a pause; the
    status."""
    operation, form, flip = how[OPERATION], how[FORM], how[FLIP]
    low, high, patience, superstep = how[LOW], how[HIGH], how[PATIENCE], how[SUPERSTEP] != 0
    current, ranks, depths = words[CURRENT], flags[RANK], cells[DEPTH]
    buckets, following = cells[BUCKET], cells[NEXT]
    updates, hops, most_hops = cells[UPDATES], cells[HOPS], how[MOST_HOPS]
    heads, tails = queues[HEAD], queues[TAIL]
    starts, lengths, targets = lists[OUT, START], lists[OUT, COUNT], ends[OUT]
    target_weights = weights[OUT]
    weighted = weights.shape[1] > 0
    weight = how[CONSTANT]
    queue = report[LOWEST]
    messages, deepest = np.int64(0), report[DEEPEST]
    queued = report[QUEUED]
    rounds = np.int64(queued > 0)
    senders, sent = queued, messages  # in this round, and before it
    while queued > 0:
        slot = np.int64(heads[queue])
        if slot < 0:
            if superstep:
                history[SENDERS, rounds - 1], history[SENT, rounds - 1] = senders, messages - sent
                queue = 1 - queue
                if messages >= PAUSE or rounds == history.shape[1]:
                    report[LOWEST], report[QUEUED] = queue, queued
                    report[MESSAGES] += messages
                    report[DEEPEST] = deepest
                    report[ROUNDS] += rounds
                    return PAUSED
                rounds += 1
                senders, sent = queued, messages
            else:
                queue += 1
            continue
        queued -= 1
        heads[queue] = following[slot]
        if heads[queue] < 0:
            tails[queue] = -1
        buckets[slot] = -1
        word, rank, depth = current[slot], np.int64(ranks[slot]), np.int64(depths[slot]) + 1
        hop = np.int64(hops[slot]) + 1 if flags[TOUCHED, slot] != 0 else np.int64(1)
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
            current[target], ranks[target], depths[target] = message, message_rank, depth
            if depth > deepest:
                deepest = depth
            updates[target] += 1
            hops[target] = hop
            if updates[target] > patience or hop > most_hops:
                report[SLOT], report[OTHER], report[WEIGHT] = target, slot, weight
                report[MESSAGES] += messages
                return DIVERGES
            if buckets[target] < 0:
                other = 1 - queue if superstep else queue_of(message, form)
                queued += 1
                buckets[target] = other
                following[target] = -1
                if tails[other] >= 0:
                    following[tails[other]] = target
                else:
                    heads[other] = target
                tails[other] = target
                if not superstep and other < queue:
                    queue = other
    if superstep and rounds > 0:
        history[SENDERS, rounds - 1], history[SENT, rounds - 1] = senders, messages - sent
    report[MESSAGES] += messages
    report[DEEPEST] = deepest
    report[ROUNDS] += rounds
    return DONE


@kernel
def resolve_doubts(
    words: np.ndarray, flags: np.ndarray, lists: np.ndarray, ends: np.ndarray, weights: np.ndarray,
    scratch: np.ndarray, how: np.ndarray, report: np.ndarray,
) -> int:  # fmt: skip
    """Whether all messages fit, of the slots some earlier message of which did not."""
    weighted = weights.shape[1] > 0
    weight = how[CONSTANT]
    status = DONE
    for number in range(report[DOUBTS]):
        slot = np.int64(scratch[DOUBTED_SLOTS, number])
        flags[DOUBTED, slot] = 0
        if flags[RANK, slot] != VALUE:
            continue
        start = lists[OUT, START, slot]
        for at in range(start, start + lists[OUT, COUNT, slot]):
            if ends[OUT, at] < 0:
                continue
            if weighted:
                weight = weights[OUT, at]
            fits, _ = apply(
                how[OPERATION],
                how[FORM],
                how[FLIP],
                how[LOW],
                how[HIGH],
                words[CURRENT, slot],
                weight,
            )
            if not fits and status == DONE:
                report[SLOT], report[OTHER], report[WEIGHT] = slot, ends[OUT, at], weight
                status = DOES_NOT_FIT
    report[DOUBTS] = 0
    return status


@kernel
def prepare(
    words: np.ndarray, cells: np.ndarray, flags: np.ndarray, lists: np.ndarray, ends: np.ndarray,
    weights: np.ndarray, edges: np.ndarray, edge_weights: np.ndarray, started: np.ndarray, gone: np.ndarray,
    fresh: np.ndarray, queues: np.ndarray, scratch: np.ndarray, how: np.ndarray, report: np.ndarray,
) -> None:  # fmt: skip
    """Take in what changed in this epoch: put slots back to their start values, and others into queues."""
    report[LOWEST] = QUEUES
    if how[RESTART] != 0:
        for slot in range(how[SLOTS]):
            rank = flags[START_RANK, slot]
            if (
                rank != flags[RANK, slot]
                or not is_start(slot, words, flags)
                or cells[DEPTH, slot] != 0
            ):
                reset(slot, words, cells, flags, scratch, report)
            if sends(rank):
                enter(slot, words, cells, queues, how, report)
    else:
        trimmed = scratch[TRIMMED_SLOTS]
        total = np.int64(0)
        if started.shape[0] + gone.shape[0] > 0:
            total = trim(words, cells, flags, lists, ends, weights, started, gone, scratch, how)
        report[TRIMMED] = total
        for at in range(total):
            reset(np.int64(trimmed[at]), words, cells, flags, scratch, report)
            flags[STATE, trimmed[at]] = 0
        for at in range(total):
            slot = np.int64(trimmed[at])
            if flags[RANK, slot] != CLOSED:
                pull(slot, words, cells, flags, lists, ends, weights, scratch, how, report)
        for at in range(total):
            slot = np.int64(trimmed[at])
            if sends(flags[RANK, slot]):
                enter(slot, words, cells, queues, how, report)
        for at in range(started.shape[0]):
            slot = np.int64(started[at])
            start, rank = words[START_VALUE, slot], flags[START_RANK, slot]
            current = words[CURRENT, slot]
            if start < current or (start == current and rank < flags[RANK, slot]):
                reset(slot, words, cells, flags, scratch, report)
                enter(slot, words, cells, queues, how, report)
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
            if send(source, target, null, weight, words, cells, flags, scratch, how, report):
                enter(target, words, cells, queues, how, report)


@kernel
def settle(
    words: np.ndarray, cells: np.ndarray, flags: np.ndarray, lists: np.ndarray, ends: np.ndarray,
    weights: np.ndarray, edges: np.ndarray, edge_weights: np.ndarray, started: np.ndarray, gone: np.ndarray,
    fresh: np.ndarray, queues: np.ndarray, scratch: np.ndarray, how: np.ndarray, report: np.ndarray,
    history: np.ndarray,
) -> int:  # fmt: skip
    """Bring all values to the fixed point; the status. After a pause, go on where it was."""
    if report[STATUS] != PAUSED:
        prepare(
            words, cells, flags, lists, ends, weights, edges, edge_weights, started, gone, fresh, queues, scratch,
            how, report,
        )  # fmt: skip
    status = spread(
        words, cells, flags, lists, ends, weights, queues, scratch, how, report, history
    )
    if status == DONE and report[DOUBTS] > 0:
        status = resolve_doubts(words, flags, lists, ends, weights, scratch, how, report)
    report[STATUS] = status
    return status


@kernel
def list_changes(
    words: np.ndarray, cells: np.ndarray, flags: np.ndarray, touched: np.ndarray, numbers: np.ndarray,
    row_words: np.ndarray, row_ranks: np.ndarray,
) -> int:  # fmt: skip
    """The rows that went and came in this epoch; the number of rows whose value is not that of the last epoch.

    numbers[0] takes slots, numbers[1] depths, numbers[2] diffs. Rows that differ in their depth alone come last, up to
    numbers[3, 0].
    """
    count = 0
    values = 0
    for turn in range(2):
        for at in range(touched.shape[0]):
            slot = np.int64(touched[at])
            old, old_rank = words[OLD, slot], flags[OLD_RANK, slot]
            new, rank = words[CURRENT, slot], flags[RANK, slot]
            was, there = sends(old_rank), sends(rank)
            same = was == there and (not was or (old == new and old_rank == rank))
            if turn == 0 and same:
                continue
            if turn == 1 and (not same or not was or cells[OLD_DEPTH, slot] == cells[DEPTH, slot]):
                continue
            if was:
                numbers[0, count], numbers[1, count] = slot, cells[OLD_DEPTH, slot]
                numbers[2, count] = -1
                row_words[count], row_ranks[count] = old, old_rank
                count += 1
            if there:
                numbers[0, count], numbers[1, count] = slot, cells[DEPTH, slot]
                numbers[2, count] = 1
                row_words[count], row_ranks[count] = new, rank
                count += 1
        if turn == 0:
            values = count
    if numbers.shape[1] > 0:
        numbers[3, 0] = count
    return values


@kernel
def forget(flags: np.ndarray, touched: np.ndarray, started: np.ndarray) -> None:
    """Begin an epoch: nothing is touched yet."""
    for at in range(touched.shape[0]):
        flags[TOUCHED, touched[at]] = 0
    for at in range(started.shape[0]):
        flags[STARTED, started[at]] = 0


@kernel
def roll_back(
    words: np.ndarray,
    cells: np.ndarray,
    flags: np.ndarray,
    touched: np.ndarray,
    queues: np.ndarray,
    slots: int,
) -> None:
    """Give all slots the values of the last epoch, and clear what an error left behind."""
    for at in range(touched.shape[0]):
        slot = np.int64(touched[at])
        words[CURRENT, slot], flags[RANK, slot] = words[OLD, slot], flags[OLD_RANK, slot]
        cells[DEPTH, slot] = cells[OLD_DEPTH, slot]
    queues[:] = -1
    for slot in range(slots):
        cells[BUCKET, slot] = -1
        flags[STATE, slot] = flags[DOUBTED, slot] = 0


@kernel
def put_values(
    slots: np.ndarray, row_words: np.ndarray, ranks: np.ndarray, depths: np.ndarray, words: np.ndarray,
    cells: np.ndarray, flags: np.ndarray,
) -> None:  # fmt: skip
    """Give slots the values of a saved state."""
    for at in range(slots.shape[0]):
        slot = slots[at]
        words[CURRENT, slot], flags[RANK, slot], cells[DEPTH, slot] = (
            row_words[at],
            ranks[at],
            depths[at],
        )
