"""One run of several workers: the numbers of one process, and what happens when a worker fails."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from manyfit import checkpoint
from manyfit.command import repository_root
from manyfit.record import RunRecord
from manyfit.report.system_samples import read_samples

pytestmark = pytest.mark.slow

SMALL = (
    "data=synthetic", "data.num_train=101", "data.num_validation=29", "data.num_classes=3", "data.image_size=14",
    "model=small_cnn", "model.filters=4", "model.units=8", "epochs=3", "tracker=none", "strategy.device=cpu",
    "batch.global_batch_size=24", "steps_per_execution=2", "checkpoint.every_steps=2", "probe=false",
    "metrics=[top_2,auc]", "optimizer=sgd", "optimizer.learning_rate=0.1",
)  # fmt: skip
FROZEN = (
    "data=synthetic", "data.num_train=50", "data.num_validation=16", "data.num_classes=2", "data.image_size=32",
    "data.channels=3", "model=application", "model.name=MobileNetV2", "model.image_size=32",
    "model.weights=none", "epochs=2", "tracker=none", "strategy.device=cpu", "batch.global_batch_size=16",
    "model.feature_cache=disk", "probe=true", "tracker.log_mistakes=2",
)  # fmt: skip
NUMBERS = ("loss", "accuracy", "val_loss", "val_accuracy", "val_top_2", "val_auc", "learning_rate")


def last_arrays(folder: Path) -> dict[str, np.ndarray]:
    """The variables at the end of a training; what is counted apart on the replicas, summed."""
    arrays = checkpoint.load(checkpoint.paths(folder / "checkpoints")[0]).arrays
    return {name: array.sum(0) if name.startswith("metric/") else array for name, array in arrays.items()}


def assert_same_fit(folder: Path, other: Path, tolerance: float = 1e-5) -> None:
    one, two = RunRecord.load(folder).data, RunRecord.load(other).data
    assert [row["epoch"] for row in one["epochs"]] == [row["epoch"] for row in two["epochs"]]
    for row, expected in zip(one["epochs"], two["epochs"], strict=True):
        for name in NUMBERS:
            assert row.get(name) == pytest.approx(expected.get(name), abs=tolerance), name
    arrays, others = last_arrays(folder), last_arrays(other)
    assert arrays.keys() == others.keys()
    for name, array in arrays.items():
        np.testing.assert_allclose(array, others[name], atol=tolerance, rtol=tolerance, err_msg=name)


@pytest.fixture(scope="module")
def alone(runner, tmp_path_factory) -> Path:
    """The same training in one process on one device."""
    folder = tmp_path_factory.mktemp("alone") / "run"
    assert runner.run("strategy.replicas=1", *SMALL, f"hydra.run.dir={folder}") == 0, runner.log.read_text()
    return folder


@pytest.mark.parametrize(("workers", "replicas"), [(2, 1), (3, 1), (2, 2)])
def test_workers_give_the_numbers_of_one_process(runner, alone, tmp_path, workers, replicas):
    run = tmp_path / "run"
    codes = runner.run_workers(workers, f"strategy.replicas={replicas}", *SMALL, f"hydra.run.dir={run}")
    assert codes == [0] * workers, runner.worker_log(0).read_text()
    assert_same_fit(run, alone)
    record = RunRecord.load(run).data
    assert record["strategy"]["num_replicas"] == workers * replicas
    assert record["strategy"]["num_workers"] == workers
    assert sorted(path.name for path in (run / "workers").iterdir()) == [f"rank-{n}" for n in range(1, workers)]
    assert not list(run.glob("workers/*/record.json")) and not list(run.glob("workers/*/*.keras"))
    assert {node["rank"] for node in record["system"]["workers"]} == set(range(1, workers))


def test_a_gradient_that_travels_in_several_pieces_is_the_same(runner, tmp_path):
    own = ("model.units", "model.filters", "data.image_size", "epochs")
    large = [word for word in SMALL if word.partition("=")[0] not in own]
    large += ["model.units=1200", "model.filters=16", "data.image_size=28", "epochs=1"]
    assert runner.run("strategy.replicas=1", *large, f"hydra.run.dir={tmp_path / 'one'}") == 0
    assert runner.run_workers(2, *large, f"hydra.run.dir={tmp_path / 'two'}") == [0, 0]
    assert RunRecord.load(tmp_path / "two").data["model"]["num_parameters"] > 2 * 4_000_000 / 4
    assert_same_fit(tmp_path / "two", tmp_path / "one")


@pytest.mark.parametrize("victim", [0, 1])
def test_a_worker_that_is_killed_ends_the_others_and_the_run_goes_on_with_any_number(runner, alone, tmp_path, victim):
    run = tmp_path / "run"
    started = time.monotonic()
    codes = runner.run_workers(2, *SMALL, f"hydra.run.dir={run}", kill=("a step", 5), rank=victim)
    assert codes[victim] == -signal.SIGKILL and codes[1 - victim] == 75
    assert time.monotonic() - started < 90
    said = runner.worker_log(1 - victim).read_text() + "".join(path.read_text() for path in run.rglob("log.txt"))
    assert re.search(rf"rank {victim} \(127\.0\.0\.1:\d+\) is lost", said)
    if victim == 1:
        assert RunRecord.load(run).data["status"] == "failed" and RunRecord.load(run).data["exit_code"] == 75
    # two workers -> one process -> three workers
    going_on = [*SMALL, f"hydra.run.dir={run}", "resume=auto"]
    assert runner.run("strategy.replicas=1", *going_on, kill=("a step", 4)) == -signal.SIGKILL
    assert runner.run_workers(3, *going_on) == [0, 0, 0], runner.worker_log(0).read_text()
    assert_same_fit(run, alone)


def test_workers_that_go_on_do_so_to_the_bit(runner, tmp_path):
    plain, run = tmp_path / "plain", tmp_path / "run"
    assert runner.run_workers(2, *SMALL, f"hydra.run.dir={plain}") == [0, 0], runner.worker_log(0).read_text()
    runner.run_workers(2, *SMALL, f"hydra.run.dir={run}", kill=("validation", 2), rank=1)
    going_on = runner.run_workers(2, *SMALL, f"hydra.run.dir={run}", "resume=auto")
    assert going_on == [0, 0], runner.worker_log(0).read_text()
    one, two = last_arrays(plain), last_arrays(run)
    for name, array in one.items():
        np.testing.assert_array_equal(array, two[name], err_msg=name)


@pytest.mark.parametrize("rank", [0, 1])
def test_sigterm_to_any_one_worker_stops_all_at_the_same_step(runner, tmp_path, rank):
    run = tmp_path / "run"
    codes = runner.run_workers(
        2, *SMALL, f"hydra.run.dir={run}", kill=("a step", 3), rank=rank, signal_number=signal.SIGTERM
    )
    assert codes == [143, 143], runner.worker_log(0).read_text()
    record = RunRecord.load(run).data
    assert record["status"] == "stopped" and "SIGTERM" in record["error"]
    assert checkpoint.paths(run / "checkpoints")


def test_a_worker_that_stands_still_is_named(runner, tmp_path):
    codes = runner.run_workers(
        2, *SMALL, f"hydra.run.dir={tmp_path / 'run'}", "strategy.lost_after_seconds=4",
        kill=("a step", 3), rank=1, signal_number=signal.SIGSTOP,
    )  # fmt: skip
    assert codes == [75, None]
    assert "rank 1" in runner.worker_log(0).read_text() and "stands still" in runner.worker_log(0).read_text()


def test_a_worker_that_comes_late_is_waited_for_and_one_that_does_not_come_is_named(runner, tmp_path):
    short = [word for word in SMALL if not word.startswith("epochs")] + ["epochs=1"]
    assert runner.run_workers(2, *short, f"hydra.run.dir={tmp_path / 'late'}", late={1: 6.0}) == [0, 0]
    codes = runner.run_workers(
        2, *short, f"hydra.run.dir={tmp_path / 'never'}", "strategy.assemble_seconds=3", late={1: 12.0}
    )
    assert codes[0] == 75 and "rank 1 (127.0.0.1" in runner.worker_log(0).read_text()
    assert not (tmp_path / "never").exists()


def test_workers_with_another_configuration_or_other_data_are_told_before_the_first_step(runner, tmp_path):
    run = f"hydra.run.dir={tmp_path / 'run'}"
    codes = runner.run_workers(2, *SMALL, run, own={1: ["optimizer.learning_rate=0.2"]})
    assert codes == [2, 2]
    for rank in (0, 1):
        said = runner.worker_log(rank).read_text()
        assert "optimizer.learning_rate" in said and "0.2" in said and "rank 1" in said
    assert not (tmp_path / "run").exists()


def test_workers_evaluate_and_predict_what_one_process_does(runner, alone, draw_pictures, tmp_path):
    words = [alone, "--device", "cpu", "--json"]
    assert runner.run(*words, script="evaluate") == 0
    one = json_in(runner.log.read_text())
    assert runner.run_workers(2, *words, "--workers", "auto", script="evaluate") == [0, 0]
    two = json_in(runner.worker_log(0).read_text())
    assert two["num_examples"] == one["num_examples"] == 29 and two["confusion_matrix"] == one["confusion_matrix"]
    assert two["loss"] == pytest.approx(one["loss"], abs=1e-6)
    draw_pictures(tmp_path / "pictures", 37, 50)
    (tmp_path / "pictures" / "3.jpg").write_text("no picture")
    words = [alone, tmp_path / "pictures", "--device", "cpu", "--csv"]
    assert runner.run(*words, tmp_path / "one.csv", script="predict") == 0
    codes = runner.run_workers(3, *words, tmp_path / "three.csv", "--workers", "auto", script="predict")
    assert codes == [0, 0, 0], runner.worker_log(0).read_text()
    one, three = ((tmp_path / f"{name}.csv").read_text().splitlines() for name in ("one", "three"))
    assert len(one) == 37 and [row.split(",")[:2] for row in one] == [row.split(",")[:2] for row in three]
    assert (tmp_path / "three.unreadable.csv").read_text() == (tmp_path / "one.unreadable.csv").read_text()


def on_hosts(hosts: dict[str, str], folder: Path, *overrides: object) -> list[subprocess.Popen]:
    """A run of one worker a host; forks will not do, since gRPC's threads stay in the network that they began in."""
    addresses = [f"{address}:2222" for address in hosts.values()]
    started = []
    for rank, name in enumerate(hosts):
        cluster = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": rank}}
        words = ["ip", "netns", "exec", name, sys.executable, str(repository_root() / "src" / "train.py")]
        words += ["strategy=multi_worker", *map(str, overrides), f"hydra.run.dir={folder}"]
        environment = {**os.environ, "TF_CONFIG": json.dumps(cluster)}
        with (folder.parent / f"{rank}.txt").open("w") as log:
            started.append(subprocess.Popen(words, env=environment, stdout=log, stderr=log, cwd=folder.parent))
    return started


