"""The reader of `.wandb` files: what it reads of whole files, and what is left of cut and damaged ones."""

import json
import struct
import zlib

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from wandb.proto.wandb_internal_pb2 import Record  # pyright: ignore[reportAttributeAccessIssue]

from manyfit.errors import UserError
from manyfit.wandb_file import BLOCK_BYTES, FILE_HEADER, files_in, is_complete, read

FEW = settings(max_examples=60, deadline=None)


def framed(messages):
    """A file of W&B's with these messages, and where each of them ends in it."""
    content, ends = bytearray(FILE_HEADER), []
    for message in messages:
        left, first = bytes(message), True
        while first or left:
            room = BLOCK_BYTES - len(content) % BLOCK_BYTES
            if room < 7:
                content += bytes(room)
                continue
            part, left = left[: room - 7], left[room - 7 :]
            kind = {(True, False): 1, (True, True): 2, (False, True): 3, (False, False): 4}[first, bool(left)]
            body = bytes([kind]) + part
            content += struct.pack("<IH", zlib.crc32(body), len(part)) + body
            first = False
        ends.append(len(content))
    return bytes(content), ends


def items(record, values):
    for key, value in values.items():
        path = key if isinstance(key, tuple) else (key,)
        record.add(nested_key=path, value_json=json.dumps(value))


def history(row):
    record = Record()
    record.history.step.num = row["_step"]
    items(record.history.item, row)
    return record.SerializeToString()


def run_record():
    record = Record()
    record.run.run_id, record.run.project, record.run.display_name = "abc", "manyfit", "a run"
    record.run.tags.extend(["one", "two"])
    for key, value in {"_wandb": {"t": 1}, "optimizer": {"learning_rate": 0.1}, "epochs": 2}.items():
        record.run.config.update.add(key=key, value_json=json.dumps(value))
    return record.SerializeToString()


def summary(values, remove=()):
    record = Record()
    items(record.summary.update, values)
    for key in remove:
        record.summary.remove.add(nested_key=key)
    return record.SerializeToString()


def config_change(values):
    record = Record()
    items(record.config.update, values)
    return record.SerializeToString()


def stats(seconds, values):
    record = Record()
    record.stats.timestamp.seconds, record.stats.timestamp.nanos = int(seconds), int(seconds % 1 * 1e9)
    for key, value in values.items():
        record.stats.item.add(key=key, value_json=json.dumps(value))
    return record.SerializeToString()


def exit_record(code):
    record = Record()
    record.exit.exit_code = code
    return record.SerializeToString()


def write(folder, content):
    path = folder / "run-abc.wandb"
    path.write_bytes(content)
    return path


def test_a_whole_file(tmp_path):
    rows = [{"_step": 0, "epoch/loss": 0.5}, {"_step": 1, "epoch/loss": 0.25, "text": "x" * 100_000}]
    messages = [
        run_record(),
        config_change({("optimizer", "learning_rate"): 0.2, "_wandb": {"t": 2}}),
        stats(100.25, {"cpu": 12.5, "gpu.0.gpu": 90}),
        *map(history, rows),
        summary({"best": {"epoch": 1}, ("best", "loss"): 0.5, "gone": 1, ("_wandb", "runtime"): 3}),
        summary({("best", "epoch"): 2}, remove=[["gone"], ["best", "loss"], ["never", "there"]]),
        exit_record(3),
    ]
    path = write(tmp_path, framed(messages)[0])
    found = read(path)
    assert found.run == {"run_id": "abc", "project": "manyfit", "name": "a run", "tags": ["one", "two"]}
    assert found.config == {"optimizer": {"learning_rate": 0.2}, "epochs": 2}
    assert found.history == rows
    assert found.summary == {"best": {"epoch": 2}}
    assert found.system == [{"time": 100.25, "cpu": 12.5, "gpu.0.gpu": 90}]
    assert (found.exit_code, found.notes) == (3, [])
    assert is_complete(path, 2) and not is_complete(path, 3)


def test_what_is_no_file_of_wandb_is_refused(tmp_path):
    for content in (b"hello", b"PK\x03\x04" * 100, bytes(100_000)):
        with pytest.raises(UserError, match="not a file that W&B wrote"):
            read(write(tmp_path, content))
    with pytest.raises(UserError, match="No such file"):
        read(tmp_path / "missing")
    with pytest.raises(UserError, match="cannot be read"):
        read(tmp_path)
    assert not is_complete(tmp_path / "missing", 0)


def test_an_empty_file_and_a_lone_header_say_so(tmp_path):
    assert "empty" in read(write(tmp_path, b"")).notes[0]
    for content in (FILE_HEADER, FILE_HEADER[:3]):
        [note] = read(write(tmp_path, content)).notes
        assert "no exit code" in note
    assert not is_complete(tmp_path / "run-abc.wandb", 0)


def test_one_damaged_row_costs_one_row(tmp_path):
    rows = [{"_step": step, "x": step} for step in range(5)]
    content, ends = framed([*map(history, rows), exit_record(0)])
    damaged = bytearray(content)
    damaged[ends[1] + 9] ^= 1  # inside the third row
    found = read(write(tmp_path, bytes(damaged)))
    assert found.history == [*rows[:2], *rows[3:]]
    assert found.exit_code == 0
    [note] = found.notes
    assert note == f"{ends[2] - ends[1]} bytes from byte {ends[1]} on are damaged or cut off."
    assert not is_complete(tmp_path / "run-abc.wandb", 0)


