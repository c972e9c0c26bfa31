"""Arrays on disk: made once, verified, bounded, safe with several processes, and never the end of a run."""

import errno
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from manyfit import array_store
from manyfit.array_store import ALIGNMENT, ARRAY_NAME, ENTRY_NAME, ArrayStore, aligned_array, key_of

SOURCE = Path(__file__).parents[2] / "src"
SHAPE = (5, 3)
KEY, OTHER_KEY, THIRD_KEY = (key_of({"number": number}) for number in range(3))


class Case:
    """A store, what it told, and how often it had to make an array."""

    def __init__(self, folder: Path, limit_bytes: float = 1e6):
        self.told: list[str] = []
        self.made = 0
        self.store = ArrayStore(folder, limit_bytes, self.told.append)

    def fill(self, array: np.ndarray) -> None:
        self.made += 1
        array[:] = np.arange(array.size).reshape(array.shape)

    def get(self, key: str = KEY, shape: tuple[int, ...] = SHAPE, **arguments):
        stored = self.store.get_or_make(key, shape, np.float32, self.fill, **arguments)
        np.testing.assert_array_equal(stored.array, np.arange(np.prod(shape)).reshape(shape))
        return stored


@pytest.fixture
def case(tmp_path):
    one = Case(tmp_path / "arrays")
    with one.store:
        yield one


def entry_names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name != "locks")


def test_an_array_is_made_once_and_then_mapped(case):
    first = case.get(facts={"what": "numbers"})
    assert not first.reused and first.path == case.store.folder / KEY
    again = Case(case.store.folder)
    second = again.get()
    assert second.reused and isinstance(second.array, np.memmap)
    assert (case.made, again.made, case.told, again.told) == (1, 0, [], [])
    assert json.loads((first.path / ENTRY_NAME).read_text())["facts"] == {"what": "numbers"}
    np.testing.assert_array_equal(np.load(first.path / ARRAY_NAME), first.array)
    assert entry_names(case.store.folder) == [KEY]
    again.store.close()


def test_what_a_run_does_to_its_array_never_reaches_the_file(case):
    for _ in range(2):
        case.get().array[:] = 7
    assert case.made == 1


def test_memory_is_aligned_for_tensorflow(case):
    assert case.get().array.ctypes.data % ALIGNMENT == 0
    for shape in ((3,), (1001, 7)):
        assert aligned_array(shape, np.uint8).ctypes.data % ALIGNMENT == 0
        assert aligned_array(shape, np.float32).shape == shape


def test_an_empty_array_is_an_array(case):
    assert not case.get(shape=(0, 3)).reused
    assert case.get(shape=(0, 3)).reused


def flip_a_byte(path: Path) -> None:
    content = bytearray((path / ARRAY_NAME).read_bytes())
    content[-5] ^= 1
    (path / ARRAY_NAME).write_bytes(content)


def cut(path: Path) -> None:
    (path / ARRAY_NAME).write_bytes((path / ARRAY_NAME).read_bytes()[:-8])


def lose_the_array(path: Path) -> None:
    (path / ARRAY_NAME).unlink()


def lose_the_entry(path: Path) -> None:
    (path / ENTRY_NAME).unlink()


def garble_the_entry(path: Path) -> None:
    (path / ENTRY_NAME).write_text('{"sha256": ')


def make_it_another_shape(path: Path) -> None:
    np.save(path / ARRAY_NAME, np.zeros((2, 2), np.float32))
    content = (path / ARRAY_NAME).read_bytes()
    facts = {"sha256": array_store._sha256(path / ARRAY_NAME), "bytes": len(content)}
    (path / ENTRY_NAME).write_text(json.dumps(facts))


@pytest.mark.parametrize(
    "damage", [flip_a_byte, cut, lose_the_array, lose_the_entry, garble_the_entry, make_it_another_shape]
)
def test_a_damaged_entry_is_told_and_made_anew(case, damage):
    path = case.get().path
    case.store.close()
    damage(path)
    assert not case.get().reused
    assert len(case.told) == 1 and str(path) in case.told[0] and "made anew" in case.told[0]
    assert case.get().reused and case.made == 2
    assert entry_names(case.store.folder) == [KEY]


def test_an_entry_that_is_not_accepted_is_made_anew(case):
    case.get()
    assert not case.get(accept=lambda array: False).reused
    assert case.get(accept=lambda array: True).reused


def test_nothing_is_left_of_an_array_that_could_not_be_made(case):
    def fail(array):
        array[0] = 1
        raise OSError("a picture cannot be read")

    with pytest.raises(OSError, match="a picture cannot be read"):
        case.store.get_or_make(KEY, SHAPE, np.float32, fail)
    assert entry_names(case.store.folder) == []
    assert not case.get().reused


