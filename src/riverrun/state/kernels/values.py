"""Comparing and hashing rows, column by column, exactly.

All kernels that sort, merge or search use these functions. Laws:

- **Order.** `compare_rows` is a total order on rows whose ties are exactly the equal rows, so adding up equal rows
  never trusts a hash. Floats are ordered as numbers, with one NaN after all of them; zero has no sign. Bytes are
  ordered as unsigned, a prefix first; lists element by element, a prefix first; structs field by field. A column that a
  schema orders as descending (`state.schema.Order`) has its values in the opposite order. Nulls are equal to each other
  and come last, whatever the direction of the column; only nulls inside the lists and structs of a descending column
  come first.
- **Fixed hash.** The hash of a value never changes, as it is part of every checkpoint. The tests hold golden values of
  it.

**Hash, version 1.**
All arithmetic is modulo 2**64. ``mix(x)`` adds 0x9E3779B97F4A7C15 and then applies the bijection
``x ^= x >> 30; x *= 0xBF58476D1CE4E5B9; x ^= x >> 27; x *= 0x94D049BB133111EB; x ^= x >> 31``;
``combine(h, g) = mix(h * 0x9FB21C651E98DF25 + g)``. Then the hash of a value is, by its type:

- null: 0x6E756C6C6E756C6C
- integer, date, time, timestamp, duration, boolean: ``mix`` of its 64 bits in two's complement. A bijection: `unmix`
  gives the integer back, which is why a key of one column of signed integers, dates or times is not stored beside its
  hash.
- float: ``mix(bits ^ 0xF10A7F10A7F10A70)`` with the bits of the value as a double, after -0.0
  became 0.0 and every NaN one NaN
- decimal: the unscaled integer; if it fits 64 bits, as an integer, otherwise `combine` over its
  64-bit words, as few as hold it in two's complement, least first, starting from 0xDEC1DEC1DEC1DEC1
- string, binary: start with ``h = length ^ 0x5374723153747231``; for each word ``w`` of 8 bytes,
  little-endian, the last one padded with zeros,
  ``h = rotate_left(h ^ (w * 0xC2B2AE3D27D4EB4F), 29) * 0x9FB21C651E98DF25``; then ``mix(h)``
- list: `combine` over the elements' hashes, starting from ``length ^ 0x4C6973744C697374``
- struct: `combine` over the fields' hashes, starting from 0x5374727563745374

*combine over g1, g2, ... starting from s* is ``combine(combine(s, g1), g2)`` and so on. The hash of a
key of one column is the hash of its value; of several columns, `combine` over their hashes starting
from 0x4B65794B65794B65; of no columns, 0. Encodings (dictionary, large, view, chunks, slices, widths
of integers) do not show.

Cost: 1 to 2 ns for an integer, about 1 ns for 8 bytes of a string.
"""

from __future__ import annotations

import numpy as np

from riverrun.state.kernels.compiling import kernel
from riverrun.state.kernels.layout import (
    BIT,
    BYTES,
    DATA,
    DECIMAL,
    DESCENDING,
    FIXED,
    FLOAT,
    HASHED,
    INT,
    KIND,
    LIST,
    MAX_DEPTH,
    NODE_BYTES,
    NULL,
    OFFSETS,
    ORIGIN,
    SIZE,
    STRUCT,
    UINT,
    VALID,
    WIDTH,
)
from riverrun.state.kernels.memory import bit, load_i64, load_int, load_tail, load_u64, swap_bytes

U = np.uint64
GOLDEN = U(0x9E3779B97F4A7C15)
MIX_1 = U(0xBF58476D1CE4E5B9)
MIX_2 = U(0x94D049BB133111EB)
UNMIX_1 = U(pow(0xBF58476D1CE4E5B9, -1, 1 << 64))
UNMIX_2 = U(pow(0x94D049BB133111EB, -1, 1 << 64))
COMBINE = U(0x9FB21C651E98DF25)
STRIDE = U(0xC2B2AE3D27D4EB4F)
NULL_HASH = U(0x6E756C6C6E756C6C)
FLOAT_SEED = U(0xF10A7F10A7F10A70)
DECIMAL_SEED = U(0xDEC1DEC1DEC1DEC1)
BYTES_SEED = U(0x5374723153747231)
LIST_SEED = U(0x4C6973744C697374)
STRUCT_SEED = U(0x5374727563745374)
KEY_SEED = U(0x4B65794B65794B65)


