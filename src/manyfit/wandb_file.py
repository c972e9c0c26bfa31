"""Reader of W&B's offline `.wandb` files: what W&B holds of a run, however the file was cut or damaged.

The file is a log of LevelDB: a header of 7 bytes (`:W&B`, magic number, version), then blocks of 32 KiB, in them chunks
with a header of 7 bytes each (CRC-32 of the rest, length, kind), in them protocol buffers of W&B. LevelDB's own log has
no file header and a masked CRC-32C; W&B writes a plain CRC-32, as zlib computes it. Source of the framing:
`doc/log_format.md` of LevelDB; of the rest: files that wandb 0.31 wrote.
"""

import json
import struct
import zlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from manyfit.errors import UserError

BLOCK_BYTES = 32768
CHUNK_HEADER = struct.Struct("<IHB")
FILE_HEADER = b":W&B\xe1\xbe\x00"
WHOLE, FIRST, MIDDLE, LAST = 1, 2, 3, 4
EPOCH_KEY = "epoch/epoch"
OWN_KEY = "_wandb"
"""Where W&B keeps notes of its own in config and summary; left out."""


@dataclass
class WandbFile:
    """What one `.wandb` file holds.

    Args:
        path: The file.
        run: `run_id`, `project`, `entity`, `name`, `group`, `notes`, `host`, `sweep_id` and the list `tags`, where
            they are set.
        config: Nested, as it was given to `wandb.init` and changed afterwards.
        history: A dict a logged row, in the order of logging, with W&B's own `_step`, `_runtime` and `_timestamp`.
        summary: Nested; the last value of each key.
        system: A dict a sample of the system metrics: `time` in seconds since 1970, `cpu`, `gpu.0.gpu`, ...
        preempting: Whether the run was marked as stopped from outside.
        exit_code: None where the file has none: the run was killed, its disk was full, or it is still running.
        notes: What could not be read, a sentence each; empty for a file that is whole.
    """

    path: Path
    run: dict[str, Any] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)
    system: list[dict[str, Any]] = field(default_factory=list)
    preempting: bool = False
    exit_code: int | None = None
    notes: list[str] = field(default_factory=list)


def read(path: Path) -> WandbFile:
    """Everything that can be read of a `.wandb` file; what cannot is told in its `notes`.

    What stands before and after a damaged place is read all the same.

    Raises:
        UserError: there is no such file, it may not be read, or nothing in it is W&B's.
    """
    path = Path(path)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UserError(
            f"{path} cannot be read: {error.strerror or error}.", "Give a run-ID.wandb file of an offline W&B run."
        ) from error
    found = WandbFile(path)
    if not content:
        found.notes.append("The file is empty: the run was killed before W&B wrote anything.")
        return found
    chunks = list(_chunks(content))
    if content[: len(FILE_HEADER)] != FILE_HEADER[: len(content)]:
        if not any(kind for _, kind, _ in chunks):
            raise UserError(f"{path} is not a file that W&B wrote.", "Give a run-ID.wandb file of an offline W&B run.")
        found.notes.append("The file's header is damaged.")
    for position, message in _messages(chunks, found.notes):
        _add(found, position, message)
    if found.exit_code is None:
        found.notes.append("There is no exit code: the run was killed, its disk was full, or it is still running.")
    return found


def read_run(run_folder: Path) -> WandbFile:
    """All that a run folder's `.wandb` files hold of its last run, as if it had never been interrupted.

    Of a row that two segments have, and of steps that were trained again, the later segment's counts. Config, summary
    and the rest are those of the last segment that says something about them.

    Raises:
        UserError: there is no such file, or one of them cannot be read.
    """
    paths = files_in(run_folder)
    if not paths:
        raise UserError(f"{run_folder} holds no .wandb file.", "Give the folder of a run that W&B tracked.")
    segments = [read(path) for path in sorted(paths, key=lambda path: (path.parent.name, path.name))]
    last = segments[-1]
    joined = WandbFile(last.path, exit_code=last.exit_code, preempting=last.preempting)
    ids = [segment.run["run_id"] for segment in segments if "run_id" in segment.run]
    for segment in segments:
        if segment.run and segment.run.get("run_id") != ids[-1]:
            continue  # another run, that W&B knows under another name
        joined.run |= {name: value for name, value in segment.run.items() if value}
        joined.config |= segment.config
        joined.summary |= segment.summary
        joined.history = _joined(joined.history, segment.history)
        joined.system += segment.system
        where = "" if len(segments) == 1 else f"{segment.path.parent.name}: "
        joined.notes += [where + note for note in segment.notes]
    return joined


