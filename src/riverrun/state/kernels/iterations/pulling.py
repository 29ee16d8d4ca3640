"""Combining what each target's sources send, row by row: sums, minima, counts.

`operators.iterations.pulling` calls these kernels. The edges of a target are a *row* of a pool: `source[start[t] :
start[t] + count[t]]`, and `times` says how often each edge is there, or is empty where each is there once. `parts` has
by source what the source sends. Besides, a target has *extra* parts of its own (`extra_start`, `extra_count`,
`extra_times`, `extras`), and one of its *own* row (`own`, empty where there are none). A source that sends nothing has
a part that changes nothing: 0 in a sum, the greatest word in a minimum.

**Sums of floats** are the doubles nearest to the exact sums, as those of `sums.add_digits`. Three ways, each quicker
and less often sure than the next one:

1. `sum_floats` splits each x at a power of two M above every partial sum: ``high = (x + M) - M`` and
   ``low = x - high``. Sums of highs are exact, as all are multiples of ulp(M) and below M * 2**53. Lows are at most
   ulp(M) / 2, so the sum of n lows is off by less than n**2 * 2**-53 * ulp(M). The rounded sum of both is the nearest
   double if it stays so when moved by that much (`is_nearest`). Long rows are cut into blocks, so that M stays small.
   Where the sizes of all parts lie within some ten powers of ten, as they often do, sums of lows are exact too.
2. `sum_surely` adds with the error of each addition (two-sum), and the errors with the sum of *their* errors: where
   there are none, as in a tie, the result is exact but for one rounding.
3. The digits of `sums`, which are always right.
"""

from __future__ import annotations

import numpy as np

from riverrun.state.kernels.compiling import kernel
from riverrun.state.kernels.sums import (
    DIGIT,
    DIGIT_MASK,
    INFINITY_BITS,
    LARGE_DIFF,
    NAN_BITS,
    SIGN_BIT,
    SLOTS,
    bits_of_digits,
    multiply,
)

EXPONENT = np.int64(0x7FF) << 52
FRACTION = (np.int64(1) << 52) - 1
NEVER = np.int64((1 << 63) - 1)
"""The word of a source that sends nothing to a minimum."""
BLOCK_BITS = 8
BLOCK = 1 << BLOCK_BITS
"""Parts that are added with one M; blocks of them are added with two-sum."""
LEAST_BITS = -800  # a lower M would make errors subnormal
MOST_BITS = 900  # a higher one would not leave room for the sum
LEAST_EXACT = 2.0**-1000  # below, places may be those of subnormals
ONE, TWO = np.uint64(1), np.uint64(2)
HALF_ULP = 2.0**-53
ERROR = 1.2e-16  # a little above 2**-53
VALUE, TIMES, OVER, FACTOR_OVER, FACTOR_TIMES_OVER = 0, 1, 2, 3, 4
"""Forms of a part: x, x * w, x / w, c * (x / w) and (c * x) / w."""
SUMMING, LEAST, GREATEST = 0, 1, 2


@kernel
def shaped(form: int, factor: float, x: float, w: float) -> float:
    """The part of a value x and a constant w, with the operations in the order of the form."""
    if form == VALUE:
        return x
    if form == TIMES:
        return x * w
    if form == OVER:
        return x / w
    if form == FACTOR_OVER:
        return factor * (x / w)
    return (factor * x) / w


@kernel
def word_of(x: float, how: int) -> int:
    """The word whose order as an integer is that of floats in states, or the opposite for `GREATEST`."""
    word = np.float64(x + 0.0).view(np.int64)
    if x != x:
        word = np.int64(NAN_BITS)
    elif word < 0:
        word ^= NEVER
    return ~word if how == GREATEST else word


@kernel
def order_floats(values: np.ndarray, how: int, out: np.ndarray) -> None:
    for row in range(values.shape[0]):
        out[row] = word_of(values[row], how)


@kernel
def floats_of_order(words: np.ndarray, how: int, out: np.ndarray) -> None:
    """The inverse of `order_floats`; NEVER gives any float."""
    for row in range(words.shape[0]):
        word = ~words[row] if how == GREATEST else words[row]
        if word < 0:
            word ^= NEVER
        out[row] = np.int64(word).view(np.float64)