@kernel
def mix(x: int) -> int:
    """The bijection that hashes a 64-bit integer."""
    x = x + GOLDEN
    x = (x ^ (x >> U(30))) * MIX_1
    x = (x ^ (x >> U(27))) * MIX_2
    return x ^ (x >> U(31))


@kernel
def unmix(x: int) -> int:
    """The inverse of `mix`."""
    x = (x ^ (x >> U(31)) ^ (x >> U(62))) * UNMIX_2
    x = (x ^ (x >> U(27)) ^ (x >> U(54))) * UNMIX_1
    return (x ^ (x >> U(30)) ^ (x >> U(60))) - GOLDEN


@kernel
def combine(h: int, g: int) -> int:
    """Fold the hash `g` into `h`; the order matters."""
    return mix(h * COMBINE + g)


@kernel
def field(nodes: int, node: int, name: int) -> int:
    """Field `name` of node number `node` in the table at address `nodes`."""
    return load_i64(nodes + node * NODE_BYTES + name * 8)


@kernel
def is_null(nodes: int, node: int, row: int) -> bool:
    """Whether the cell is null; `row` counts from the node's origin."""
    if field(nodes, node, KIND) == NULL:
        return True
    valid = field(nodes, node, VALID)
    return valid != 0 and bit(valid, row) == 0


@kernel
def float_bits(address: int, width: int, row: int) -> int:
    """The bits of a float as a signed integer, with one zero and one NaN."""
    bits = load_int(address, width, row)
    if width == 8:
        sign, infinity, nan = np.int64(-(2**63)), np.int64(0x7FF0 << 48), np.int64(0x7FF8 << 48)
    elif width == 4:
        sign, infinity, nan = np.int64(-(2**31)), np.int64(0x7F80 << 16), np.int64(0x7FC0 << 16)
    else:
        sign, infinity, nan = np.int64(-(2**15)), np.int64(0x7C00), np.int64(0x7E00)
    if bits == sign:
        return np.int64(0)
    if (bits & ~sign) > infinity:
        return nan
    return bits


@kernel
def compare_ints(a: int, b: int) -> int:
    return np.int64(-1) if a < b else (np.int64(1) if a > b else np.int64(0))


@kernel
def compare_bytes(a: int, a_size: int, b: int, b_size: int) -> int:
    """Compare unsigned bytes; a prefix comes first."""
    size = min(a_size, b_size)
    whole = size & ~7
    for at in range(0, whole, 8):
        x, y = load_u64(a + at), load_u64(b + at)
        if x != y:
            return np.int64(-1) if swap_bytes(x) < swap_bytes(y) else np.int64(1)
    x, y = load_tail(a + whole, size - whole), load_tail(b + whole, size - whole)
    if x != y:
        return np.int64(-1) if swap_bytes(x) < swap_bytes(y) else np.int64(1)
    return compare_ints(a_size, b_size)


@kernel
def compare_decimals(a: int, b: int, width: int) -> int:
    """Compare numbers in little-endian two's complement of `width` bytes: only the top word is signed."""
    if width <= 8:
        return compare_ints(load_int(a, width, 0), load_int(b, width, 0))
    top = width - 8
    if load_i64(a + top) != load_i64(b + top):
        return compare_ints(load_i64(a + top), load_i64(b + top))
    at = top - 8
    while at >= 0:
        x, y = load_u64(a + at), load_u64(b + at)
        if x != y:
            return np.int64(-1) if x < y else np.int64(1)
        at -= 8
    return np.int64(0)