def test_a_damaged_header_costs_nothing(tmp_path):
    content, _ = framed([history({"_step": 0}), exit_record(0)])
    found = read(write(tmp_path, b"?" + content[1:]))
    assert (len(found.history), found.exit_code, found.notes) == (1, 0, ["The file's header is damaged."])


def test_a_message_whose_middle_is_damaged_is_dropped(tmp_path):
    rows = [{"_step": 0, "x": 1}, {"_step": 1, "text": "x" * 3 * BLOCK_BYTES}, {"_step": 2, "x": 3}]
    content, _ = framed([*map(history, rows), exit_record(0)])
    damaged = bytearray(content)
    damaged[BLOCK_BYTES + 100] ^= 255
    found = read(write(tmp_path, bytes(damaged)))
    assert found.history == [rows[0], rows[2]]
    assert len(found.notes) >= 2


def test_the_files_of_a_run_folder(tmp_path):
    folder = tmp_path / "wandb" / "offline-run-20260101_000000-abc"
    folder.mkdir(parents=True)
    path = write(folder, framed([exit_record(0)])[0])
    (tmp_path / "wandb" / "latest-run").symlink_to(folder)
    assert files_in(tmp_path) == files_in(folder) == [path]
    assert files_in(tmp_path / "missing") == []


# --- fuzzing --------------------------------------------------------------------------------------------------------

sizes = st.one_of(st.integers(0, 300), st.integers(0, 2 * BLOCK_BYTES))
"""Of a row's text: most are small, some fill blocks, so that chunks are split and blocks end in every way."""


def numbered(text_sizes):
    return [{"_step": step, "text": "x" * size} for step, size in enumerate(text_sizes)]


def is_subsequence(few, many):
    rest = iter(many)
    return all(row in rest for row in few)


@FEW
@given(st.lists(sizes, max_size=6), st.floats(0, 1))
def test_a_cut_file_keeps_every_row_before_the_cut(tmp_path_factory, text_sizes, share):
    rows = numbered(text_sizes)
    content, ends = framed([*map(history, rows), exit_record(0)])
    cut = int(share * len(content))
    path = write(tmp_path_factory.getbasetemp(), content[:cut])
    found = read(path)
    assert found.history == [row for row, end in zip(rows, ends, strict=False) if end <= cut]
    assert is_complete(path, len(rows)) == (cut == len(content))


@FEW
@given(
    st.lists(sizes, min_size=1, max_size=6),
    st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(1, 255)), min_size=1, max_size=5),
)
def test_flipped_bytes_cost_only_what_they_hit(tmp_path_factory, text_sizes, flips):
    rows = numbered(text_sizes)
    content, ends = framed([*map(history, rows), exit_record(0)])
    damaged = bytearray(content)
    for share, mask in flips:
        damaged[int(share * len(content))] ^= mask
    changed = [index for index, (old, new) in enumerate(zip(content, damaged, strict=True)) if old != new]
    assume(changed)  # two flips of one byte may undo each other
    try:
        found = read(write(tmp_path_factory.getbasetemp(), bytes(damaged)))
    except UserError:
        assert changed[0] < len(FILE_HEADER) and len(changed) > 1
        return
    begins = [len(FILE_HEADER), *ends]
    unharmed = [
        row
        for row, begin, end in zip(rows, begins, ends, strict=False)
        if not any(begin <= index < end for index in changed)
    ]
    assert is_subsequence(unharmed, found.history)
    assert is_subsequence(found.history, rows)
    before = sum(end <= changed[0] for end in ends[:-1])
    assert found.history[:before] == rows[:before]


@FEW
@given(st.binary(max_size=2000), st.booleans())
def test_random_bytes_are_refused_or_read(tmp_path_factory, noise, with_header):
    path = write(tmp_path_factory.getbasetemp(), (FILE_HEADER if with_header else b"") + noise)
    try:
        assert read(path).notes
    except UserError:
        assert not with_header


wild_json = st.one_of(st.sampled_from(["", "NaN", "[" * 50_000, "1" * 5000, '"\\ud800"', "{}"]), st.text(max_size=20))
wild_keys = st.lists(st.sampled_from(["a", "b", "", "_wandb"]), max_size=3)


@st.composite
def wild_messages(draw):
    """What no W&B writes, rightly framed: random bytes, and records whose values are no JSON."""
    if draw(st.booleans()):
        return draw(st.binary(max_size=200))
    record = Record()
    owner = {
        "history": record.history.item,
        "summary": record.summary.update,
        "config": record.config.update,
        "run": record.run.config.update,
    }[draw(st.sampled_from(["history", "summary", "config", "run"]))]
    for key, text in draw(st.lists(st.tuples(wild_keys, wild_json), min_size=1, max_size=3)):
        owner.add(nested_key=key, value_json=text)
    return record.SerializeToString()


@FEW
@given(st.lists(wild_messages(), max_size=5))
def test_messages_that_no_wandb_writes_are_told(tmp_path_factory, wild):
    row = {"_step": 0, "x": 1}
    content, _ = framed([history(row), *wild, exit_record(0)])
    found = read(write(tmp_path_factory.getbasetemp(), content))
    assert found.history[0] == row
    assert found.exit_code == 0
