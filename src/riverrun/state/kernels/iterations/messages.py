"""Messages: what a value becomes on its way along an edge; and values as words, whose order is that of integers.

A *word* stands for a value in all of `kernels.iterations`: a 64-bit integer, and the less of two words is the better
one. So a word is the integer itself; or an unsigned one with the first bit flipped; or the bits of a double, negative
ones turned over, with one zero and one NaN, which is the greatest. Where the greatest value is best, all bits are
flipped (`FLIP`). A *rank* goes along with a word: `VALUE`, `NULL` (whose word is `WORST`), `ABSENT` for a key that is
not there, `CLOSED` for a key that may not be there.
"""

from __future__ import annotations

import numpy as np

from riverrun.state.kernels.compiling import kernel
from riverrun.state.kernels.layout import BIT, DATA, FLOAT, KIND, ORIGIN, UINT, WIDTH
from riverrun.state.kernels.memory import bit, load_int, set_bit, store_int
from riverrun.state.kernels.values import U, double_bits, is_null

# Ranks.
CLOSED = -1
VALUE = 0
NULL = 1
ABSENT = 2

WORST = np.iinfo(np.int64).max
BEST = np.iinfo(np.int64).min

# Forms of words.
WHOLE = 0  # an integer of up to 64 bits; an unsigned one of less than 64
UNSIGNED = 1  # an unsigned integer of 64 bits
DOUBLE = 2
SINGLE = 3

# Operations.
COPY = 0
ADD = 1
MULTIPLY = 2
LESSER = 3
GREATER = 4

NAN_BITS = 0x7FF8 << 48


@kernel
def ordered(bits: int) -> int:
    """The bits of a double as an integer with the order of doubles; its own inverse."""
    return bits if bits >= 0 else bits ^ np.int64(WORST)


@kernel
def bits_of(number: float) -> int:
    """The bits of a double, with one zero and one NaN."""
    if number == 0.0:
        return np.int64(0)
    if number != number:
        return np.int64(NAN_BITS)
    return np.float64(number).view(np.int64)


@kernel
def number_of(word: int) -> float:
    """The double of a word that is not flipped."""
    return np.int64(ordered(word)).view(np.float64)


@kernel
def apply(
    operation: int, form: int, flip: int, low: int, high: int, word: int, weight: int
) -> tuple[bool, int]:
    """The word of a message, and whether there is one.

    There is none where an integer leaves its type, or where the message is NaN and a worse value has a better message.
    """
    if operation == COPY:
        return True, word
    if operation == LESSER or operation == GREATER:
        if operation == GREATER and form >= DOUBLE:  # as in Polars, a NaN gives way
            nan = ordered(np.int64(NAN_BITS)) ^ flip
            if weight == nan:
                return True, word
            if word == nan:
                return False, word
        least = (operation == LESSER) == (flip == 0)
        return True, min(word, weight) if least else max(word, weight)
    natural = word ^ flip
    if form == WHOLE:
        if operation == ADD:
            if weight >= 0:
                fits = natural <= high - weight
            else:
                fits = natural >= low - weight
            return fits, (natural + weight) ^ flip
        product = natural * weight
        fits = weight == 0 or (product // weight == natural and low <= product <= high)
        return fits, product ^ flip
    if form == UNSIGNED:
        number, other = U(natural ^ BEST), U(weight)
        if operation == ADD:
            total = number + other
            fits = total >= number
        else:
            total = number * other
            fits = other == U(0) or total // other == number
        return fits, (np.int64(total) ^ BEST) ^ flip
    number, other = number_of(natural), np.int64(weight).view(np.float64)
    if operation == ADD:
        total = number + other
    else:
        total = number * other
    if form == SINGLE:
        total = np.float64(np.float32(total))
    fits = True
    if total != total and number == number and other == other:
        # -inf + inf, 0 * inf and -inf * 0 are NaN, the greatest, where greater values have lesser messages.
        fits = not (number == -np.inf or number == 0.0)
    return fits, ordered(bits_of(total)) ^ flip


@kernel
def is_improving(operation: int, form: int, flip: int, weight: int) -> bool:
    """Whether a message along an edge of this weight may be better than the value that it is made of."""
    if operation == COPY:
        return False
    if operation == LESSER:
        return flip == 0
    if operation == GREATER:
        return flip != 0
    greatest = flip != 0
    if form >= DOUBLE:
        number = np.int64(weight).view(np.float64)
        if operation == ADD:
            return not (-np.inf < number <= 0.0) if greatest else number < 0.0
        return not (number <= 1.0) if greatest else number < 1.0 or number == np.inf
    if form == UNSIGNED:
        if operation == ADD:
            return greatest and weight != 0
        return U(weight) > U(1) if greatest else weight == 0
    if operation == ADD:
        return weight > 0 if greatest else weight < 0
    return weight > 1 if greatest else weight < 1


@kernel
def is_forbidden(operation: int, form: int, weight: int) -> bool:
    """Whether a weight turns the order of values round."""
    if operation != MULTIPLY or form == UNSIGNED:
        return False
    return np.int64(weight).view(np.float64) < 0.0 if form >= DOUBLE else weight < 0


@kernel
def turns_round(operation: int, form: int, flip: int, word: int) -> bool:
    """Whether a start value makes products that may be better than their factor, whatever `is_improving` says."""
    if operation != MULTIPLY or form == UNSIGNED:
        return False
    natural = word ^ flip
    if form == WHOLE:
        return natural < 0
    number = number_of(natural)
    return number < 0.0 or (flip != 0 and number == np.inf)


@kernel
def read_words(
    nodes: np.ndarray, rows: int, form: int, flip: int, plain: bool, words: np.ndarray, ranks: np.ndarray
) -> None:  # fmt: skip
    """The words and ranks of a column of values; or, where `plain`, its numbers, doubles as their bits."""
    address = nodes.ctypes.data
    kind, data, width, origin = nodes[0, KIND], nodes[0, DATA], nodes[0, WIDTH], nodes[0, ORIGIN]
    keep = (np.int64(1) << (8 * width)) - 1 if kind == UINT and width < 8 else np.int64(-1)
    for at in range(rows):
        row = at + origin
        if is_null(address, 0, row):
            words[at], ranks[at] = WORST, NULL
            continue
        if kind == BIT:
            word = bit(data, row)
        elif kind == FLOAT:
            word = double_bits(data, width, row)
            if not plain:
                word = ordered(word)
        else:
            word = load_int(data, width, row) & keep
            if form == UNSIGNED and not plain:
                word ^= BEST
        words[at], ranks[at] = word if plain else word ^ flip, VALUE


@kernel
def write_words(
    words: np.ndarray, ranks: np.ndarray, form: int, flip: int, kind: int, width: int, cells: np.ndarray,
    valid: np.ndarray,
) -> int:  # fmt: skip
    """The cells of a column of values, from words and ranks; the number of nulls. Both buffers are zero."""
    data, bitmap = cells.ctypes.data, valid.ctypes.data
    nulls = 0
    for row in range(words.shape[0]):
        if ranks[row] != VALUE:
            nulls += 1
            continue
        set_bit(bitmap, row, 1)
        word = words[row] ^ flip
        if kind == BIT:
            set_bit(data, row, word)
        elif kind != FLOAT:
            store_int(data, width, row, word ^ BEST if form == UNSIGNED else word)
        elif width == 8:
            store_int(data, 8, row, ordered(word))
        else:
            store_int(data, 4, row, np.int64(np.float32(number_of(word)).view(np.int32)))
    return nulls
