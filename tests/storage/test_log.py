"""The input log: records, order, damage, owners."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from riverrun.errors import CheckpointError, TransportError
from riverrun.storage import Checkpoints, log, takeover
from riverrun.storage.inspect import verify
from riverrun.storage.log import Log
from riverrun.storage.records import Record, decode_record, encode_record, record_name
from riverrun.storage.store import Storage, checksum, open_storage
from riverrun.storage.takeover import Continuation, take_over

ROWS = pa.record_batch({"n": pa.array([1, None, 3], pa.int64()), "s": ["a", "b", None]})


@pytest.fixture
def storage() -> Storage:
    return open_storage("memory:///")


def opened(storage: Storage, identity: str, **fingerprint: Any) -> Any:
    return take_over(Checkpoints(storage), Log(storage), identity=identity, fingerprint=fingerprint)


def epoch(at: int, epoch: int, inputs: Any = None, **more: Any) -> tuple[int, Any, Any]:
    return at, {"kind": "epoch", "epoch": epoch, "owner": 0, **more}, inputs or {}


def refused(at: int, epoch: int, position: int) -> tuple[int, Any, Any]:
    return at, {"kind": "refused", "epoch": epoch, "refused": position, "owner": 0}, {}


@pytest.mark.parametrize(
    "inputs",
    [
        {},
        {"a": ROWS},
        {"a": ROWS.slice(1, 1), "b": ROWS.slice(0, 0)},
        {"d": pa.record_batch({"d": pa.array(["x", "y"]).dictionary_encode()})},
        {"none": pa.record_batch({"n": pa.nulls(2)})},
    ],
)
def test_a_record_comes_back(inputs: dict[str, pa.RecordBatch]) -> None:
    record = Record({"kind": "epoch", "epoch": 3}, inputs)
    back = decode_record("x", pa.py_buffer(encode_record(record)))
    assert back.header == record.header
    assert {name: batch.to_pylist() for name, batch in back.inputs.items()} == {
        name: batch.to_pylist() for name, batch in inputs.items()
    }


def test_what_is_encoded_is_the_slice_and_not_what_it_was_cut_from() -> None:
    long = pa.record_batch({"n": range(100_000)})
    assert len(encode_record(Record({"kind": "epoch"}, {"n": long.slice(500, 2)}))) < 2_000


def test_damage_anywhere_is_noticed() -> None:
    data = encode_record(Record({"kind": "epoch", "epoch": 3}, {"a": ROWS}))
    for size in range(0, len(data), 7):
        with pytest.raises(CheckpointError, match="as a record of the log"):
            decode_record("x", pa.py_buffer(data[:size]))
    for at in range(0, len(data), 7):
        torn = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        with pytest.raises(CheckpointError, match="as a record of the log"):
            decode_record("x", pa.py_buffer(torn))


def test_the_same_record_may_be_appended_again_and_no_other(storage: Storage) -> None:
    log = Log(storage)
    log.append(*epoch(0, 0, {"a": ROWS}))
    log.append(*epoch(0, 0, {"a": ROWS}))
    with pytest.raises(CheckpointError) as caught:
        log.append(*epoch(0, 0, {"a": ROWS.slice(1)}))
    assert caught.value.code == "log.taken"


def test_epochs_keep_their_numbers(storage: Storage) -> None:
    opened(storage, "a")
    log = Log(storage)
    for record in (
        epoch(1, 0, {"a": ROWS}),
        epoch(2, 1, {"a": ROWS}),
        refused(3, 0, 1),  # 1 was there already: 0 stays, without rows
        epoch(4, 2, {"a": ROWS}),
        refused(5, 2, 4),  # the last one: its number is used again
        epoch(6, 2, {"b": ROWS}, reported=2),
        epoch(7, 3),
        refused(8, 3, 7),  # the last one, and nobody has used its number yet
    ):
        log.append(*record)
    opening = opened(storage, "b")
    assert [(p.position, sorted(p.inputs), p.refused) for p in opening.pending] == [
        (1, [], True),
        (2, ["a"], False),
        (6, ["b"], False),
    ]
    assert (opening.owner, opening.next, opening.reported) == (9, 10, 2)


def test_an_epoch_out_of_order_is_refused(storage: Storage) -> None:
    opened(storage, "a")
    log = Log(storage)
    log.append(*epoch(1, 0))
    log.append(*epoch(2, 2))
    with pytest.raises(CheckpointError) as caught:
        opened(storage, "b")
    assert caught.value.code == "log.order"


def test_a_gap_is_refused(storage: Storage) -> None:
    opened(storage, "a")
    log = Log(storage)
    for at in range(1, 4):
        log.append(*epoch(at, at - 1))
    storage.delete([record_name(2)])
    with pytest.raises(CheckpointError) as caught:
        opened(storage, "b")
    assert caught.value.code == "log.gap"


def test_a_torn_end_is_void_and_a_torn_middle_is_not(storage: Storage) -> None:
    opened(storage, "a")
    log = Log(storage)
    log.append(*epoch(1, 0, {"a": ROWS}))
    whole = encode_record(Record({"kind": "epoch", "epoch": 1}))
    storage.put(record_name(2), whole[:20])
    second = opened(storage, "b")
    assert (len(second.pending), second.owner) == (1, 3)
    Log(storage).append(*epoch(4, 1))
    assert len(opened(storage, "c").pending) == 2  # and it stays void
    storage.put(record_name(4), b"")
    with pytest.raises(CheckpointError) as caught:
        opened(storage, "d")
    assert caught.value.code == "log.corrupt"


def test_torn_takeovers_are_void_too(storage: Storage) -> None:
    opened(storage, "a")
    storage.put(record_name(1), b"riverrun")
    storage.put(record_name(2), b"")
    assert opened(storage, "b").owner == 3
    assert opened(storage, "c").owner == 4


def test_the_one_before_cannot_append(storage: Storage) -> None:
    old = Log(storage)
    first = take_over(Checkpoints(storage), old, identity="a")
    second = opened(storage, "b")
    assert second.owner == first.next
    with pytest.raises(CheckpointError, match="another run has written there"):
        old.append(*epoch(first.next, 0))


def test_what_the_one_before_appends_in_between_counts(storage: Storage) -> None:
    first = opened(storage, "a")

    class Late(Log):
        def create(self, position: int, data: bytes) -> bool:
            if position == first.next:
                Log(storage).append(*epoch(position, 0, {"a": ROWS}))
            return super().create(position, data)

    opening = take_over(Checkpoints(storage), Late(storage), identity="b")
    assert (len(opening.pending), opening.owner) == (1, first.next + 1)


def test_one_so_slow_that_its_position_was_used_and_collected_looks_again(storage: Storage) -> None:
    first = opened(storage, "a")
    old, checkpoints = Log(storage), Checkpoints(storage)

    class Slow(Log):
        def create(self, position: int, data: bytes) -> bool:
            if position == first.next:
                old.append(*epoch(1, 0))
                old.append(*epoch(2, 1))
                checkpoints.save({}, {"epoch": 2, "position": 3, "owner": 0})
                old.collect(3)
            return super().create(position, data)

    opening = take_over(Checkpoints(storage), Slow(storage), identity="b")
    assert (opening.owner, opening.epoch, opening.number) == (3, 2, 1)
    with pytest.raises(CheckpointError):
        old.append(*epoch(3, 2))


@pytest.mark.parametrize("faster", [1, 40])
def test_one_who_owns_the_path_before_it_reads_the_log_is_not_stopped_by_a_fast_owner(
    storage: Storage, faster: int
) -> None:
    """The owner before publishes and collects whenever the log is looked at, and appends before the path is owned."""
    first = opened(storage, "a")
    old, checkpoints = Log(storage), Checkpoints(storage)
    done = [0]

    def go_on(*, published: bool) -> None:
        old.append(*epoch(first.next + done[0], done[0], {"a": ROWS}))
        done[0] += 1
        if published:
            position = first.next + done[0]
            checkpoints.save({}, {"epoch": done[0], "position": position, "owner": 0})
            old.collect(position)

    class Behind(Log):
        gaps = appended = 0

        def read(self, position: int) -> Record:
            if self.gaps < takeover.LOOKS:
                go_on(published=True)
                go_on(published=False)
            try:
                return super().read(position)
            except CheckpointError:
                self.gaps += 1
                raise

        def create(self, position: int, data: bytes) -> bool:
            if self.appended < faster:
                self.appended += 1
                go_on(published=False)
            return super().create(position, data)

    for _ in range(3):
        go_on(published=False)
    behind = Behind(storage)
    opening = take_over(Checkpoints(storage), behind, identity="b")
    assert (behind.gaps, behind.appended) == (takeover.LOOKS, faster)
    assert opening.epoch + len(opening.pending) == done[0]
    assert opening.owner == first.next + done[0]
    with pytest.raises(CheckpointError):
        go_on(published=False)
    assert opened(storage, "c").owner == opening.owner + 1


def test_one_who_has_not_read_what_was_promised_does_not_take_it_back(storage: Storage) -> None:
    """Its record is there before it has read the one that promises to keep the log whole."""
    take_over(Checkpoints(storage), Log(storage), identity="a", keep_inputs=True)
    claim = takeover._Claim("b", {}, None, None, takeover.KEEP)
    taking = takeover._TakingOver(Checkpoints(storage), Log(storage), claim)
    assert taking.newest(blind=True).whole_from == 0
    assert opened(storage, "c").whole_from == 0


def test_a_lost_answer_to_a_takeover_is_found_out(storage: Storage) -> None:
    class Deaf(Log):
        lost = 0

        def create(self, position: int, data: bytes) -> bool:
            done = super().create(position, data)
            self.lost += 1
            if self.lost == 1:
                raise TransportError("storage.unreachable", "lost", hint="")
            return done

    assert take_over(Checkpoints(storage), Deaf(storage), identity="a").owner == 0
    assert Log(storage).positions() == [0]


def test_owners_are_never_forgotten(storage: Storage) -> None:
    asleep = Log(storage)
    first = take_over(Checkpoints(storage), asleep, identity="a")
    opened(storage, "b")
    log = Log(storage)
    for at in range(2, 6):
        log.append(*epoch(at, at - 2))
    assert log.collect(5) == [2, 3, 4]
    assert Log(storage).collect(5) == []  # one who must look what they are keeps them too
    assert log.positions() == [0, 1, 5]
    with pytest.raises(CheckpointError):
        asleep.append(*epoch(first.next, 0))


def test_another_program_is_refused_by_name(storage: Storage) -> None:
    opened(storage, "a", nodes=("x", "y"), version=1)
    assert opened(storage, "b", nodes=["x", "y"], version=1).owner == 1
    with pytest.raises(CheckpointError, match=r"'nodes' was .* and is") as caught:
        opened(storage, "c", nodes=("x",), version=1)
    assert caught.value.fields["differ"] == ["nodes"]
    assert Log(storage).positions() == [0, 1]  # the path is still theirs


def test_a_checkpoint_saved_by_hand_is_no_run(storage: Storage) -> None:
    Checkpoints(storage).save({}, about={"epoch": 1})
    with pytest.raises(CheckpointError) as caught:
        opened(storage, "a")
    assert caught.value.code == "checkpoint.foreign"


def test_rows_that_no_epoch_names_are_swept_by_the_next_owner():
    storage = open_storage("memory:///")
    log = Log(storage)
    first = take_over(Checkpoints(storage), log, identity="a")
    named, left = (f"parcels/{first.owner}.1-0-0-{n}-1.arrow" for n in range(2))
    for file in (named, left):
        storage.put(file, b"rows")
    parcels = {"edges": [{"name": "x", "holder": 1, "rows": 1, "file": named, "checksum": ""}]}
    header = {"kind": "epoch", "epoch": 0, "owner": first.owner, "parcels": parcels}
    log.append(first.next, header, {})
    assert log.sweep(first.owner) == []  # they may be on their way into an epoch
    again = Log(storage)
    second = take_over(Checkpoints(storage), again, identity="b")
    storage.put(f"parcels/{second.owner}.1-0-0-0-1.arrow", b"rows")
    assert again.sweep(second.owner) == [left]
    assert len(storage.names("parcels")) == 2


class Weighed(Log):
    """Knows how many of the bytes that were read are still held by somebody."""

    def __init__(self, storage: Storage) -> None:
        super().__init__(storage)
        self.read_so_far: list[tuple[weakref.ref[pa.RecordBatch], int]] = []
        self.peak = 0

    def read(self, position: int) -> Record:
        record = super().read(position)
        self.read_so_far += [(weakref.ref(rows), rows.nbytes) for rows in record.inputs.values()]
        self.peak = max(self.peak, self.held())
        return record

    def held(self) -> int:
        return sum(size for rows, size in self.read_so_far if rows() is not None)


def test_whoever_takes_over_holds_a_bounded_number_of_rows(storage: Storage) -> None:
    opened(storage, "a")
    log, rows = Log(storage), pa.record_batch({"n": pa.array(range(1000), pa.int64())})
    for at in range(20):
        log.append(*epoch(1 + at, at, {"a": rows, "b": rows}))
    log.append(*refused(21, 1, 2))
    log.append(*epoch(22, 20, {"a": rows}))
    one, weighed = 2 * rows.nbytes, Weighed(storage)
    opening = take_over(Checkpoints(storage), weighed, identity="b", keep=3 * one)
    assert weighed.peak <= 4 * one  # what is kept, and the record that is being read
    assert weighed.held() <= 3 * one
    pending = opening.pending
    assert [p.position for p in pending] == [*range(1, 21), 22]
    assert [at for at, p in enumerate(pending) if p.refused] == [1]
    assert [at for at, p in enumerate(pending) if p.inputs] == [0, 2, 20]  # 1 was refused later
    assert [at for at, p in enumerate(pending) if p.dropped] == list(range(3, 20))
    assert {p.names for p in pending if p.dropped} == {("a", "b")}
    assert sorted(pending[2].inputs) == ["a", "b"]


def test_an_input_that_has_changed_is_found_where_its_rows_are_not_brought_along(
    storage: Storage,
) -> None:
    take_over(Checkpoints(storage), Log(storage), identity="a", fingerprint={"a": "old"})
    Log(storage).append(*epoch(1, 0, {"a": ROWS}))
    with pytest.raises(CheckpointError) as caught:
        take_over(
            Checkpoints(storage), Log(storage), identity="b", fingerprint={"a": "new"},
            decide=lambda manifest, whole: (Continuation.STRAIGHT, None), keep=0,
        )  # fmt: skip
    assert caught.value.fields["differ"] == ["a"]


def test_an_owner_that_has_a_successor_collects_nothing(storage: Storage) -> None:
    """It may have published a checkpoint that covers records which the successor has to read again."""
    before = Log(storage)
    first = take_over(Checkpoints(storage), before, identity="first")
    for at in range(3):
        before.append(*epoch(first.next + at, at, {"a": ROWS}))
    after = Log(storage)
    second = take_over(Checkpoints(storage), after, identity="second", keep=0)
    assert [pending.dropped for pending in second.pending] == [True] * 3
    there = before.positions()
    assert before.collect(second.owner) == []
    assert before.positions() == there
    assert after.collect(second.owner) == [pending.position for pending in second.pending]


# ---- records that are damaged, torn, or forged


def resealed(data: bytes) -> bytes:
    """A record whose checksums are right, whatever was done to the rest of it."""
    head = data[: len(log.MAGIC)] + len(data).to_bytes(8, "little")
    head += checksum(data[log._BODY :]).encode()
    return head + checksum(head).encode() + data[log._BODY :]


def one_epoch(storage: Storage, inputs: Any = None) -> tuple[str, bytes]:
    opened(storage, "a")
    Log(storage).append(*epoch(1, 0, inputs or {"a": ROWS}))
    name = record_name(1)
    return name, storage.get(name).to_pybytes()


@pytest.mark.parametrize("ends", [[0, 1, 5000], [0, 4000, 2], [-16, 1, 2]])
def test_offsets_outside_of_a_record_are_refused(storage: Storage, ends: list[int]) -> None:
    rows = pa.record_batch({"s": pa.array(["a", "b"], pa.large_string())})
    name, data = one_epoch(storage, {"a": rows})
    was = np.array([0, 1, 2], np.int64).tobytes()
    assert data.count(was) == 1
    storage.put(name, resealed(data.replace(was, np.array(ends, np.int64).tobytes())))
    for read in (lambda: Log(storage).read(1), lambda: opened(storage, "b")):
        with pytest.raises(CheckpointError, match="the rows of 'a' are damaged") as caught:
            read()
        assert caught.value.code == "log.corrupt"


def test_a_flipped_bit_in_the_last_record_is_refused_and_a_cut_one_is_left_out(
    storage: Storage, caplog: pytest.LogCaptureFixture
) -> None:
    name, data = one_epoch(storage)
    for bit in range(0, 8 * len(data), 37):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        storage.put(name, bytes(damaged))
        with pytest.raises(CheckpointError) as caught:
            opened(storage, "b")
        if caught.value.code != "checkpoint.incompatible":  # its version
            assert caught.value.code == "log.corrupt"
            assert "may have been acknowledged" in caught.value.message
            assert "delete the file" in (caught.value.hint or "")
    for torn in (b"", data[:10], data[: log._BODY], data[:-1], bytes(len(data))):
        storage.put(name, torn)
        assert opened(storage, "b").pending == ()
        assert "the log ends with a torn record, which is left out" in caplog.text
        storage.delete([record_name(2)])
        caplog.clear()


def test_more_bytes_than_a_record_has_are_damage(storage: Storage) -> None:
    name, data = one_epoch(storage)
    storage.put(name, data + b"\0")
    with pytest.raises(CheckpointError, match="bytes of"):
        opened(storage, "b")


def test_records_of_the_first_version_are_read(storage: Storage) -> None:
    name, data = one_epoch(storage)
    body = data[log._BODY :]
    storage.put(name, b"riverrun log 1\n" + checksum(body).encode() + body)
    (pending,) = opened(storage, "b").pending
    assert pending.inputs["a"].equals(ROWS)
    assert Log(storage).header(1, storage.files("log")[1].size)["kind"] == "epoch"


DEEP = "[" * 100_000 + "]" * 100_000


@pytest.mark.parametrize(
    "header",
    [
        "[]",
        "null",
        '{"kind": "other"}',
        '{"kind": ["epoch"]}',
        '{"kind": "epoch"}',
        '{"kind": "epoch", "epoch": "0"}',
        '{"kind": "epoch", "epoch": -1}',
        '{"kind": "epoch", "epoch": true}',
        '{"kind": "epoch", "epoch": 1e400}',
        '{"kind": "epoch", "epoch": 0, "parcels": []}',
        '{"kind": "epoch", "epoch": 0, "parcels": {"a": [{}]}}',
        '{"kind": "epoch", "epoch": 0, "parcels": {"a": [{"file": "manifests/1", "rows": 1, "holder": 1}]}}',
        '{"kind": "epoch", "epoch": 0, "offsets": 3}',
        '{"kind": "epoch", "epoch": 0, "offsets": {"a": 3}}',
        '{"kind": "epoch", "epoch": 0, "offsets": {"a": ["query", "3"]}}',
        '{"kind": "epoch", "epoch": 0, "reported": []}',
        '{"kind": "refused", "epoch": 0}',
        '{"kind": "opened", "void": "all"}',
        '{"kind": "opened", "void": [{}]}',
        '{"kind": "opened", "fingerprint": []}',
        DEEP,
        '{"kind": "epoch", "epoch": ' + DEEP + "}",
        '{"kind": "epoch", "epoch": ' + "9" * 5000 + "}",
    ],
    ids=lambda header: header[:70],
)
def test_a_header_of_another_shape_is_refused_by_name(storage: Storage, header: str) -> None:
    one_epoch(storage)
    text = f'{{"header": {header}, "inputs": {{}}}}'.encode()
    body = len(text).to_bytes(8, "little") + text
    storage.put(record_name(1), resealed(log.MAGIC + bytes(log._BODY - len(log.MAGIC)) + body))
    for read in (
        lambda: Log(storage).read(1),
        lambda: Log(storage).header(1, log._BODY + len(body)),
        lambda: opened(storage, "b"),
    ):
        with pytest.raises(CheckpointError) as caught:
            read()
        assert caught.value.code == "log.corrupt"
        assert record_name(1) in caught.value.message
        assert len(caught.value.message) < 1000
    Log(storage).collect(2)
    Log(storage).sweep(5)
    assert verify(Checkpoints(storage)).damages[0].file == record_name(1)


@pytest.mark.parametrize("inputs", ["[]", '{"a": -1}', '{"a": 1000000}', '{"a": "x"}', '{"a": 0}'])
def test_inputs_that_lie_outside_of_a_record_are_refused(storage: Storage, inputs: str) -> None:
    text = f'{{"header": {{"kind": "epoch", "epoch": 0}}, "inputs": {inputs}}}'.encode()
    body = len(text).to_bytes(8, "little") + text
    data = resealed(log.MAGIC + bytes(log._BODY - len(log.MAGIC)) + body)
    with pytest.raises(CheckpointError, match="another shape"):
        decode_record("x", pa.py_buffer(data))


def test_a_stray_record_far_away_is_a_gap_that_is_named_at_once(storage: Storage) -> None:
    one_epoch(storage)
    stray = record_name(10**16 - 1)
    storage.put(stray, b"")
    with pytest.raises(CheckpointError) as caught:
        opened(storage, "b")
    assert caught.value.code == "log.gap"
    damages = verify(Checkpoints(storage)).damages
    assert [damage.file for damage in damages] == [record_name(2), stray]
