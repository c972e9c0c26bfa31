"""Runs read from disk, whatever state they are in, and the facts that follow from what they say."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manyfit.errors import UserError
from manyfit.report.runs import load_runs
from manyfit.report.system_samples import phases, read_samples


@pytest.fixture
def load(tmp_path, made_runs):
    def one(name="run", **changes):
        return load_runs([made_runs.make_run(tmp_path / name, **changes)])[0]

    return one


def test_the_facts_of_a_finished_run(load):
    run = load(replicas=4, speed=2000.0, epochs=3, accuracy=0.9, probe=5.0)
    assert (run.num_replicas, run.num_devices, run.on_gpu) == (4, 4, True)
    assert (run.examples_per_step, run.examples_per_replica, run.examples_per_epoch) == (40, 10, 4000)
    assert run.examples_seen == (4000, 8000, 12000)
    assert run.images_per_second == pytest.approx(2000.0)
    assert run.elapsed == (15.0, 18.0, 21.0)  # 12 s start-up, then 2 s + 1 s an epoch
    assert run.epoch_seconds == 3.0
    assert run.total_seconds == 24.0  # 3 s at the end; the probe is not the training's
    assert run.best_accuracy == 0.9
    assert [run.seconds_to(goal) for goal in (0.3, 0.31, 0.9, 0.91)] == [15.0, 18.0, 21.0, None]


def test_logical_devices_are_one_cpu(load):
    run = load(replicas=2, gpu=False)
    assert (run.on_gpu, run.num_devices, run.devices) == (False, 1, ("CPU:0", "CPU:1"))


def test_rows_without_their_time_are_summed_up(load):
    assert load(elapsed=False, epochs=3, speed=2000.0).elapsed == (15.0, 18.0, 21.0)


def test_a_row_that_says_its_time_is_believed(load):
    run = load(epochs=3)
    for row, second in zip(run.epochs, (99.0, None, 150.0), strict=True):
        row["elapsed_seconds"] = second
    assert run.elapsed == (99.0, 104.0, 150.0)


def test_accumulated_batches_and_dropped_remainders_are_counted(load):
    run = load()
    run.record["batch"].update(gradient_accumulation=3, steps_per_epoch=33)
    assert (run.examples_per_step, run.examples_per_replica) == (120, 120)
    assert run.examples_per_epoch == 3960  # 33 whole steps of 120; 40 examples were dropped


def test_the_time_split_adds_up_to_the_whole(load):
    run = load(epochs=5, probe=2.0, verdict={"shares": {"input": 0.25, "compute": 0.75}, "bound": "input"})
    assert run.time_split == {
        "start": 10.0,
        "features": 2.0,
        "train": 15.0,
        "waiting for input": 5.0,
        "validation": 5.0,
        "probe": 2.0,
        "other": 3.0,
    }
    assert sum(run.time_split.values()) == run.record["timing"]["total_seconds"]


def test_without_a_probe_nothing_is_said_to_wait(load):
    assert "waiting for input" not in load().time_split


def test_a_run_that_was_killed_has_what_it_has(load, made_runs):
    run = load(status="running", epochs=2, asked_epochs=9, samples=made_runs.make_samples(20))
    assert (run.finished, run.total_seconds, len(run.epochs)) == (False, None, 2)
    assert "other" not in run.time_split and run.time_split["train"] == 8.0
    assert run.system_means("train")["gpu.0.utilization_percent"] == 80.0  # from the samples: the record has no means


def test_a_run_of_several_workers_has_the_samples_of_all(load, made_runs):
    chief, other = made_runs.make_samples(20), made_runs.make_samples(20, node="other", utilization=20.0)
    run = load(status="running", epochs=2, asked_epochs=9, samples=chief, worker_samples=[other])
    assert {rank: samples[0]["node"] for rank, samples in run.worker_samples.items()} == {1: "other"}
    means = run.system_means("train")
    assert (means["gpu.0.utilization_percent"], means["rank-1.gpu.0.utilization_percent"]) == (80.0, 20.0)
    # 400 W on each of two GPUs; the trapezoids that end in the training: from 9 s to 17 s, and to 20 s
    assert run.joules_per_image == pytest.approx(2 * 9 * 400 / run.examples_seen[-1])


def test_samples_of_a_worker_that_cannot_be_read_are_told(load, made_runs):
    run = load(samples=made_runs.make_samples(5), worker_samples=[made_runs.make_samples(5)])
    path = run.folder / "workers" / "rank-1" / "system.jsonl"
    path.write_text(path.read_text()[:-20])
    (again,) = load_runs([run.folder])
    assert again.problems == ("rank 1: 1 of 6 lines of system.jsonl cannot be read",)
    assert len(again.worker_samples[1]) == 5


def test_a_run_that_failed_before_its_first_epoch(load):
    run = load(status="failed", epochs=0, asked_epochs=5, error="KeyError: 'x'\nmore")
    assert (run.images_per_second, run.best_accuracy, run.epoch_seconds, run.elapsed) == (None, None, None, ())
    assert run.seconds_to(0.5) is None


@pytest.mark.parametrize("content", [None, "", "a: [", "- 1\n- 2\n", "a: ${b}", "\0", "*x"])
def test_a_configuration_that_cannot_be_read_is_told(load, tmp_path, content):
    run = load()
    path = run.folder / "config.yaml"
    path.unlink()
    if content is not None:
        path.write_text(content)
    again = load_runs([run.folder])[0]
    assert again.settings in (None, {})
    if content != "":
        assert len(again.problems) == 1 and "config.yaml cannot be read" in again.problems[0]


def test_settings_are_dotted(load):
    settings_of_run = load(config={"optimizer__learning_rate": 1e-5}).settings
    assert settings_of_run["optimizer.learning_rate"] == 1e-5
    assert settings_of_run["data.name"] == "mnist"


def test_a_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(UserError, match="holds no run"):
        load_runs([tmp_path])


def test_the_same_run_twice_is_refused(load):
    run = load()
    with pytest.raises(UserError, match="given twice"):
        load_runs([run.folder, run.folder / ".." / run.folder.name])


def test_names_tell_runs_apart(tmp_path, made_runs):
    folders = [made_runs.make_run(tmp_path / name / "run") for name in ("a", "b")]
    assert [run.name for run in load_runs(folders)] == ["a", "b"]
    folders = [made_runs.make_run(tmp_path / day / name) for day in ("mon", "tue") for name in ("x1", "x2")]
    assert [run.name for run in load_runs(folders)] == ["mon/x1", "mon/x2", "tue/x1", "tue/x2"]


# --- system.jsonl -----------------------------------------------------------------------------------------------------


def test_cut_and_garbled_lines_are_left_out_and_counted(tmp_path, made_runs):
    lines = [json.dumps(sample) for sample in made_runs.make_samples(3)]
    text = "\n".join([lines[0], lines[1][:40], "not json", "[1, 2]", '{"cpu_percent": 5}', "", lines[2], lines[3][:-1]])
    (tmp_path / "system.jsonl").write_bytes(text.encode() + b"\n\xff\xfe\n")
    samples, problem = read_samples(tmp_path)
    assert [sample["elapsed_seconds"] for sample in samples] == [0.0, 2.0]
    assert problem == "6 of 9 lines of system.jsonl cannot be read"


def test_no_samples_are_no_problem(tmp_path):
    assert read_samples(tmp_path) == ((), None)
    (tmp_path / "system.jsonl").write_text("")
    assert read_samples(tmp_path) == ((), None)


def test_values_that_are_no_numbers_are_none(tmp_path):
    line = '{"elapsed_seconds": 1, "cpu_percent": NaN, "memory_bytes": [1], "gpus": [{"power_watts": true}, 7]}\n'
    (tmp_path / "system.jsonl").write_text(line)
    (sample,), _ = read_samples(tmp_path)
    assert (sample["cpu_percent"], sample["memory_bytes"], sample["gpus"]) == (None, None, [{"power_watts": None}])


@settings(max_examples=60)
@given(data=st.data())
def test_no_damage_stops_the_reader(made_runs, tmp_path_factory, data):
    whole = "".join(json.dumps(sample) + "\n" for sample in made_runs.make_samples(5, gpus=2)).encode()
    cut_at = data.draw(st.integers(0, len(whole)))
    noise = data.draw(st.binary(max_size=30))
    folder = tmp_path_factory.mktemp("damaged")
    (folder / "system.jsonl").write_bytes(whole[:cut_at] + noise + whole[cut_at:])
    samples, _ = read_samples(folder)
    assert all(isinstance(sample["gpus"], list) for sample in samples)
    phases(samples)


def test_short_stretches_join_the_one_before():
    samples = [
        {"elapsed_seconds": t, "phase": p} for t, p in enumerate(("train", "train", "validation", "train", "end"))
    ]
    assert phases(samples) == [("train", 0, 2), ("validation", 2, 3), ("train", 3, 4), ("end", 4, 4)]
    assert phases(samples, shortest=1.5) == [("train", 0, 4)]


@given(st.lists(st.tuples(st.floats(0, 100), st.sampled_from(("start", "train", "validation", "?")))), st.floats(0, 9))
def test_stretches_follow_each_other_without_gaps(points, shortest):
    samples = [{"elapsed_seconds": second, "phase": phase} for second, phase in sorted(points)]
    found = phases(samples, shortest)
    assert all(one[2] == other[1] and one[0] != other[0] for one, other in zip(found, found[1:], strict=False))