def _joined(earlier: list[dict[str, Any]], later: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows of two segments, of which the later one has taken up the training at its first row's step."""
    epochs = {row[EPOCH_KEY] for row in later if EPOCH_KEY in row}
    begins = min((row["_step"] for row in later), default=None)
    kept = [row for row in earlier if (begins is None or row["_step"] < begins) and row.get(EPOCH_KEY) not in epochs]
    return kept + later


def without_rows_after(content: bytes, step: int) -> tuple[bytes, int]:
    """The content of a `.wandb` file without the history rows of steps after `step`, and how many those were."""
    from google.protobuf.message import DecodeError
    from wandb.proto.wandb_internal_pb2 import Record  # pyright: ignore[reportAttributeAccessIssue]

    kept, dropped = bytearray(FILE_HEADER), 0
    for _, message in _messages(_chunks(content), []):
        with suppress(DecodeError, ValueError):
            record = Record.FromString(message)
            if record.WhichOneof("record_type") == "history":
                row = _nested(record.history.item)
                if int(row.get("_step", record.history.step.num)) > step:
                    dropped += 1
                    continue
        _append(kept, message)
    return bytes(kept), dropped


def files_in(run_folder: Path) -> list[Path]:
    """The `.wandb` files of a run folder of this project, or of a folder that W&B made, by their names."""
    run_folder = Path(run_folder)
    found = [*run_folder.glob("run-*.wandb"), *run_folder.glob("wandb/*run-*/run-*.wandb")]
    return sorted(path for path in found if not path.parent.is_symlink())  # `latest-run` is a link to one of them


def is_complete(path: Path, num_rows: int) -> bool:
    """Whether an offline W&B file is undamaged and holds `num_rows` rows of history and the exit code."""
    try:
        found = read(path)
    except UserError:
        return False
    return not found.notes and len(found.history) >= num_rows


# --- framing --------------------------------------------------------------------------------------------------------


def _chunks(content: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Position, kind and content of each chunk whose checksum is right; kind 0 for a stretch that is unreadable."""
    position = len(FILE_HEADER)
    while position < len(content):
        left_in_block = BLOCK_BYTES - position % BLOCK_BYTES
        if left_in_block < CHUNK_HEADER.size:  # too short for a header: LevelDB fills it with zeros
            position += left_in_block
            continue
        chunk = _chunk_at(content, position)
        if chunk is None:
            # A length that is wrong itself leads nowhere, so the next chunk is sought: a CRC-32 is right by chance
            # once in four thousand million places.
            end = position + 1
            while end < len(content) and _chunk_at(content, end) is None:
                end += 1
            yield position, 0, content[position:end]
            position = end
        else:
            yield position, *chunk
            position += CHUNK_HEADER.size + len(chunk[1])


def _chunk_at(content: bytes, position: int) -> tuple[int, bytes] | None:
    """Kind and content of the chunk that begins at `position`; None where there is none, or not all of it."""
    begin = position + CHUNK_HEADER.size
    if begin > len(content):
        return None
    checksum, length, kind = CHUNK_HEADER.unpack_from(content, position)
    end = begin + length
    if not WHOLE <= kind <= LAST or end > len(content) or position % BLOCK_BYTES + end - position > BLOCK_BYTES:
        return None
    if zlib.crc32(memoryview(content)[begin - 1 : end]) != checksum:  # of the kind and the content
        return None
    return kind, content[begin:end]


def _messages(chunks: Iterable[tuple[int, int, bytes]], notes: list[str]) -> Iterator[tuple[int, bytes]]:
    """Position and content of each message, put together from its chunks; what is lost goes to `notes`."""
    parts: list[bytes] = []
    started = 0
    for position, kind, content in chunks:
        if kind == 0:
            notes.append(f"{len(content)} bytes from byte {position} on are damaged or cut off.")
        if parts and kind in (0, WHOLE, FIRST):
            notes.append(f"The end of the message at byte {started} is missing.")
        if kind in (MIDDLE, LAST) and not parts:
            notes.append(f"The beginning of the message that goes on at byte {position} is missing.")
            continue
        if kind in (WHOLE, FIRST):
            parts, started = [content], position
        elif kind in (MIDDLE, LAST):
            parts.append(content)
        else:
            parts = []
        if kind in (WHOLE, LAST):
            yield started, b"".join(parts)
            parts = []
    if parts:
        notes.append(f"The end of the message at byte {started} is missing.")


def _append(content: bytearray, message: bytes) -> None:
    """Add a message to a file's content, in as many chunks as its blocks need."""
    first = True
    while first or message:
        left = BLOCK_BYTES - len(content) % BLOCK_BYTES
        if left < CHUNK_HEADER.size:
            content += bytes(left)
            continue
        part, message = message[: left - CHUNK_HEADER.size], message[left - CHUNK_HEADER.size :]
        kind = (LAST if not message else MIDDLE) if not first else (WHOLE if not message else FIRST)
        content += CHUNK_HEADER.pack(zlib.crc32(bytes([kind]) + part), len(part), kind) + part
        first = False


# --- content --------------------------------------------------------------------------------------------------------


def _add(found: WandbFile, position: int, message: bytes) -> None:
    """Add one message to what is known of the run."""
    from google.protobuf.message import DecodeError
    from wandb.proto.wandb_internal_pb2 import Record  # pyright: ignore[reportAttributeAccessIssue]

    try:
        record = Record.FromString(message)
        kind = record.WhichOneof("record_type")
        if kind == "run":
            _add_run(found, record.run)
        elif kind == "config":
            _change(found.config, record.config)
        elif kind == "history":
            row = _nested(record.history.item)
            row.setdefault("_step", record.history.step.num)
            found.history.append(row)
        elif kind == "summary":
            _change(found.summary, record.summary)
        elif kind == "stats":
            sample = {item.key: json.loads(item.value_json) for item in record.stats.item}
            time = record.stats.timestamp
            found.system.append({"time": time.seconds + time.nanos / 1e9, **sample})
        elif kind == "preempting":
            found.preempting = True
        elif kind == "exit":
            found.exit_code = record.exit.exit_code
    except (DecodeError, ValueError, RecursionError) as error:
        found.notes.append(f"The message at byte {position} is not as W&B writes it ({type(error).__name__}).")


def _add_run(found: WandbFile, run: Any) -> None:
    names = {"display_name": "name", "run_group": "group"}
    for name in ("run_id", "project", "entity", "display_name", "run_group", "notes", "host", "sweep_id"):
        if value := getattr(run, name):
            found.run[names.get(name, name)] = value
    found.run["tags"] = list(run.tags)
    _change(found.config, run.config)
    _change(found.summary, run.summary)


def _nested(items: Iterable[Any]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for item in items:
        _set(values, _key(item), json.loads(item.value_json))
    return values


def _change(values: dict[str, Any], record: Any) -> None:
    """Apply the updates and removals of a config or summary record."""
    changes = [(_key(item), json.loads(item.value_json)) for item in record.update]
    for key, value in changes:
        if key[0] != OWN_KEY:
            _set(values, key, value)
    for item in record.remove:
        *outer, last = _key(item)
        inner: Any = values
        for name in outer:
            inner = inner.get(name) if isinstance(inner, dict) else None
        if isinstance(inner, dict):
            inner.pop(last, None)


def _key(item: Any) -> list[str]:
    return list(item.nested_key) or [item.key]


def _set(values: dict[str, Any], key: list[str], value: Any) -> None:
    *outer, last = key
    for name in outer:
        inner = values.get(name)
        if not isinstance(inner, dict):
            inner = values[name] = {}
        values = inner
    values[last] = value