@kernel
def shape_sources(
    form: int,
    factor: float,
    values: np.ndarray,
    weights: np.ndarray,
    active: np.ndarray,
    out: np.ndarray,
    span: np.ndarray,
) -> None:
    """The part of each active source; 0 for the others. Widens `span` as `widen` does."""
    top, bottom = span[0], span[1]
    for slot in range(values.shape[0]):
        x = 0.0
        if active[slot] != 0:
            x = shaped(form, factor, values[slot], weights[slot])
        out[slot] = x
        size = abs(x)
        if size > top and size < np.inf:
            top = size
        if size < bottom and size > 0.0:
            bottom = size
    span[0], span[1] = top, bottom


@kernel
def shape_edges(
    form: int,
    factor: float,
    values: np.ndarray,
    weights: np.ndarray,
    start: np.ndarray,
    count: np.ndarray,
    source: np.ndarray,
    active: np.ndarray,
    first: int,
    last: int,
    out: np.ndarray,
    span: np.ndarray,
) -> None:
    """The part of each edge of targets [first, last), in a row; 0 where the source is not active."""
    top, bottom, at = span[0], span[1], 0
    for target in range(first, last):
        for edge in range(start[target], start[target] + count[target]):
            s = source[edge]
            x = 0.0
            if active[s] != 0:
                x = shaped(form, factor, values[s], weights[edge])
            out[at] = x
            at += 1
            size = abs(x)
            if size > top and size < np.inf:
                top = size
            if size < bottom and size > 0.0:
                bottom = size
    span[0], span[1] = top, bottom


@kernel
def widen(values: np.ndarray, span: np.ndarray) -> None:
    """Have `span` hold the greatest size of a finite float, and the least size of one that is not zero."""
    top, bottom = span[0], span[1]
    for row in range(values.shape[0]):
        size = abs(values[row])
        if size > top and size < np.inf:
            top = size
        if size < bottom and size > 0.0:
            bottom = size
    span[0], span[1] = top, bottom


@kernel
def list_places(
    start: np.ndarray, count: np.ndarray, first: int, last: int, out: np.ndarray
) -> None:
    """Where in the pool the edges of targets [first, last) are."""
    at = 0
    for target in range(first, last):
        for edge in range(start[target], start[target] + count[target]):
            out[at] = edge
            at += 1


@kernel
def count_parts(
    start: np.ndarray,
    count: np.ndarray,
    source: np.ndarray,
    times: np.ndarray,
    active: np.ndarray,
    out: np.ndarray,
) -> None:
    """Add to `out`, for each target, how many edges come from active sources."""
    some = times.shape[0] > 0
    for target in range(count.shape[0]):
        total = np.int64(0)
        begin = start[target]
        for edge in range(begin, begin + count[target]):
            if some:
                total += times[edge] * active[source[edge]]
            else:
                total += active[source[edge]]
        out[target] += total


@kernel
def exponent_of(x: float) -> int:
    """The least k with abs(x) <= 2**k; for subnormals something greater."""
    return np.int64((np.float64(x).view(np.int64) & EXPONENT) >> 52) - 1022


@kernel
def power(k: int) -> float:
    return np.int64(np.int64(k + 1023) << 52).view(np.float64)


@kernel
def is_nearest(high: float, low: float, nearest: float, bound: float) -> bool:
    """Whether `nearest`, which is high + low rounded, is the double nearest to all numbers at most `bound` from there.

    False if not sure, and whenever there is a NaN or an infinity.
    """
    other = nearest - high
    rest = abs((high - (nearest - other)) + (low - other))
    bits = np.float64(nearest).view(np.int64)
    half = np.int64(bits & EXPONENT).view(np.float64) * HALF_ULP
    if bits & FRACTION == 0:
        half *= 0.5
    return rest + bound < half