@kernel
def compare_leaves(a: int, i: int, b: int, j: int, node: int) -> int:
    """Compare two cells that are neither null nor nested; rows count from the start of the buffers."""
    kind, other = field(a, node, KIND), field(b, node, KIND)
    width = field(a, node, WIDTH)
    x, y = field(a, node, DATA), field(b, node, DATA)
    if kind == INT or kind == HASHED:
        left = np.int64(unmix(load_u64(x + i * 8))) if kind == HASHED else load_int(x, width, i)
        right = np.int64(unmix(load_u64(y + j * 8))) if other == HASHED else load_int(y, width, j)
        return compare_ints(left, right)
    if kind == UINT:
        if width == 8:
            p, q = load_u64(x + i * 8), load_u64(y + j * 8)
            return np.int64(-1) if p < q else (np.int64(1) if p > q else np.int64(0))
        mask = (np.int64(1) << (width * 8)) - 1
        return compare_ints(load_int(x, width, i) & mask, load_int(y, width, j) & mask)
    if kind == FLOAT:
        left, right = float_bits(x, width, i), float_bits(y, width, j)
        # Negative floats run backwards as integers: flip all but the sign.
        left = left ^ np.int64(0x7FFFFFFFFFFFFFFF) if left < 0 else left
        right = right ^ np.int64(0x7FFFFFFFFFFFFFFF) if right < 0 else right
        return compare_ints(left, right)
    if kind == BYTES:
        p, q = field(a, node, OFFSETS) + i * 8, field(b, node, OFFSETS) + j * 8
        start, other_start = load_i64(p), load_i64(q)
        return compare_bytes(
            x + start, load_i64(p + 8) - start, y + other_start, load_i64(q + 8) - other_start
        )
    if kind == BIT:
        return bit(x, i) - bit(y, j)
    if kind == DECIMAL:
        return compare_decimals(x + i * width, y + j * width, width)
    return compare_bytes(x + i * width, width, y + j * width, width)


@kernel
def compare_nested(a: int, i: int, b: int, j: int, node: int) -> int:
    """Compare two lists or structs, depth first.

    A loop with frames of its own, since Numba cannot cache functions that call themselves.
    """
    frames = np.empty((MAX_DEPTH, 6), np.int64)  # is list, child, row, row, left or end, tail
    depth = 0
    while True:
        i += field(a, node, ORIGIN)
        j += field(b, node, ORIGIN)
        a_null, b_null = is_null(a, node, i), is_null(b, node, j)
        kind = field(a, node, KIND)
        if a_null or b_null:
            if a_null != b_null:
                return np.int64(a_null) - np.int64(b_null)
        elif kind == LIST:
            p, q = field(a, node, OFFSETS) + i * 8, field(b, node, OFFSETS) + j * 8
            start, other_start = load_i64(p), load_i64(q)
            size, other_size = load_i64(p + 8) - start, load_i64(q + 8) - other_start
            frame = frames[depth]
            frame[0], frame[1], frame[2], frame[3] = 1, node + 1, start, other_start
            frame[4], frame[5] = min(size, other_size), compare_ints(size, other_size)
            depth += 1
        elif kind == STRUCT:
            frame = frames[depth]
            frame[0], frame[1], frame[2], frame[3] = 0, node + 1, i, j
            frame[4], frame[5] = node + field(a, node, SIZE), 0
            depth += 1
        else:
            order = compare_leaves(a, i, b, j, node)
            if order != 0:
                return order
        while True:  # on to the next cell: an element, a field, or what comes after the parent
            if depth == 0:
                return np.int64(0)
            frame = frames[depth - 1]
            node, i, j = frame[1], frame[2], frame[3]
            if frame[0] == 1 and frame[4] > 0:
                frame[2], frame[3], frame[4] = i + 1, j + 1, frame[4] - 1
                break
            if frame[0] == 0 and node < frame[4]:
                frame[1] = node + field(a, node, SIZE)
                break
            if frame[5] != 0:
                return frame[5]
            depth -= 1


