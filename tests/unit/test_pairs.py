"""Which runs may be compared, and as what."""

import pytest

from manyfit.report.pairs import are_repeats, differing, how_it_ended, marks, other_settings, scaling
from manyfit.report.runs import load_runs


@pytest.fixture
def pair(tmp_path, made_runs):
    """Two runs, the second with changes."""

    def make(first=None, **changes):
        folders = [
            made_runs.make_run(tmp_path / "one", **(first or {})),
            made_runs.make_run(tmp_path / "other", **{"seed": 1, **changes}),
        ]
        return tuple(reversed(load_runs(folders)))

    return make


def blocking(run, baseline):
    return {mark.about for mark in marks(run, baseline) if mark.blocks}


def test_runs_that_differ_in_replicas_alone_may_be_compared(pair):
    assert marks(*pair(replicas=4)) == []


@pytest.mark.parametrize(
    ("changes", "about", "said"),
    [
        ({"data": {"fingerprint": "0" * 64}}, "data", "other files or another split"),
        ({"data": {"fingerprint": "0" * 64, "num_train": 5000}}, "data", "num_train 4,000 against 5,000"),
        ({"data": {"fingerprint": None}}, "data", "fingerprint is missing"),
        ({"model": {"num_parameters": 200}}, "model", "num_parameters 100 against 200"),
        ({"model": {"num_trainable_parameters": 50}}, "model", "num_trainable_parameters 100 against 50"),
        ({"model": {"weights": "imagenet"}}, "model", "weights none against imagenet"),
        ({"config": {"model__image_size": 96}}, "model", "image_size 224 against 96"),
        ({"config": {"precision__name": "mixed_float16"}}, "precision", "float32 against mixed_float16"),
        ({"epochs": 7}, "epochs", "epochs 5 against 7"),
        ({"rehearsal": True}, "rehearsal", "other is a rehearsal on drawn pictures"),
        ({"versions": {"keras": "3.16.0"}}, "versions", "keras 3.15.1 against 3.16.0"),
        ({"versions": {"tensorflow": "2.22.0"}}, "versions", "tensorflow 2.21.0 against 2.22.0"),
        ({"gpu": False}, "machine", "GPU against CPU"),
        ({"host": {"cpu_usable": 4}}, "machine", "CPU cores 8 against 4"),
        ({"host": {"memory_bytes": 32 * 2**30}}, "machine", "memory 64 GiB against 32 GiB"),
        ({"status": "failed", "epochs": 2, "asked_epochs": 5, "error": "boom"}, "status", "failed after 2 of 5 epochs"),
        ({"status": "running", "epochs": 2, "asked_epochs": 5}, "status", "still running, or killed, after 2 of 5"),
        ({"status": "stopped", "epochs": 2, "asked_epochs": 5}, "status", "stopped after 2 of 5 epochs"),
    ],
)
def test_what_stands_against_a_comparison(pair, changes, about, said):
    run, baseline = pair(**changes)
    assert blocking(run, baseline) == {about} == blocking(baseline, run)
    assert said in "; ".join(mark.text for mark in marks(run, baseline) if mark.blocks)


def test_runs_of_other_phases_are_not_compared(pair):
    one = [{"epochs": 3, "trainable": "none"}, {"epochs": 2, "trainable": "last:20"}]
    run, baseline = pair({"config": {"phases": one}}, config={"phases": [one[0], {**one[1], "trainable": "all"}]})
    assert blocking(run, baseline) == {"phases"}
    assert "other settings" in marks(run, baseline)[0].text
    assert differing([baseline, run])["phases.1.trainable"] == ["last:20", "all"]


def test_a_run_with_phases_is_not_compared_with_one_without(pair):
    run, baseline = pair(config={"phases": [{"epochs": 5, "trainable": "none"}]})
    assert blocking(run, baseline) == {"phases"} and "none against 1" in marks(run, baseline)[0].text


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"versions": {"numpy": "3.0"}}, "numpy 2.4 against 3.0"),
        ({"git": {"commit": "b" * 40}}, "commit aaaaaaaaaa against bbbbbbbbbb"),
        ({"git": {"dirty": True}}, "changes that no commit holds"),
        ({"host": {"name": "bench"}}, "two machines, as far as their names say: box, bench"),
        ({"seed": 0}, "at the same time on one machine"),
    ],
)
def test_what_is_only_marked(pair, changes, said):
    run, baseline = pair(**changes)
    assert blocking(run, baseline) == set()
    assert said in "; ".join(mark.text for mark in marks(run, baseline))


