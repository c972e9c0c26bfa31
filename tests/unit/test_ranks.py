"""What the chief of a run does for all ranks: two ranks as two threads."""

import json
import threading
from pathlib import Path

import numpy as np

from manyfit import checkpoint, ranks
from manyfit.checkpoint import Checkpoint, Position
from manyfit.errors import ConfigError
from manyfit.peers import Peers
from manyfit.record import RunRecord


class Thread(Peers):
    """A rank of two that are threads of one process."""

    values: dict[str, list]
    barrier: threading.Barrier

    def __init__(self, rank: int, values: dict, barrier: threading.Barrier):
        super().__init__()
        self.rank, self.num_workers, self.values, self.barrier = rank, 2, values, barrier

    def _exchange(self, call, name, value):
        self.values.setdefault(name, [None, None])[self.rank] = json.loads(json.dumps(value))
        self.barrier.wait(20)
        found = list(self.values[name])
        self.barrier.wait(20)
        return found[0] if call == "broadcast" else found


def on_both(action):
    """What `action(peers)` returned or raised on each rank."""
    values, barrier, outcome = {}, threading.Barrier(2), [None, None]

    def run(rank):
        try:
            outcome[rank] = action(Thread(rank, values, barrier))
        except Exception as error:
            outcome[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return outcome


def test_the_chief_comes_first():
    order = []

    def action(peers):
        with ranks.chief_first(peers, "data"):
            order.append(peers.rank)

    for _ in range(20):
        on_both(action)
    assert order == [0, 1] * 20


def test_all_get_the_folder_that_the_chief_made(tmp_path):
    def make() -> Path:
        (tmp_path / "run").mkdir()
        return tmp_path / "run"

    assert on_both(lambda peers: ranks.run_folder(peers, make)) == [tmp_path / "run"] * 2


def test_a_folder_that_a_rank_does_not_see_is_refused_on_all(tmp_path, monkeypatch):
    sees = Path.is_dir
    monkeypatch.setattr(Path, "is_dir", lambda path: sees(path) and threading.current_thread() is not blind[0])
    blind = []

    def action(peers):
        if peers.rank == 1:
            blind.append(threading.current_thread())
        return ranks.run_folder(peers, lambda: tmp_path)

    outcome = on_both(action)
    assert all(isinstance(error, ConfigError) for error in outcome)
    assert "not seen by rank 1" in str(outcome[0]) and "share" in str(outcome[0])


def begun(folder: Path, found: Checkpoint | None) -> ranks.Opened:
    return RunRecord.create(folder, data={"name": "mnist"}), found, ["told"]


def test_other_ranks_have_the_record_in_memory_alone(tmp_path):
    def action(peers):
        record, found, _ = ranks.open_record(peers, tmp_path, lambda: begun(tmp_path, None))
        record.add_epoch({"epoch": 1, "loss": np.float32(0.5)})
        record.update("best", epoch=1)
        return record, found

    (chief, none), (other, also_none) = on_both(action)
    assert none is also_none is None
    assert other.data["data"] == chief.data["data"] == {"name": "mnist"}
    assert other.data["epochs"] == chief.data["epochs"] == [{"epoch": 1, "loss": 0.5}]
    assert other.folder == tmp_path / "workers" / "rank-1" and not list(other.folder.iterdir())
    assert RunRecord.load(tmp_path).data["epochs"] == chief.data["epochs"]


def test_all_go_on_from_the_checkpoint_of_the_chief(tmp_path):
    taken = Checkpoint(Position(1, 3), {"network/0": np.arange(3.0)}, {"callbacks": {}})
    checkpoint.save(tmp_path / checkpoint.FOLDER_NAME, taken)
    opened = on_both(lambda peers: ranks.open_record(peers, tmp_path, lambda: begun(tmp_path, taken)))
    assert [found.position for _, found, _ in opened] == [Position(1, 3)] * 2
    np.testing.assert_array_equal(opened[1][1].arrays["network/0"], [0.0, 1.0, 2.0])


def test_a_rank_that_finds_another_checkpoint_is_told(tmp_path):
    gone = Checkpoint(Position(2), {}, {"callbacks": {}})  # on a disk that the other rank does not have
    checkpoint.save(tmp_path / checkpoint.FOLDER_NAME, Checkpoint(Position(1), {}, {"callbacks": {}}))
    outcome = on_both(lambda peers: ranks.open_record(peers, tmp_path, lambda: begun(tmp_path, gone)))
    assert all(isinstance(error, ConfigError) and "position in the training" in str(error) for error in outcome)