def ends(started: list[subprocess.Popen], seconds: float = 120) -> list[int]:
    """Their exit codes; none of them is left."""
    try:
        return [process.wait(seconds) for process in started]
    finally:
        for process in started:
            process.kill()
            process.wait()


def test_two_hosts_with_addresses_of_their_own_and_the_same_port_past_a_dead_proxy(alone, two_hosts, tmp_path):
    assert os.environ["http_proxy"]  # which gRPC would take, as it does in many a data centre
    codes = ends(on_hosts(two_hosts, tmp_path / "run", *SMALL))
    assert codes == [0, 0], (tmp_path / "0.txt").read_text()
    assert_same_fit(tmp_path / "run", alone)
    assert RunRecord.load(tmp_path / "run").data["strategy"]["workers"] == ["10.77.31.1:2222", "10.77.31.2:2222"]


def test_a_network_that_is_cut_ends_both_sides_with_the_name_of_the_other(two_hosts, tmp_path):
    long = [word for word in SMALL if not word.startswith("epochs")] + ["epochs=2000", "strategy.lost_after_seconds=4"]
    started = on_hosts(two_hosts, tmp_path / "run", *long)
    until = time.monotonic() + 90
    while not (tmp_path / "run" / "epochs.jsonl").exists() and time.monotonic() < until:
        time.sleep(0.2)
    name = next(iter(two_hosts))
    subprocess.run(["ip", "-n", name, "link", "set", f"v{name}", "down"], check=True)
    assert ends(started) == [75, 75]
    for rank, other in ((0, "rank 1 (10.77.31.2:2222)"), (1, "rank 0 (10.77.31.1:2222)")):
        assert f"{other} is lost" in (tmp_path / f"{rank}.txt").read_text()