def test_settings_that_leave_the_network_as_it_is_stand_against_nothing(pair):
    run, baseline = pair(config={"model__feature_cache": "off", "model__sync_batch_norm": False})
    assert blocking(run, baseline) == set()


def test_two_rehearsals_may_be_compared_and_are_marked(pair):
    run, baseline = pair(first={"rehearsal": True}, rehearsal=True)
    assert [(mark.about, mark.blocks) for mark in marks(run, baseline)] == [("rehearsal", False)]


def test_logical_devices_are_said_to_measure_no_gpu(pair):
    run, baseline = pair(first={"gpu": False}, gpu=False, replicas=2)
    assert "measures no GPU" in marks(run, baseline)[0].text and not marks(run, baseline)[0].blocks


def test_two_kinds_of_gpu_are_not_compared(pair, made_runs):
    run, baseline = pair(first={"samples": made_runs.make_samples(5)}, samples=made_runs.make_samples(5))
    assert blocking(run, baseline) == set()
    for sample in run.samples:
        sample["gpus"][0]["name"] = "Tesla K80"
    assert blocking(run, baseline) == {"machine"}


def test_a_run_whose_configuration_is_gone_is_compared_with_nothing(pair):
    run, baseline = pair()
    (run.folder / "config.yaml").unlink()
    (run,) = load_runs([run.folder])
    assert blocking(run, baseline) == {"settings"}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"replicas": 4, "batch": 40}, "strong"),
        ({"replicas": 4, "batch": 160}, "weak"),
        ({"replicas": 4, "batch": 80}, "mixed"),
        ({"replicas": 1, "batch": 80}, None),
        ({}, None),
    ],
)
def test_strong_and_weak_scaling_are_told_apart(pair, changes, expected):
    assert scaling(*pair(**changes)) == expected


def test_accumulation_counts_for_the_batch(pair):
    run, baseline = pair(replicas=2, batch=20)
    run.record["batch"]["gradient_accumulation"] = 2
    assert scaling(run, baseline) == "strong"


def test_repeats_differ_in_seed_and_tracker_alone(pair):
    assert are_repeats(*pair(config={"tracker__project": "other", "cost__price_per_hour": 3.0, "probe": True}))


@pytest.mark.parametrize(
    "changes",
    [
        {"replicas": 2},
        {"batch": 80},
        {"config": {"optimizer__learning_rate": 0.1}},
        {"config": {"data__cache": "off"}},
        {"data": {"fingerprint": "0" * 64}},
        {"status": "failed"},
        {"versions": {"keras": "3.16.0"}},
    ],
)
def test_what_is_no_repeat(pair, changes):
    assert not are_repeats(*pair(**changes))


def test_a_run_of_an_older_version_lacks_a_setting(pair):
    run, baseline = pair()
    older = {key: value for key, value in run.settings.items() if key != "probe"}
    object.__setattr__(run, "settings", older)
    assert differing([baseline, run])["probe"] == ["auto", "(not set)"]
    assert are_repeats(run, baseline)


def test_only_what_differs_is_listed(pair):
    run, baseline = pair(replicas=2, config={"optimizer__learning_rate": 0.1, "ema__decay": 0.9})
    assert differing([baseline, run]) == {
        "strategy.replicas": [1, 2],
        "optimizer.learning_rate": [0.001, 0.1],
        "ema.decay": [None, 0.9],
        "seed": [0, 1],
    }
    assert other_settings(run, baseline) == ["ema.decay"]  # replicas, learning rate and seed go with scaling


def test_true_is_not_one(pair):
    run, baseline = pair(first={"config": {"probe": True}}, config={"probe": 1})
    assert "probe" in differing([baseline, run])


def test_how_a_run_ended(pair):
    run, _ = pair(status="failed", epochs=1, asked_epochs=3, error="KeyError: 'x'\nsecond line")
    assert how_it_ended(run) == "failed after 1 of 3 epochs (KeyError: 'x')"