@kernel
def sum_floats(
    start: np.ndarray,
    count: np.ndarray,
    source: np.ndarray,
    times: np.ndarray,
    several: np.ndarray,
    parts: np.ndarray,
    extra_start: np.ndarray,
    extra_count: np.ndarray,
    extra_times: np.ndarray,
    extras: np.ndarray,
    own: np.ndarray,
    span: np.ndarray,
    out: np.ndarray,
    unsure: np.ndarray,
) -> int:
    """The sum of each target; `span` has the sizes of parts (`widen`). Returns how many targets are in `unsure`."""
    listed = 0
    owned = own.shape[0] > 0
    extra_repeated = extra_times.shape[0] > 0
    k = exponent_of(span[0]) + BLOCK_BITS + 2
    possible = k < MOST_BITS
    k = min(max(k, LEAST_BITS), MOST_BITS)
    m, unit = power(k) * 1.5, power(k - 52) * ERROR
    # All parts, and so all lows, are multiples of a least place; of so many parts the sum of lows is exact.
    exact, room = np.int64(0), exponent_of(span[1]) + 53 - k
    if span[1] >= LEAST_EXACT and room > 0:
        exact = np.int64(1) << min(room, BLOCK_BITS + 2)
    some = 1 if owned else 0
    for target in range(count.shape[0]):
        begin, size = start[target], count[target]
        end = begin + size
        extra, more = extra_start[target], extra_count[target]
        total = size + more + some
        repeated = several[target] != 0
        if total <= 2 and not repeated and not extra_repeated:
            nearest = 0.0
            for edge in range(extra, extra + more):
                nearest += extras[edge]
            if owned:
                nearest += own[target]
            for edge in range(begin, end):
                nearest += parts[source[edge]]
            out[target] = nearest
            if not abs(nearest) < np.inf:
                unsure[listed] = target
                listed += 1
            continue
        sure = possible and more <= BLOCK
        high, low = 0.0, 0.0
        for edge in range(extra, extra + more):
            x = extras[edge]
            p = (x + m) - m
            high += p
            low += x - p
            if extra_repeated:
                sure = sure and extra_times[edge] == 1
        if owned:
            x = own[target]
            p = (x + m) - m
            high += p
            low += x - p
        if repeated:
            high, low, bound = add_repeated(begin, end, source, times, parts, m, high, low)
            bound = bound + (total + 2.0) * (BLOCK + 4.0)
        elif size > BLOCK:
            high, low, bound = add_blocks(begin, end, source, parts, m, high, low)
        else:
            high_2, low_2 = 0.0, 0.0
            at, stop = np.uint64(begin), np.uint64(end)  # unsigned: no negative places to allow for
            while at + TWO <= stop:
                x, y = parts[source[at]], parts[source[at + ONE]]
                p, q = (x + m) - m, (y + m) - m
                high += p
                high_2 += q
                low += x - p
                low_2 += y - q
                at += TWO
            if at < stop:
                x = parts[source[at]]
                p = (x + m) - m
                high += p
                low += x - p
            high += high_2
            low += low_2
            if total <= exact and sure:
                nearest = high + low
                out[target] = nearest
                if not abs(nearest) < np.inf:
                    unsure[listed] = target
                    listed += 1
                continue
            bound = (total + 2.0) * (total + 2.0)
        nearest = high + low
        out[target] = nearest
        if not (sure and is_nearest(high, low, nearest, bound * unit)):
            unsure[listed] = target
            listed += 1
    return listed


@kernel
def add_blocks(
    begin: int,
    end: int,
    source: np.ndarray,
    parts: np.ndarray,
    m: float,
    high: float,
    low: float,
) -> tuple[float, float, float]:
    """Highs and lows of a long row, added to those so far, and how far off they may be, in units of ERROR * ulp(M).

    Each block's sum of highs is exact; the sums of blocks are added with the errors of the additions. These errors are
    below the last place of the sum, so that their own errors are much below the lows'.
    """
    sum_high, sum_low, size, blocks = high, low, abs(high), 1.0
    edge = begin
    while edge < end:
        stop = min(edge + BLOCK, end)
        high, high_2, low, low_2 = 0.0, 0.0, 0.0, 0.0
        while edge + 2 <= stop:
            x, y = parts[source[edge]], parts[source[edge + 1]]
            p, q = (x + m) - m, (y + m) - m
            high += p
            high_2 += q
            low += x - p
            low_2 += y - q
            edge += 2
        if edge < stop:
            x = parts[source[edge]]
            p = (x + m) - m
            high += p
            low += x - p
            edge += 1
        high += high_2
        z = sum_high + high
        b = z - sum_high
        sum_low += ((sum_high - (z - b)) + (high - b)) + (low + low_2)
        sum_high = z
        size += abs(high)
        blocks += 1.0
    n = np.float64(end - begin) + BLOCK
    unit = m * (2.0**-52 / 1.5 * ERROR)
    return sum_high, sum_low, n * (BLOCK + blocks + 8.0) + blocks * blocks * 8e-32 * size / unit


