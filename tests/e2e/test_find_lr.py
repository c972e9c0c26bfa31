"""`src/find_lr.py` in a process of its own: what it refuses, and one small test on one replica and on two."""

import json

import numpy as np
import pytest

SMALL = (
    *("data=synthetic", "data.num_train=403", "data.num_validation=8", "data.image_size=12", "data.num_classes=3"),
    *("model=small_cnn", "model.filters=8", "model.units=32", "batch.global_batch_size=32", "optimizer=adam"),
    *("augment=light", "augment.colour=0", "schedule.scale_with=linear", "schedule.reference_batch_size=16"),
    *("strategy=mirrored", "strategy.device=cpu", "--lowest", "1e-5"),
)


def test_help_says_what_it_does_without_tensorflow(script):
    done = script("find_lr.py", "--help")
    assert done.returncode == 0 and "--steps N" in done.stdout and "hydra.run.dir=PATH" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["epoch=3"], "Did you mean 'epochs'?"),
        (["--steps", "5"], "Give 20 or more"),
        (["--lowest", "1", "--highest", "0.1"], "make no range"),
        (["--steps", "many"], "invalid int value"),
        (["--step", "30"], "--step is no flag"),
        (["resume=outputs/nowhere"], "it goes with src/train.py"),
        (["-m", "seed=1,2"], "takes no --multirun"),
    ],
)
def test_what_cannot_be_had_is_refused(script, arguments, said):
    done = script("find_lr.py", *arguments)
    assert done.returncode == 2
    assert said in done.stderr and "Traceback" not in done.stderr


@pytest.mark.slow
def test_one_replica_and_two_find_the_same_rate(script, tmp_path):
    found = []
    for replicas in (1, 2):
        folder = tmp_path / str(replicas)
        done = script("find_lr.py", *SMALL, f"strategy.replicas={replicas}", f"hydra.run.dir={folder}")
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines()[-2:] == [str(folder / "find_lr.json"), str(folder / "find_lr.html")]
        written = json.loads((folder / "find_lr.json").read_text())
        assert written["strategy"]["num_replicas"] == replicas and "--lowest 1e-5" in written["command"]
        assert f"To train with it: {written['suggestion']['override']}" in done.stdout
        assert {path.name for path in folder.iterdir()} == {"config.yaml", "find_lr.html", "find_lr.json", "log.txt"}
        found.append(written)
    one, two = found
    rate = one["suggestion"]["rate"]
    # The steps train with twice optimizer.learning_rate: 32 examples where 16 are the reference.
    assert one["suggestion"]["optimizer.learning_rate"] == pytest.approx(rate / 2, rel=0.06)
    # Rounding grows once the training leaves the rates that are good for it.
    until = [step["learning_rate"] <= 10 * rate for step in one["steps"]]
    first, second = (np.array([step["loss"] for step in each["steps"]])[: sum(until)] for each in found)
    np.testing.assert_allclose(first, second, rtol=1e-3)
    assert two["suggestion"]["rate"] == pytest.approx(rate, rel=0.2)
