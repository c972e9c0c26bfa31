"""`batch=auto` without a device: which sizes are tried, which one is taken, and what is kept for the next run."""

import json
import sys

import pytest

from manyfit import batch_search
from manyfit.batch_child import Child
from manyfit.batch_search import find_size, largest_size, resolve
from manyfit.config import AutoBatchConfig, RunConfig, SyntheticConfig, TrackerConfig, from_yaml, to_yaml
from manyfit.errors import ConfigError, UserError

CONFIG = RunConfig(data=SyntheticConfig(), tracker=TrackerConfig(), batch=AutoBatchConfig())
FACTS = {"devices": ["CPU:0"], "input_shape": [28, 28, 1], "num_classes": 4}


def search(speeds, largest=10_000):
    """What comes of a curve; the sizes that were tried, in order."""
    tried = []

    def measure(size):
        tried.append(size)
        return speeds[size] if isinstance(speeds, dict) else speeds(size)

    return find_size(measure, largest), tried


def test_the_size_is_doubled_until_it_gains_too_little():
    found, tried = search({8: 100.0, 16: 190.0, 32: 300.0, 64: 310.0})
    assert (found.per_replica_batch_size, found.stopped_by) == (32, "gain")
    assert found.curve == {8: 100.0, 16: 190.0, 32: 300.0, 64: 310.0}
    assert tried == [8, 16, 32, 64, 32, 64]  # both again, before that is believed


def test_a_moment_of_noise_does_not_end_the_search():
    answers = iter([100.0, 90.0, 100.0, 190.0, 300.0, None])
    found, tried = search(lambda size: next(answers))
    assert tried == [8, 16, 8, 16, 32, 64]
    assert (found.per_replica_batch_size, found.stopped_by) == (32, "memory")


def test_the_fastest_is_taken_where_more_is_slower():
    found, _ = search({8: 100.0, 16: 200.0, 32: 150.0})
    assert found.per_replica_batch_size == 16


def test_out_of_memory_ends_it_at_what_fits():
    found, _ = search({8: 100.0, 16: 200.0, 32: None})
    assert (found.per_replica_batch_size, found.stopped_by, found.curve[32]) == (16, "memory", None)
    with pytest.raises(ConfigError, match="8 examples a replica do not fit"):
        search({8: None})


def test_an_epoch_keeps_its_steps():
    found, tried = search(lambda size: float(size), largest=104)
    assert tried == [8, 16, 32, 64, 104]
    assert (found.per_replica_batch_size, found.stopped_by) == (104, "steps")
    assert search(lambda size: float(size), largest=72)[1] == [8, 16, 32, 64]  # not worth another trial
    found, tried = search(lambda size: float(size), largest=5)
    assert (found.per_replica_batch_size, tried) == (5, [])


@pytest.mark.parametrize("num_train", [1, 7, 37, 160, 2000, 50_001])
@pytest.mark.parametrize(("replicas", "accumulation"), [(1, 1), (4, 1), (2, 3)])
@pytest.mark.parametrize("remainder", ["pad", "drop"])
@pytest.mark.parametrize("floor", [1, 20])
def test_the_largest_size_keeps_the_floor(num_train, replicas, accumulation, remainder, floor):
    size = largest_size(num_train, replicas, accumulation, floor, remainder)

    def steps(size):
        rows = size * replicas * accumulation
        return num_train // rows if remainder == "drop" else -(-num_train // rows)

    assert size >= 1
    if size > 1:
        assert steps(size) >= floor
        step = 8 if size >= 8 else 2
        assert size % step == 0
        larger = size + step
        assert steps(larger) < floor or larger * replicas * accumulation > num_train


# --- the child, acted by a script -------------------------------------------------------------------------------------

CHILD = """
import json, os, sys
from pathlib import Path
here = Path(HERE)
for line in sys.stdin:
    size = int(line)
    with (here / "asked").open("a") as file:
        file.write(f"{size} of {os.getpid()}\\n")
    print("something else")
    if size == 32 and MODE == "abort":
        os.abort()
    if size == 32 and MODE == "error":
        print("RESULT " + json.dumps({"error": "ValueError: bad shape"}), flush=True)
        continue
    if MODE == "exit":
        sys.exit("no such module")
    speed = None if size >= 32 and MODE == "memory" else min(size, 64) * 10.0
    print("RESULT " + json.dumps({"images_per_second": speed}), flush=True)
"""


