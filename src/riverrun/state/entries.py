"""Entries: which kernels Python calls, and with which types, so that kernels can be compiled before they are called.

A kernel is compiled separately for each combination of argument types, and only a call shows which types come. So the
combinations are listed here; `preparing` compiles them ahead, and `plan.kernels_needed` names the kernels that a plan
needs: `ROWS`, which every plan needs, and those of its operators. An *entry* is a kernel with one combination; `labels`
has the labels of the entries of some kernels, or of all. The tests fail on a call with types that are not listed, and
print the line to add (`tests/conftest.py`). Outside of the tests a kernel that is not listed is compiled at its first
call: nothing but time depends on this list.

Types are spelled as in NumPy: `i8` is a 64-bit integer, `u8` an unsigned one, `b` a truth value; `i8[2]` is an array
with two dimensions, and `i8[1]!` a read-only array; types in parentheses are a tuple.

>>> len(labels("values.mix")) < len(labels(*ROWS)) < len(labels())
True
>>> spelled(signature_of("i8[2] u8[1]! (i8 b)"))
'i8[2] u8[1]! (i8 b)'

Cost: some milliseconds at import, to read and hash a hundred types.
"""

from __future__ import annotations

from riverrun.state.kernels.compiling import Signature, label, signature_of, spelled

_ROOM = "riverrun.state.kernels."