def test_the_entry_used_longest_ago_goes_first(tmp_path):
    size = 1000 * 4
    case = Case(tmp_path, limit_bytes=2.5 * size)
    for age, key in ((30, KEY), (20, OTHER_KEY)):
        path = case.get(key, (1000,)).path
        os.utime(path / ENTRY_NAME, (time.time() - age,) * 2)
    case.store.close()
    assert case.get(KEY, (1000,)).reused  # used now, so that the other one is the oldest
    case.get(THIRD_KEY, (1000,))
    assert entry_names(tmp_path) == sorted([KEY, THIRD_KEY])
    assert case.told == []
    case.store.close()


def test_an_entry_in_use_stays(tmp_path):
    size = 1000 * 4
    case, other = (Case(tmp_path, limit_bytes=1.5 * size) for _ in range(2))
    case.get(KEY, (1000,))
    stored = other.get(OTHER_KEY, (1000,))
    assert stored.path is None and "taken by entries in use" in other.told[0]
    case.store.close()
    assert other.get(OTHER_KEY, (1000,)).path is not None
    assert entry_names(tmp_path) == [OTHER_KEY]
    other.store.close()


def test_more_than_the_limit_stays_in_memory(tmp_path):
    case = Case(tmp_path, limit_bytes=10)
    assert case.get().path is None
    assert "more than its limit" in case.told[0] and "memory" in case.told[0]


def test_a_folder_that_cannot_be_made_costs_the_cache_only(tmp_path):
    (tmp_path / "file").write_text("")
    case = Case(tmp_path / "file" / "arrays")
    assert case.get().path is None and len(case.told) == 1


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_is_only_read_serves_what_it_holds(tmp_path):
    Case(tmp_path).get()
    for path in (*tmp_path.rglob("*"), tmp_path):
        path.chmod(0o555 if path.is_dir() else 0o444)
    case = Case(tmp_path)
    assert case.get().reused and case.get(OTHER_KEY).path is None and len(case.told) == 1
    for path in (tmp_path, *tmp_path.rglob("*")):
        path.chmod(0o755)


def test_a_full_disk_is_met_before_the_work(case, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    assert case.get().path is None
    assert "No space left" in case.told[0]
    assert entry_names(case.store.folder) == []


def test_what_was_computed_survives_a_failure_to_publish(case, monkeypatch):
    def fail(*_):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "rename", fail)
    assert case.get().path is None and case.made == 1
    assert "Input/output error" in case.told[0] and "kept for this run" in case.told[0]


def test_what_a_dead_process_left_is_removed(case):
    left = case.store.folder / f".new-{KEY[:16]}-abc"
    old = case.store.folder / ".old-0123-1-1"
    for path in (left, old):
        path.mkdir(parents=True)
        (path / ARRAY_NAME).write_bytes(b"half")
    os.utime(old, (0, 0))
    case.get()
    assert entry_names(case.store.folder) == [KEY]


MAKER = """
import sys, time
import numpy as np
from manyfit.array_store import ArrayStore

def fill(array):
    print("makes", flush=True)
    time.sleep(float(sys.argv[3]))
    array[:] = np.arange(array.size).reshape(array.shape)

store = ArrayStore(sys.argv[1], 1e6, lambda text: print(text, flush=True))
stored = store.get_or_make(sys.argv[2], (5, 3), np.float32, fill)
print("right" if (stored.array == np.arange(15).reshape(5, 3)).all() else "wrong", stored.reused)
"""


def start_maker(folder: Path, seconds: float) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", MAKER, str(folder), KEY, str(seconds)],
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        stdout=subprocess.PIPE,
        text=True,
    )


def test_of_processes_at_once_one_makes_and_the_others_wait(tmp_path):
    makers = [start_maker(tmp_path, 1.0) for _ in range(3)]
    outputs = [maker.communicate(timeout=60)[0] for maker in makers]
    assert sum("makes" in output for output in outputs) == 1
    assert sum("right True" in output for output in outputs) == 2
    assert sum("right False" in output for output in outputs) == 1


def test_a_killed_maker_stops_nobody(tmp_path):
    maker = start_maker(tmp_path, 600)
    assert maker.stdout.readline() == "makes\n"
    maker.kill()
    maker.communicate(timeout=60)
    case = Case(tmp_path)
    assert not case.get().reused and case.told == []
    assert entry_names(tmp_path) == [KEY]
    case.store.close()