@pytest.fixture
def acted(tmp_path, monkeypatch):
    """Have a script act the child; gives the function that says what it was asked."""

    def act(mode):
        code = CHILD.replace("HERE", repr(str(tmp_path))).replace("MODE", repr(mode))
        monkeypatch.setattr(batch_search, "Child", lambda config: Child(config, (sys.executable, "-c", code)))
        (tmp_path / "asked").write_text("")

        def asked():
            return [line.split(" of ") for line in (tmp_path / "asked").read_text().splitlines()]

        return asked

    return act


def resolved(tmp_path, config=CONFIG, num_train=50_000, shown=None, **facts):
    return resolve(
        config,
        facts={**FACTS, **facts},
        num_train=num_train,
        num_replicas=1,
        cache_dir=tmp_path / "cache",
        show=[].append if shown is None else shown.append,
    )


def test_the_configuration_gets_the_size_and_the_record_the_curve(tmp_path, acted):
    asked, shown = acted("good"), []
    config, found = resolved(tmp_path, shown=shown)
    assert found is not None and config.batch.per_replica_batch_size == found.per_replica_batch_size == 64
    assert [size for size, _ in asked()] == ["8", "16", "32", "64", "128", "64", "128"]
    assert len({pid for _, pid in asked()}) == 1
    assert found.as_dict()["curve"][0] == {"per_replica_batch_size": 8, "images_per_second": 80.0}
    assert shown[1] == "      8 a replica: 80.0 images/s"
    assert shown[-1] == "batch=auto: 64 a replica; a larger one gains less than 5 %."
    again = from_yaml(to_yaml(config))
    assert again.batch == config.batch
    assert resolved(tmp_path, again) == (again, None)  # what was found is not searched for again


def test_what_was_measured_is_kept_for_the_same_model_and_devices(tmp_path, acted):
    asked = acted("good")
    resolved(tmp_path)
    (tmp_path / "asked").write_text("")
    shown = []
    config, found = resolved(tmp_path, shown=shown)
    assert found is not None and found.as_dict()["reused"] and asked() == []
    assert config.batch.per_replica_batch_size == 64
    assert shown[-1].endswith("measured by an earlier run.")
    # A smaller data set takes its part of the same curve; another device measures anew.
    assert resolved(tmp_path, num_train=600)[0].batch.per_replica_batch_size == 24
    assert [size for size, _ in asked()] == ["24"]
    resolved(tmp_path, devices=["GPU:0 Tesla K80"])
    assert [size for size, _ in asked()][1:3] == ["8", "16"]


def test_a_broken_cache_is_measured_anew(tmp_path, acted):
    asked = acted("good")
    resolved(tmp_path)
    [path] = (tmp_path / "cache" / "batch_size").iterdir()
    assert json.loads(path.read_text())["key"]["facts"] == FACTS
    path.write_text("{")
    (tmp_path / "asked").write_text("")
    resolved(tmp_path)
    assert asked()


@pytest.mark.parametrize("mode", ["memory", "abort"])
def test_out_of_memory_is_believed_of_a_fresh_process_only(tmp_path, acted, mode):
    asked = acted(mode)
    config, found = resolved(tmp_path)
    assert found is not None and (config.batch.per_replica_batch_size, found.stopped_by) == (16, "memory")
    sizes, pids = zip(*asked(), strict=True)
    assert sizes == ("8", "16", "32", "32")
    assert pids[0] == pids[1] == pids[2] != pids[3]


def test_another_failure_is_an_error(tmp_path, acted):
    acted("error")
    with pytest.raises(UserError, match="step of 32 examples a replica failed.\nValueError: bad shape"):
        resolved(tmp_path)
    acted("exit")
    with pytest.raises(UserError, match="ended with code 1.\nno such module"):
        resolved(tmp_path, num_classes=5)


def test_nothing_is_searched_where_a_size_is_given(tmp_path):
    for batch in (AutoBatchConfig(per_replica_batch_size=4), RunConfig().batch):
        config = RunConfig(data=SyntheticConfig(), tracker=TrackerConfig(), batch=batch)
        assert resolved(tmp_path, config) == (config, None)
    with pytest.raises(ConfigError, match="batch=auto finds the size"):
        AutoBatchConfig(global_batch_size=64)


def test_a_small_data_set_is_not_measured(tmp_path, acted):
    asked = acted("good")
    config, found = resolved(tmp_path, num_train=100)
    assert (config.batch.per_replica_batch_size, asked()) == (4, [])
    assert found is not None and found.stopped_by == "steps"