@kernel
def add_repeated(
    begin: int,
    end: int,
    source: np.ndarray,
    times: np.ndarray,
    parts: np.ndarray,
    m: float,
    high: float,
    low: float,
) -> tuple[float, float, float]:
    """`add_blocks` where edges are there several times."""
    sum_high, sum_low, size, blocks = high, low, abs(high), 1.0
    edge, n = begin, 0.0
    while edge < end:
        high, low, used = 0.0, 0.0, np.int64(0)
        while edge < end:
            repeats = times[edge]
            if used + repeats > BLOCK:
                if repeats > BLOCK:
                    return sum_high, sum_low, np.inf
                break
            used += repeats
            x = parts[source[edge]]
            p = (x + m) - m
            high += repeats * p
            low += repeats * (x - p)
            edge += 1
        z = sum_high + high
        b = z - sum_high
        sum_low += ((sum_high - (z - b)) + (high - b)) + low
        sum_high = z
        size += abs(high)
        blocks += 1.0
        n += used
    unit = m * (2.0**-52 / 1.5 * ERROR)
    n += BLOCK
    return sum_high, sum_low, n * (BLOCK + blocks + 8.0) + blocks * blocks * 8e-32 * size / unit


@kernel
def sum_surely(
    targets: np.ndarray,
    start: np.ndarray,
    count: np.ndarray,
    source: np.ndarray,
    times: np.ndarray,
    parts: np.ndarray,
    extra_start: np.ndarray,
    extra_count: np.ndarray,
    extra_times: np.ndarray,
    extras: np.ndarray,
    own: np.ndarray,
    out: np.ndarray,
) -> int:
    """The sums of some targets, however hard they are. Returns how many of them took digits."""
    digits, scratch = np.zeros(SLOTS, np.int64), np.empty(6, np.int64)
    specials = np.zeros(3, np.int64)
    bounds = np.empty(2, np.int64)
    hard = 0
    for name in range(targets.shape[0]):
        target = targets[name]
        begin, size = start[target], count[target]
        extra, more = extra_start[target], extra_count[target]
        owned = 1 if own.shape[0] > 0 else 0
        total = size + more + owned
        s, c, error, once = 0.0, 0.0, 0.0, True
        for at in range(total):
            if at < size:
                x = parts[source[begin + at]]
                once = once and (times.shape[0] == 0 or times[begin + at] == 1)
            elif at < size + more:
                x = extras[extra + at - size]
                once = once and (extra_times.shape[0] == 0 or extra_times[extra + at - size] == 1)
            else:
                x = own[target]
            z = s + x
            b = z - s
            e = (s - (z - b)) + (x - b)
            s = z
            z = c + e
            b = z - c
            error += abs((c - (z - b)) + (e - b))
            c = z
        nearest = s + c
        # The sum of errors is itself rounded, `total` times at most.
        error += error * (total * 2.3e-16)
        if once and (is_nearest(s, c, nearest, error) or (error == 0.0 and abs(nearest) < np.inf)):
            out[target] = nearest + 0.0
            continue
        hard += 1
        specials[:] = 0
        bounds[0], bounds[1] = SLOTS, 0
        for at in range(total):
            n = np.int64(1)
            if at < size:
                x = parts[source[begin + at]]
                if times.shape[0] > 0:
                    n = times[begin + at]
            elif at < size + more:
                x = extras[extra + at - size]
                if extra_times.shape[0] > 0:
                    n = extra_times[extra + at - size]
            else:
                x = own[target]
            add_float(np.float64(x).view(np.int64), n, digits, scratch, specials, bounds)
        out[target] = np.int64(total_of(digits, specials, bounds)).view(np.float64)
    return hard