CALLS: dict[str, tuple[str, ...]] = {
    "bounding.find_between": ("i8[2] i8[1] i8[2] i8 u8 b i8[1] i8 i8 b i8 b i8 b i8",),
    "bounding.find_last": ("i8[2] i8[1] i8[2] i8 u8 b i8[1] i8 i8 b i8 i8[1]",),
    "differing.list_difference": ("i8[2] i8 u8 i8[2] i8[1] i8[2] i8[1] i8[1] i8[1]",),
    "differing.pack_difference": ("i8[2] i8 u8 i8[2] i8[1] i8[2] i8[1] i8[1] i8[1] b i8",),
    "gathering.any_validity": ("i8[1] i8",),
    "gathering.extent": ("i8[1]", "i4[1]"),
    "gathering.gather_bytes": ("i8[1] i8 i8[1] i8 i8 i8",),
    "gathering.gather_cells": ("i8[1] i8 i8[1] i8 i8",),
    "gathering.gather_offsets": ("i8[1] i8 i8[1] i8 i8 i8",),
    "gathering.gather_validity": ("i8[1] i8 i8[1] i8 i8",),
    "gathering.is_ascending": ("u8[1]!",),
    "gathering.list_rows": ("i8[1] i8 i8[1] i8 i8",),
    "gathering.list_rows_of_blocks": ("i8[2] i8[1] i8[1] i8[2]", "i8[2] i4[1] i8[1] i8[2]"),
    "gathering.narrow": ("i8[1] i8 i8 i8", "i4[1] i8 i8 i8"),
    "gathering.renumber": ("i8 i8 i8 i8[1]",),
    "gathering.shift_origin": ("i8[1] i8 i8[1]",),
    "iterations.compressing.agree_by_source": ("i8[1] i8[1] u4[1] i8[2] u1[1] u1[1] i8[2]",),
    "iterations.compressing.fill_table": ("u8[1] i8 i4[1]",),
    "iterations.compressing.is_in_turn": ("i8[1] i8[1] i8 i8",),
    "iterations.compressing.list_edges": ("i8[1] i8[1] u4[1] i8[2] i8[1] i8",),
    "iterations.compressing.merge_rows": (
        "i8[1] i8[1] i8[1] u1[1] u4[1] i8[2] i8[1] u4[1] u4[1] i8[2] i8[1] i8 b",
    ),
    "iterations.compressing.place_rows": ("i8[2] i8 i8[2] i8 u8[1] i4[1] i4[1]",),
    "iterations.compressing.sort_edges": ("u4[1] u4[1] i8[2] i8[1] i8",),
    "iterations.edges.build_lists": ("i4[2] i8[1] i8[1] i8[1] i8[3] i8 i4[2] i4[2] i8[2]",),
    "iterations.edges.fill_edges": ("i4[1] i4[2] i8[1] i8[1]",),
    "iterations.edges.list_edges": (
        "i4[1] i8 i4[1] i4[2] i8[1] i8[1] i8[1] i8[3] i4[2] i4[2] i8[2] i8[1] b i4[1] i8[2] i8[1]",
    ),
    "iterations.edges.tally": ("i4[1] i4[1] i8[1] i8[1] i8 i4[1] i4[2] i8[1] i8[1] i8[1] i4[1]",),
    "iterations.messages.is_forbidden": ("i8 i8 i8",),
    "iterations.messages.is_improving": ("i8 i8 i8 i8",),
    "iterations.messages.read_words": ("i8[2] i8 i8 i8 b i8[1] i1[1]",),
    "iterations.messages.write_words": ("i8[1] i1[1] i8 i8 i8 i8 u1[1] u1[1]",),
    "iterations.pulling.count_differences": ("i8[1] i8[1] u1[1]",),
    "iterations.pulling.count_parts": ("i8[1] i8[1] u4[1] i8[1] u1[1] i8[1]",),
    "iterations.pulling.floats_of_order": ("i8[1] i8 f8[1]",),
    "iterations.pulling.least": ("i8[1] i8[1] u4[1] i8[1] i8[1] i8[1] i8[1] i8[1] i8[1]",),
    "iterations.pulling.list_places": ("i8[1] i8[1] i8 i8 i8[1]",),
    "iterations.pulling.order_floats": ("f8[1] i8 i8[1]",),
    "iterations.pulling.plain_floats": ("f8[1]",),
    "iterations.pulling.shape_edges": (
        "i8 f8 f8[1] f8[1] i8[1] i8[1] u4[1] u1[1] i8 i8 f8[1] f8[1]",
    ),
    "iterations.pulling.shape_sources": ("i8 f8 f8[1] f8[1] u1[1] f8[1] f8[1]",),
    "iterations.pulling.sum_floats": (
        "i8[1] i8[1] u4[1] i8[1] u1[1] f8[1] i8[1] i8[1] i8[1] f8[1] f8[1] f8[1] f8[1] i8[1]",
    ),
    "iterations.pulling.sum_ints": (
        "i8[1] i8[1] u4[1] i8[1] i8[1] i8[1] i8[1] i8[1] i8[1] i8[1] i8[1] i8[1]",
    ),
    "iterations.pulling.sum_surely": (
        "i8[1] i8[1] i8[1] u4[1] i8[1] f8[1] i8[1] i8[1] i8[1] f8[1] f8[1] f8[1]",
    ),
    "iterations.pulling.widen": ("f8[1] f8[1]",),
    "iterations.shared_spreading.empty_outbox": (
        "i8[2] i4[2] i1[2] i4[2] i4[1] i8[1] i8[1] i8[1] i8[1]",
    ),
    "iterations.shared_spreading.hear": (
        "i8 i4[1] i8[1] i8[1] i8[1] i8[1] i8[2] i4[2] i1[2] i4[2] i4[2] i4[2] i8[1] i8[1]",
    ),
    "iterations.shared_spreading.lose": (
        "i8[2] i1[2] i8[3] i4[2] i8[2] i4[2] i4[1] i8[2] i4[1] i8[1] i8[1] i4[2] i8[1] i8[1]",
    ),
    "iterations.shared_spreading.turn": (
        "i8 b i8[2] i4[2] i1[2] i8[3] i4[2] i8[2] i4[2] i8[1] i4[2] i4[1] i4[1] i4[2] i4[2] i8[1] i8[1]",
    ),
    "iterations.shared_spreading.work": (
        "i8 i8 i8[2] i4[2] i1[2] i8[3] i4[2] i8[2] i4[2] i4[2] i4[2] i8[1] i8[1]",
    ),
    "iterations.slots.fill_table": ("i4[1] i8[1] u8[1] i8 i8",),
    "iterations.slots.find_rows": ("i8[2] i8 i8 u8[1] i4[1] u8[1] i8[1] i8[1] i8[1] i4[1]",),
    "iterations.slots.find_words": ("i8[2] i8 i8 i4[1] i8[1] i8[1] i4[1]",),
    "iterations.slots.has_nulls": ("i8[2] i8 b[1]",),
    "iterations.spreading.forget": ("i1[2] i4[1] i4[1]",),
    "iterations.spreading.list_changes": ("i8[2] i4[2] i1[2] i4[1] i8[2] i8[1] i1[1]",),
    "iterations.spreading.put_values": ("i4[1] i8[1] i1[1] i8[1] i8[2] i4[2] i1[2]",),
    "iterations.spreading.resolve_doubts": ("i8[2] i1[2] i8[3] i4[2] i8[2] i4[2] i8[1] i8[1]",),
    "iterations.spreading.roll_back": ("i8[2] i4[2] i1[2] i4[1] i4[2] i8",),
    "iterations.spreading.settle": (
        "i8[2] i4[2] i1[2] i8[3] i4[2] i8[2] i4[2] i8[1] i4[1] i8[2] i4[1] i4[2] i4[2] i8[1] i8[1] i8[2]",
    ),
    "iterations.starts.change_starts": (
        "i4[1] i8[1] i1[1] i8[1] i8 i8 i4[1] i4[2] i8[2] i8[1] i8[2] i4[2] i1[2] i4[1] i8 i8[1] b",
    ),
    "iterations.starts.fill_rows": ("i4[1] i4[2] i8[2] i8[1]",),
    "matching.cut_rows": ("i8[1] i8 i8 i8 i8",),
    "matching.find_matches": ("i8[1] i8 i8 i8 b u8 i8[2] i8[1] b",),
    "matching.list_matches": ("i8[1] i8 i8[1] i8[3] i8[2] i8[1] i8 i8[1] i8",),
    "matching.mark_codes": ("i8[1] i8",),
    "merging.merge_step": (
        "(i8[1] i8 b i4[1]) (i8[1] i8 b i4[1]) i8 i8 i8 i8[2] (i8[1] u8[1] i4[1] i8[1])",
    ),
    "merging.merge_words": ("i8[1] i8 i8[1] i8 i8 i8 i8 i8 i8 i8[1]",),
    "next_times.find_later": ("i8[2] i8[1] i8[2] i8 u8 b i8[1]",),
    "next_times.group_later": ("i8[1] i8[1] i4[1] i8",),
    "packing.distinct_rows": ("i8[2] i8 u8",),
    "packing.leading_rows": ("i8[2] i8 i8 u8 b",),
    "packing.list_keys": ("i8[2] i8",),
    "packing.pack_blocks": ("i8[2] i4[1] i8[1] i8 i8 i8 b i8",),
    "packing.pack_keys": ("i8[2] i8",),
    "packing.pack_merged": ("i8[1] i4[1] i8[1] i4[1] i8 i8 b i8",),
    "packing.pack_named": ("i8[1] i8[1] i8 i8",),
    "packing.pack_picked": ("i8[1] i8[1] i8[1] i8[1] i8[1] i8[1]",),
    "packing.pack_rows": (
        "i8[2] i8 i8 u8 i4[1] i8 i8[1] i8 b i8",
        "i8[2] i8 i8 u8 i4[1] i8 i8[1]! i8 b i8",
    ),
    "packing.take_rows": ("i8[2] i8[1]", "i8[2] i8[1]!"),
    "packing.unite_keys": ("i8[2] i8[1] u8",),
    "presence.find_present": ("i8[2] i8[1] i8[2] i8 u8 b i8",),
    "scanning.scan": ("i8[2] i8[1] i8[1] b[1] i8 i8[2] i8[1] i8[1]",),
    "scanning.seek": ("i8[2] i8[1] u8 i8[2]",),
    "searching.fill_directory": ("i8 i8 i8 u4[1]",),
    "searching.find": ("i8[2] i8[1] i8[2] u8 b i8[3]",),
    "searching.flag_visible": ("i8[2] i8[1]",),
    "searching.hash_keys": ("i8[2] i8 u8",),
    "searching.list_changes": ("i8[2] i8[1] i8[3] i8[2]",),
    "searching.look_up": ("i8[2] i8[1] i8[2] i8 u8 b i8[1] i8 b i8 b b",),
    "sorting.add_up_equal": (
        "u8[1] u8[1] b i8 i8 i8 i4[1] i8[1] i8 i8[1]",
        "u8[1] u8[1] b i8 i8 i8 i4[1] i8[1]! i8 i8[1]",
    ),
    "sorting.consolidate": ("u8[1] u8[1] i8[1] b i8 i8 i8 i8[1] i8 i4[1] i8[1]",),
    "sorting.mostly_distinct": ("u8[1] u8[1] i4[1]",),
    "sorting.order_words": ("i8 i8 i8 u8[1]",),
    "sorting.plain_words": ("i8 i8 u8[1]",),
    "sorting.sort_plainly": (
        "i8[2] i8 i4[1] i8[1] i8",
        "i8[2] i8 i4[1] i8[1]! i8",
    ),
    "sorting.sort_rows": ("u8[1] i8[1] u8[1] b i8 i8 i8 i4[1] u8[1]",),
    "sorting.split_by_hash": ("i8[2] i8 u8[1] i8[1] i8",),
    "sums.add_digits": ("i8[1] i2[1] i8[1] i8[1]",),
    "sums.split_floats": (
        "i8[1] b[1] i8[1]",
        "i8[1]! b[1] i8[1]",
        "i8[1]! b[1] i8[1]!",
    ),
    "values.hash_rows": ("i8 i8 i8 u8[1]",),
    "values.mix": ("u8",),
    "values.unmix": ("u8",),
}
"""By kernel, each combination of types that Python calls it with."""