@kernel
def compare_cells(a: int, i: int, b: int, j: int, node: int) -> int:
    """Compare cell `i` of node `node` in table `a` with cell `j` of the same node in table `b`."""
    kind, valid = field(a, node, KIND), field(a, node, VALID) | field(b, node, VALID)
    if kind == INT and valid == 0 and field(b, node, KIND) == INT and field(a, node, WIDTH) == 8:
        p = load_i64(field(a, node, DATA) + (i + field(a, node, ORIGIN)) * 8)
        q = load_i64(field(b, node, DATA) + (j + field(b, node, ORIGIN)) * 8)
        return compare_ints(q, p) if field(a, node, DESCENDING) != 0 else compare_ints(p, q)
    x, y = i + field(a, node, ORIGIN), j + field(b, node, ORIGIN)
    a_null, b_null = is_null(a, node, x), is_null(b, node, y)
    if a_null or b_null:
        return np.int64(a_null) - np.int64(b_null)
    if kind == LIST or kind == STRUCT:
        order = compare_nested(a, i, b, j, node)
    else:
        order = compare_leaves(a, x, b, y, node)
    return -order if field(a, node, DESCENDING) != 0 else order


@kernel
def compare_rows(a: int, i: int, b: int, j: int, first: int, end: int) -> int:
    """Compare two rows over the columns at nodes `first` to `end`."""
    node = first
    while node < end:
        order = compare_cells(a, i, b, j, node)
        if order != 0:
            return order
        node += field(a, node, SIZE)
    return np.int64(0)


@kernel
def hash_bytes(address: int, size: int) -> int:
    h = U(size) ^ BYTES_SEED
    whole = size & ~7
    for at in range(0, whole, 8):
        h = h ^ (load_u64(address + at) * STRIDE)
        h = ((h << U(29)) | (h >> U(35))) * COMBINE
    if whole < size:
        h = h ^ (load_tail(address + whole, size - whole) * STRIDE)
        h = ((h << U(29)) | (h >> U(35))) * COMBINE
    return mix(h)


@kernel
def hash_decimal(address: int, width: int) -> int:
    if width <= 8:
        return mix(U(load_int(address, width, 0)))
    size = width
    while size > 8 and load_i64(address + size - 8) == load_i64(address + size - 16) >> 63:
        size -= 8
    if size == 8:
        return mix(load_u64(address))
    h = DECIMAL_SEED
    for at in range(0, size, 8):
        h = combine(h, load_u64(address + at))
    return h


@kernel
def double_bits(address: int, width: int, row: int) -> int:
    """The bits of a float of any width, as the double of the same value, with one zero and one NaN."""
    bits = float_bits(address, width, row)
    if width == 8:
        return bits
    fraction_bits, exponent_bits = (23, 8) if width == 4 else (10, 5)
    sign = np.int64(-(2**63)) if bits < 0 else np.int64(0)
    fraction = bits & ((np.int64(1) << fraction_bits) - 1)
    exponent = (bits >> fraction_bits) & ((np.int64(1) << exponent_bits) - 1)
    bias = (np.int64(1) << (exponent_bits - 1)) - 1
    if exponent == (np.int64(1) << exponent_bits) - 1:
        exponent = np.int64(0x7FF)
    elif exponent == 0 and fraction == 0:
        return sign
    elif exponent == 0:
        # Subnormal here, normal as a double: shift until the leading bit is the implicit one.
        exponent = np.int64(1)
        while fraction & (np.int64(1) << fraction_bits) == 0:
            fraction <<= 1
            exponent -= 1
        fraction &= (np.int64(1) << fraction_bits) - 1
        exponent += 1023 - bias
    else:
        exponent += 1023 - bias
    return sign | (exponent << 52) | (fraction << (52 - fraction_bits))


@kernel
def hash_leaf(nodes: int, node: int, row: int) -> int:
    """The hash of a cell that is neither null nor nested; the row counts from the start of the buffers."""
    kind = field(nodes, node, KIND)
    width = field(nodes, node, WIDTH)
    data = field(nodes, node, DATA)
    if kind == INT:
        return mix(U(load_int(data, width, row)))
    if kind == HASHED:
        return load_u64(data + row * 8)
    if kind == UINT:
        mask = U(0xFFFFFFFFFFFFFFFF) >> U(64 - 8 * width)
        return mix(U(load_int(data, width, row)) & mask)
    if kind == BIT:
        return mix(U(bit(data, row)))
    if kind == FLOAT:
        return mix(U(double_bits(data, width, row)) ^ FLOAT_SEED)
    if kind == DECIMAL:
        return hash_decimal(data + row * width, width)
    if kind == FIXED:
        return hash_bytes(data + row * width, width)
    at = field(nodes, node, OFFSETS) + row * 8
    start = load_i64(at)
    return hash_bytes(data + start, load_i64(at + 8) - start)