@kernel
def add_float(
    word: int,
    times: int,
    digits: np.ndarray,
    scratch: np.ndarray,
    specials: np.ndarray,
    bounds: np.ndarray,
) -> None:
    """Add a double, so many times, to a fixed-point number (`sums.split_floats` and `sums.add_digits` in one)."""
    negative = word < 0
    exponent = (word >> 52) & 0x7FF
    fraction = word & FRACTION
    if exponent == 0x7FF:
        specials[0 if fraction != 0 else (2 if negative else 1)] += 1
        return
    if exponent == 0:
        if fraction == 0:
            return
        place = np.int64(0)
    else:
        fraction |= np.int64(1) << 52
        place = exponent - 1
    slot, shift = place // DIGIT, place % DIGIT
    low = (fraction & DIGIT_MASK) << shift
    high = (fraction >> DIGIT) << shift
    scratch[0] = low & DIGIT_MASK
    high += (low >> DIGIT) & DIGIT_MASK
    scratch[1] = high & DIGIT_MASK
    scratch[2] = high >> DIGIT
    if negative:
        for at in range(3):
            scratch[at] = -scratch[at]
    used = 3
    if times < LARGE_DIFF:
        for at in range(3):
            scratch[at] *= times
    else:
        used = multiply(scratch, times)
    for at in range(used):
        if scratch[at] != 0:
            digits[slot + at] += scratch[at] & DIGIT_MASK
            digits[slot + at + 1] += scratch[at] >> DIGIT
    bounds[0], bounds[1] = min(bounds[0], slot), max(bounds[1], min(slot + used + 2, SLOTS))


@kernel
def total_of(digits: np.ndarray, specials: np.ndarray, bounds: np.ndarray) -> int:
    """The bits of the nearest double; the digits are cleared."""
    word = np.int64(0)
    if bounds[0] < bounds[1]:
        word = bits_of_digits(digits, bounds[0], bounds[1])
    if specials[0] != 0 or (specials[1] != 0 and specials[2] != 0):
        return np.int64(NAN_BITS)
    if specials[1] != 0:
        return np.int64(INFINITY_BITS)
    if specials[2] != 0:
        return np.int64(INFINITY_BITS) | np.int64(SIGN_BIT)
    return word


@kernel
def sum_ints(
    start: np.ndarray,
    count: np.ndarray,
    source: np.ndarray,
    times: np.ndarray,
    parts: np.ndarray,
    extra_start: np.ndarray,
    extra_count: np.ndarray,
    extra_times: np.ndarray,
    extras: np.ndarray,
    own: np.ndarray,
    out: np.ndarray,
    unsure: np.ndarray,
) -> int:
    """The sum of each target, modulo 2**64. Returns how many targets, whose sums may leave 64 bits, are in `unsure`."""
    listed, owned = 0, own.shape[0] > 0
    for target in range(count.shape[0]):
        total, size = np.int64(0), 0.0
        for edge in range(start[target], start[target] + count[target]):
            n = times[edge] if times.shape[0] > 0 else 1
            x = parts[source[edge]]
            total += n * x
            size += np.float64(n) * abs(np.float64(x))
        for edge in range(extra_start[target], extra_start[target] + extra_count[target]):
            n = extra_times[edge] if extra_times.shape[0] > 0 else 1
            total += n * extras[edge]
            size += np.float64(n) * abs(np.float64(extras[edge]))
        if owned:
            total += own[target]
            size += abs(np.float64(own[target]))
        out[target] = total
        if size > 2.0**62:
            unsure[listed] = target
            listed += 1
    return listed


@kernel
def least(
    start: np.ndarray,
    count: np.ndarray,
    source: np.ndarray,
    parts: np.ndarray,
    extra_start: np.ndarray,
    extra_count: np.ndarray,
    extras: np.ndarray,
    own: np.ndarray,
    out: np.ndarray,
) -> None:
    """The least word of each target."""
    owned = own.shape[0] > 0
    for target in range(count.shape[0]):
        best = own[target] if owned else NEVER
        for edge in range(start[target], start[target] + count[target]):
            best = min(best, parts[source[edge]])
        for edge in range(extra_start[target], extra_start[target] + extra_count[target]):
            best = min(best, extras[edge])
        out[target] = best


@kernel
def plain_floats(values: np.ndarray) -> None:
    """One zero and one NaN, as in states."""
    words = values.view(np.int64)
    for row in range(values.shape[0]):
        x = values[row]
        values[row] = x + 0.0
        if x != x:
            words[row] = NAN_BITS


@kernel
def count_differences(before: np.ndarray, after: np.ndarray, marks: np.ndarray) -> int:
    """Mark the cells in which two columns of words differ. Returns how many are marked then."""
    total = np.int64(0)
    for row in range(before.shape[0]):
        mark = marks[row] | (before[row] != after[row])
        marks[row] = mark
        total += mark
    return total