def json_in(output: str) -> dict:
    """The JSON object that a script printed."""
    return json.loads(output[output.index("{") : output.rindex("}") + 1])


def test_each_worker_computes_its_share_of_the_features(runner, tmp_path):
    for name, start in (("one", lambda *words: [runner.run(*words)]), ("two", lambda *w: runner.run_workers(2, *w))):
        words = [*FROZEN, f"hydra.run.dir={tmp_path / name}", f"data.cache_dir={tmp_path / f'cache-{name}'}"]
        assert set(start(*words)) == {0}, runner.worker_log(0).read_text()
    one, two = (RunRecord.load(tmp_path / name).data for name in ("one", "two"))
    assert two["features"]["num_images"] == one["features"]["num_images"] == 66 and not two["features"]["reused"]
    for row, expected in zip(two["epochs"], one["epochs"], strict=True):
        assert row["loss"] == pytest.approx(expected["loss"], abs=1e-4)
    entries = [len(list((tmp_path / f"cache-{name}" / "arrays").glob("*/array.npy"))) for name in ("one", "two")]
    assert entries[0] == entries[1] == 2  # the parts are gone
    assert two["verdict"]["sentence"] and two["mistakes"]["num_examples"] == 16


def test_the_devices_of_all_workers_are_in_record_and_page(script, nvml_stub, tmp_path):
    run, page = tmp_path / "run", tmp_path / "page.html"
    done = script(
        "train.py", "strategy=multi_worker", "strategy.local_workers=2", *SMALL, f"hydra.run.dir={run}",
        "tracker.system_metrics_gpus=all", "tracker.system_metrics_seconds=0.2",
        **nvml_stub.environment(gpus=2),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    system = RunRecord.load(run).data["system"]
    (other,) = system["workers"]
    assert (other["rank"], other["gpu_indices"], other["gpu"]) == (1, [0, 1], "2 x Stub GPU")
    # Both sampled the GPUs of this one machine, whose energy counts once.
    samples, _ = read_samples(run)
    elapsed = [sample["elapsed_seconds"] for sample in samples]
    watts = [sum(gpu["power_watts"] for gpu in sample["gpus"]) for sample in samples]
    assert system["energy_watt_hours"] == pytest.approx(np.trapezoid(watts, elapsed) / 3600)
    assert script("compare.py", run, "--html", page).returncode == 0
    assert "GPU 1 of rank 1" in page.read_text() and "GPU 1 of rank 0" in page.read_text()
