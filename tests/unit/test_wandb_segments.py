"""The parts of a run in W&B: what the record says of them, the line that uploads them, rows taken out of a file."""

import json
import zlib
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from manyfit.wandb_file import (
    BLOCK_BYTES,
    CHUNK_HEADER,
    FILE_HEADER,
    WHOLE,
    _append,
    read,
    read_run,
    without_rows_after,
)
from manyfit.wandb_segments import Segment, drop_rows_after, prepare, segments_of, sync_line


def message(row):
    from wandb.proto.wandb_internal_pb2 import Record

    record = Record()
    for key, value in row.items():
        item = record.history.item.add()
        item.nested_key.append(key)
        item.value_json = json.dumps(value)
    return record.SerializeToString()


def content(rows):
    """A file of rows that each fit into the block they begin in."""
    found = bytearray(FILE_HEADER)
    for row in rows:
        text = message(row)
        left = BLOCK_BYTES - len(found) % BLOCK_BYTES
        assert left > CHUNK_HEADER.size + len(text)
        found += CHUNK_HEADER.pack(zlib.crc32(bytes([WHOLE]) + text), len(text), WHOLE) + text
    return bytes(found)


def rows_of(*steps):
    return [{"_step": step, "epoch/epoch": step // 8, "x": step} for step in steps]


def segment(folder, name, *steps, mode="offline", begins=1):
    place = folder / "wandb" / f"{'offline-' if mode == 'offline' else ''}run-{name}-abc"
    place.mkdir(parents=True)
    (place / "run-abc.wandb").write_bytes(content(rows_of(*steps)))
    return Segment(place, "abc", mode, begins, project="p")


def test_a_segment_is_as_the_record_says_also_in_a_folder_that_was_moved(tmp_path):
    first = segment(tmp_path / "run", "1", 8)
    stored = json.loads(json.dumps({"segments": [first.as_dict(tmp_path / "run"), {"folder": 1}, None]}))
    assert segments_of(tmp_path / "run", stored) == [first]
    (tmp_path / "run").rename(tmp_path / "moved")
    [moved] = segments_of(tmp_path / "moved", stored)
    assert moved.path.exists() and segments_of(tmp_path, {}) == []


def test_the_line_that_uploads_names_what_is_on_disk_alone(tmp_path):
    first, second = segment(tmp_path, "1", 8), segment(tmp_path, "2", 16, mode="online")
    assert sync_line([first, second]) == f"wandb sync --include-online {first.folder} {second.folder}"
    first.path.with_suffix(".wandb.synced").touch()
    assert sync_line([first]) is None and first.is_uploaded


def test_rows_that_are_trained_again_leave_a_file_that_was_not_uploaded(tmp_path):
    first, second = segment(tmp_path, "1", 8, 16, 24), segment(tmp_path, "2", 24, 32, begins=3)
    assert [row["_step"] for row in read_run(tmp_path).history] == [8, 16, 24, 32]
    assert prepare([first, second], 16) == 16
    assert [row["_step"] for row in read(first.path).history] == [8, 16]
    assert read(second.path).history == []
    before = first.path.stat().st_mtime_ns
    assert drop_rows_after(first.path, 16) == 0 and first.path.stat().st_mtime_ns == before
    assert drop_rows_after(tmp_path / "missing", 16) == 0
    assert not list(first.folder.glob(".*"))


def test_a_file_that_was_uploaded_is_left_as_it_is(tmp_path):
    first = segment(tmp_path, "1", 8, 16, 24)
    first.path.with_suffix(".wandb.synced").touch()
    assert prepare([first], 16) == 24
    assert [row["_step"] for row in read(first.path).history] == [8, 16, 24]


@given(st.lists(st.integers(0, 90_000), max_size=6), st.data())
def test_any_file_keeps_what_is_kept(tmp_path_factory, sizes, data):
    rows = [{"_step": step, "text": "x" * size} for step, size in enumerate(sizes)]
    written = bytearray(FILE_HEADER)
    for row in rows:
        _append(written, message(row))
    assert without_rows_after(bytes(written), 100) == (bytes(written), 0)
    step = data.draw(st.integers(-1, 6))
    kept, dropped = without_rows_after(bytes(written), step)
    path = Path(tmp_path_factory.mktemp("any")) / "run-abc.wandb"
    path.write_bytes(kept)
    assert (read(path).history, dropped) == (rows[: step + 1], max(0, len(rows) - step - 1))
