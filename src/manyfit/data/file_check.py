"""Which files can be used: the decoder's verdict on each, remembered on disk so that a second run costs nothing."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import logging
import os
import stat
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from manyfit.processes import num_cores

_LOG = logging.getLogger(__name__)
_FORMAT = 1  # raise it when a verdict or its words change
_FILES_PER_TASK = 16
_WORTH_A_LINE = 5000

# Size in bytes, modification time in ns, and the reason (None: usable).
_Verdict = tuple[int, int, str | None]


def check_files(paths: Sequence[str], *, cache_dir: Path | None = None) -> list[str | None]:
    """Say for each file why it cannot be used, None where it can; each new or changed file is decoded once.

    Decoding starts TensorFlow's devices (see `decode.why_unusable`); files already judged need no TensorFlow.

    Args:
        paths: The files.
        cache_dir: Where verdicts are remembered by path, size and modification time; None remembers nothing. A
            folder that cannot be written costs only the time of checking again.
    """
    memory = _Memory(cache_dir)
    reasons: list[str | None] = [None] * len(paths)
    unknown: list[tuple[int, str, int, int]] = []
    for index, path in enumerate(paths):
        if not _is_utf8(path):
            reasons[index] = "a file name that is not valid UTF-8"  # tf.data could not name it
            continue
        try:
            status = os.stat(path)
        except OSError as error:
            broken_link = os.path.islink(path)
            reasons[index] = "a link to a file that does not exist" if broken_link else _cannot_be_read(error)
            continue
        if not stat.S_ISREG(status.st_mode):
            reasons[index] = "a folder, not a picture" if stat.S_ISDIR(status.st_mode) else "not a regular file"
            continue
        known = memory.verdict(path, status.st_size, status.st_mtime_ns)
        if known is None:
            unknown.append((index, path, status.st_size, status.st_mtime_ns))
        else:
            reasons[index] = known[2]
    for (index, path, size, modified), reason in zip(unknown, _judge([item[1] for item in unknown]), strict=True):
        reasons[index] = reason
        memory.learn(path, (size, modified, reason))
    memory.save()
    return reasons


def _judge(paths: list[str]) -> list[str | None]:
    if not paths:
        return []
    if len(paths) >= _WORTH_A_LINE:
        _LOG.info("Checking %d pictures once; the verdicts are remembered.", len(paths))
    from manyfit.data import decode

    decode.why_unusable(b"start")  # TensorFlow starts once, not in every thread at a time

    def judge(task: list[str]) -> list[str | None]:
        return [_verdict_of(path) for path in task]

    def _verdict_of(path: str) -> str | None:
        try:
            with open(path, "rb") as file:
                contents = file.read()
        except OSError as error:
            return _cannot_be_read(error)
        return decode.why_unusable(contents)

    tasks = [paths[start : start + _FILES_PER_TASK] for start in range(0, len(paths), _FILES_PER_TASK)]
    # Twice the cores: half of the threads may be waiting for the disk.
    with ThreadPoolExecutor(min(32, 2 * num_cores())) as pool:
        return [reason for reasons in pool.map(judge, tasks) for reason in reasons]


def _is_utf8(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def _cannot_be_read(error: OSError) -> str:
    return f"cannot be read: {error.strerror or error}"


def _replace(path: Path, text: str) -> None:
    handle, staging = tempfile.mkstemp(dir=path.parent, suffix=".new")
    try:
        with open(handle, "w", encoding="ascii") as file:
            file.write(text)
        os.replace(staging, path)
    except OSError:
        os.unlink(staging)
        raise


class _Memory:
    """Verdicts on disk: one small JSON file a folder of pictures, replaced whole, so processes never see half a file.

    Of two processes that write at once the last wins; what is lost is checked again.
    """

    def __init__(self, cache_dir: Path | None):
        self._folder = None if cache_dir is None else Path(cache_dir) / "checked"
        self._known: dict[str, dict[str, _Verdict]] = {}
        self._changed: set[str] = set()
        # Another TensorFlow may judge otherwise.
        self._version = f"{_FORMAT}, tensorflow {importlib.metadata.version('tensorflow')}"

    def verdict(self, path: str, size: int, modified: int) -> _Verdict | None:
        folder, name = os.path.split(os.path.abspath(path))
        verdict = self._of(folder).get(name)
        return verdict if verdict is not None and verdict[:2] == (size, modified) else None

    def learn(self, path: str, verdict: _Verdict) -> None:
        if verdict[2] is not None and verdict[2].startswith("cannot be read"):
            return  # a permission or a network disk may be well again in the next run
        folder, name = os.path.split(os.path.abspath(path))
        self._of(folder)[name] = verdict
        self._changed.add(folder)

    def save(self) -> None:
        if self._folder is None:
            return
        for folder in self._changed:
            content = {"version": self._version, "folder": folder, "files": self._known[folder]}
            try:
                self._folder.mkdir(parents=True, exist_ok=True)
                _replace(self._file_of(folder), json.dumps(content))
            except OSError:
                _LOG.debug("Verdicts on %s cannot be remembered in %s.", folder, self._folder, exc_info=True)

    def _of(self, folder: str) -> dict[str, _Verdict]:
        if folder not in self._known:
            self._known[folder] = self._read(folder)
        return self._known[folder]

    def _read(self, folder: str) -> dict[str, _Verdict]:
        if self._folder is None:
            return {}
        try:
            content = json.loads(self._file_of(folder).read_text(encoding="ascii"))
            if content["version"] != self._version or content["folder"] != folder:
                return {}
            return {
                name: (int(size), int(modified), None if reason is None else str(reason))
                for name, (size, modified, reason) in content["files"].items()
            }
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return {}  # none yet, or damaged: every file is checked again

    def _file_of(self, folder: str) -> Path:
        assert self._folder is not None
        return self._folder / f"{hashlib.sha256(os.fsencode(folder)).hexdigest()[:32]}.json"