@kernel
def hash_nested(nodes: int, node: int, row: int) -> int:
    """The hash of a list or struct, depth first, with frames of its own as in `compare_nested`."""
    frames = np.empty((MAX_DEPTH, 4), np.int64)  # is list, child, row, left or end
    hashes = np.empty(MAX_DEPTH, np.uint64)
    depth = 0
    while True:
        row += field(nodes, node, ORIGIN)
        kind = field(nodes, node, KIND)
        h = NULL_HASH
        entered = False
        if not is_null(nodes, node, row):
            frame = frames[depth] if kind == LIST or kind == STRUCT else frames[0]
            if kind == LIST:
                at = field(nodes, node, OFFSETS) + row * 8
                start = load_i64(at)
                size = load_i64(at + 8) - start
                frame[0], frame[1], frame[2], frame[3] = 1, node + 1, start, size
                hashes[depth] = U(size) ^ LIST_SEED
                entered = True
            elif kind == STRUCT:
                end = node + field(nodes, node, SIZE)
                frame[0], frame[1], frame[2], frame[3] = 0, node + 1, row, end
                hashes[depth] = STRUCT_SEED
                entered = True
            else:
                h = hash_leaf(nodes, node, row)
        if entered:
            depth += 1
        elif depth == 0:
            return h
        else:
            hashes[depth - 1] = combine(hashes[depth - 1], h)
        while True:
            frame = frames[depth - 1]
            node, row = frame[1], frame[2]
            if frame[0] == 1 and frame[3] > 0:
                frame[2], frame[3] = row + 1, frame[3] - 1
                break
            if frame[0] == 0 and node < frame[3]:
                frame[1] = node + field(nodes, node, SIZE)
                break
            depth -= 1
            if depth == 0:
                return hashes[0]
            hashes[depth - 1] = combine(hashes[depth - 1], hashes[depth])


@kernel
def hash_cell(nodes: int, node: int, row: int) -> int:
    """The hash of one cell, as the module says."""
    kind = field(nodes, node, KIND)
    if kind == LIST or kind == STRUCT:
        return hash_nested(nodes, node, row)
    row += field(nodes, node, ORIGIN)
    return NULL_HASH if is_null(nodes, node, row) else hash_leaf(nodes, node, row)


@kernel
def hash_rows(nodes: int, end: int, rows: int, out: np.ndarray) -> None:
    """Hash the key columns, nodes 0 to `end`, of `rows` rows into `out`."""
    if end == 0:
        out[:rows] = U(0)
        return
    single = field(nodes, 0, SIZE) == end
    if single and field(nodes, 0, KIND) == INT and field(nodes, 0, VALID) == 0:
        data, width = field(nodes, 0, DATA), field(nodes, 0, WIDTH)
        origin = field(nodes, 0, ORIGIN)
        if width == 8:
            for row in range(rows):
                out[row] = mix(load_u64(data + (row + origin) * 8))
        else:
            for row in range(rows):
                out[row] = mix(U(load_int(data, width, row + origin)))
        return
    if single and field(nodes, 0, KIND) == BYTES and field(nodes, 0, VALID) == 0:
        data = field(nodes, 0, DATA)
        offsets = field(nodes, 0, OFFSETS) + field(nodes, 0, ORIGIN) * 8
        for row in range(rows):
            start = load_i64(offsets + row * 8)
            out[row] = hash_bytes(data + start, load_i64(offsets + row * 8 + 8) - start)
        return
    for row in range(rows):
        if single:
            out[row] = hash_cell(nodes, 0, row)
            continue
        h = KEY_SEED
        node = 0
        while node < end:
            h = combine(h, hash_cell(nodes, node, row))
            node += field(nodes, node, SIZE)
        out[row] = h
