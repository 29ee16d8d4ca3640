"""Splitting doubles into limbs of 32 bits, and rounding sums of limbs to doubles: the loops of `riverrun.state.sums`.

Every finite double is an integer multiple of 2**-1074, the least positive double. That integer has at most 2098 bits,
of which at most 53, in a row, are not zero. Its digits in base 2**32 are the *limbs*; a limb's *slot* is its place,
0 for the least. Not-a-number and the infinities have no limbs: each has a slot of its own, below 0.
"""

from __future__ import annotations

import numpy as np

from riverrun.state.kernels.compiling import kernel

DIGIT = 32
DIGIT_MASK = (1 << DIGIT) - 1
SLOTS = 72  # 66 hold the greatest double; a diff of 64 bits and carries need a few more
NAN_SLOT = -1
POSITIVE_SLOT = -2  # +infinity
NEGATIVE_SLOT = -3
LARGE_DIFF = 256  # diffs from here on are multiplied out, so that amounts stay small
NAN_BITS = 0x7FF8 << 48
INFINITY_BITS = 0x7FF0 << 48
SIGN_BIT = -(1 << 63)


@kernel
def split_floats(
    bits: np.ndarray, valid: np.ndarray, diffs: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The row, the slot and the amount of each digit of each value; `valid` is empty when no row is null."""
    count = bits.shape[0]
    some_null = valid.shape[0] > 0
    room = 3 * count
    for row in range(count):
        if diffs[row] >= LARGE_DIFF or diffs[row] <= -LARGE_DIFF:
            room += 3
    rows, slots = np.empty(room, np.int64), np.empty(room, np.int16)
    amounts = np.empty(room, np.int64)
    digits = np.empty(6, np.int64)
    out = 0
    for row in range(count):
        diff = diffs[row]
        if diff == 0 or (some_null and not valid[row]):
            continue
        word = bits[row]
        negative = word < 0
        exponent = (word >> 52) & 0x7FF
        fraction = word & ((np.int64(1) << 52) - 1)
        if exponent == 0x7FF:
            slot = NAN_SLOT if fraction != 0 else (NEGATIVE_SLOT if negative else POSITIVE_SLOT)
            rows[out], slots[out], amounts[out] = row, slot, diff
            out += 1
            continue
        if exponent == 0:
            if fraction == 0:
                continue
            place = np.int64(0)
        else:
            fraction |= np.int64(1) << 52
            place = exponent - 1
        slot = place // DIGIT
        shift = place % DIGIT
        low = (fraction & DIGIT_MASK) << shift
        high = (fraction >> DIGIT) << shift
        digits[0] = low & DIGIT_MASK
        high += (low >> DIGIT) & DIGIT_MASK
        digits[1] = high & DIGIT_MASK
        digits[2] = high >> DIGIT
        if negative:
            for at in range(3):
                digits[at] = -digits[at]
        if -LARGE_DIFF < diff < LARGE_DIFF:
            used = 3
            for at in range(3):
                digits[at] *= diff
        else:
            used = multiply(digits, diff)
        for at in range(used):
            if digits[at] != 0:
                rows[out], slots[out], amounts[out] = row, slot + at, digits[at]
                out += 1
    return rows[:out], slots[:out], amounts[:out]


@kernel
def multiply(digits: np.ndarray, diff: int) -> int:
    """Multiply three digits of one sign by any diff, in place; return the new number of digits."""
    negative = digits[0] < 0 or digits[1] < 0 or digits[2] < 0
    low, high = diff & DIGIT_MASK, diff >> DIGIT  # diff = high * 2**32 + low, and low >= 0
    a, b, c = abs(digits[0]), abs(digits[1]), abs(digits[2])
    digits[:] = 0
    sign = -1 if negative else 1
    for at in range(3):
        digit = a if at == 0 else (b if at == 1 else c)
        add_product(digits, at, digit, low, sign)
        add_product(digits, at + 1, digit, abs(high), sign if high >= 0 else -sign)
    return 6


@kernel
def add_product(digits: np.ndarray, at: int, a: int, b: int, sign: int) -> None:
    """Add the product of two numbers of 32 bits each, as two digits."""
    product = np.uint64(a) * np.uint64(b)
    digits[at] += sign * np.int64(product & np.uint64(DIGIT_MASK))
    digits[at + 1] += sign * np.int64(product >> np.uint64(DIGIT))


@kernel
def bits_of_digits(digits: np.ndarray, low: int, high: int) -> int:
    """The bits of the double nearest to a fixed-point number, ties to even; digits [low, high) are cleared.

    The number is the sum of digits[i] * 2**(32 * i); each digit may have any size and sign. Digits below `low` are
    zero, and the last two before `high` have room for carries.
    """
    carry = np.int64(0)
    for at in range(low, high):
        word = digits[at] + carry
        digits[at] = word & DIGIT_MASK
        carry = word >> DIGIT
    negative = carry < 0
    if negative:  # two's complement: negate
        borrow = np.int64(1)
        for at in range(low, high):
            word = (digits[at] ^ DIGIT_MASK) + borrow
            digits[at] = word & DIGIT_MASK
            borrow = word >> DIGIT
    top = high - 1
    while top >= low and digits[top] == 0:
        top -= 1
    if top < low:
        return np.int64(0)
    size = 0
    while digits[top] >> size != 0:
        size += 1
    last = top * DIGIT + size - 1  # the place of the leading bit
    shift = max(last - 52, 0)  # bits below this place are rounded away
    word, sticky = np.int64(0), False
    half = np.int64(0)
    for at in range(max(low, shift // DIGIT), top + 1):
        place = at * DIGIT - shift
        word |= digits[at] << place if place >= 0 else digits[at] >> -place
    if shift > 0:
        at = (shift - 1) // DIGIT
        bit = (shift - 1) % DIGIT
        if at >= low:
            half = (digits[at] >> bit) & 1
            sticky = digits[at] & ((np.int64(1) << bit) - 1) != 0
        at -= 1
        while at >= low and not sticky:
            sticky = digits[at] != 0
            at -= 1
    for at in range(low, high):
        digits[at] = 0
    if half != 0 and (sticky or word & 1 != 0):
        word += 1
    bits = np.int64(INFINITY_BITS)
    if (
        shift <= 2045
    ):  # a word of 53 bits carries its leading one into the exponent; so does rounding up to 54
        bits = word + (np.int64(shift) << 52)
    return bits | np.int64(SIGN_BIT) if negative else bits


@kernel
def add_digits(
    queries: np.ndarray, slots: np.ndarray, amounts: np.ndarray, out: np.ndarray
) -> None:
    """The bits of the sum of each query; `queries` ascend, and a query without rows gets 0."""
    out[:] = 0
    digits = np.zeros(SLOTS, np.int64)
    rows = queries.shape[0]
    row = 0
    while row < rows:
        query = queries[row]
        low, high = SLOTS, 0
        nan, positive, negative = np.int64(0), np.int64(0), np.int64(0)
        while row < rows and queries[row] == query:
            slot, amount = np.int64(slots[row]), amounts[row]
            if slot >= 0:
                digits[slot] += amount & DIGIT_MASK
                digits[slot + 1] += amount >> DIGIT
                low, high = min(low, slot), max(high, slot + 3)
            elif slot == NAN_SLOT:
                nan += amount
            elif slot == POSITIVE_SLOT:
                positive += amount
            else:
                negative += amount
            row += 1
        word = np.int64(0)
        if low < high:
            word = bits_of_digits(digits, low, high)
        if nan != 0 or (positive != 0 and negative != 0):
            word = np.int64(NAN_BITS)
        elif positive != 0 or negative != 0:
            word = np.int64(INFINITY_BITS)
            if negative != 0:
                word |= np.int64(SIGN_BIT)
        out[query] = word