ROWS = (
    "packing.pack_rows",
    "packing.pack_merged",
    "packing.pack_blocks",
    "packing.pack_keys",
    "packing.pack_picked",
    "packing.pack_named",
    "packing.take_rows",
    "merging.merge_step",
    "merging.merge_words",
    "scanning.scan",
    "scanning.seek",
    "searching.flag_visible",
    "sorting.sort_plainly",
    "sorting.split_by_hash",
    "matching.cut_rows",
    "gathering.list_rows_of_blocks",
    "values.hash_rows",
)
"""The kernels that every plan calls. Those that a plan calls besides are named by its operators (`Operator.kernels`);
all others are called for large batches, nested columns and checkpoints."""

ENTRIES: dict[str, list[Signature]] = {
    _ROOM + name: [signature_of(each) for each in calls] for name, calls in CALLS.items()
}
LABELS: dict[str, tuple[str, Signature]] = {
    label(name, signature): (name, signature)
    for name, signatures in ENTRIES.items()
    for signature in signatures
}


def labels(*kernels: str) -> list[str]:
    """The labels of the entries of some kernels, or of all entries; a kernel that is not listed has none."""
    names = dict.fromkeys(_ROOM + name for name in kernels)
    return [
        label(name, signature)
        for name in (names if kernels else ENTRIES)
        for signature in ENTRIES.get(name, ())
    ]


__all__ = ["CALLS", "ENTRIES", "LABELS", "ROWS", "labels", "spelled"]
