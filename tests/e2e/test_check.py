"""`src/check.py` in a process of its own: it passes where replicas agree, and fails where they do not."""

import re

import pytest

pytestmark = pytest.mark.slow

SMALL = ("data=synthetic", "data.num_train=96", "model=small_cnn", "model.filters=4", "model.units=8")
CPUS = ("strategy=mirrored", "strategy.device=cpu")


def test_four_replicas_give_the_numbers_of_one(script):
    done = script("check.py", *SMALL, *CPUS, "strategy.replicas=4", "batch.global_batch_size=24")
    assert (done.returncode, done.stderr) == (0, "")
    assert "PASS: 4 replicas give the numbers of one." in done.stdout
    words = " ".join(done.stdout.split())  # lines may be broken anywhere
    for text in ("1 replica", "4 replicas", "difference", "CPU:3 (logical)", "tolerance", "tensorflow 2.", "keras 3."):
        assert text in words
    assert len(re.findall(r"^│ +\d+ │", done.stdout, re.MULTILINE)) == 4  # the steps of the table


def test_batch_norm_of_each_replicas_own_fails_with_advice(script):
    batch_norm = ("model.batch_norm=true", "model.sync_batch_norm=false")
    done = script("check.py", *SMALL, *CPUS, *batch_norm, "strategy.replicas=2", "batch.global_batch_size=8")
    assert (done.returncode, done.stderr) == (1, "")
    assert "FAIL: 2 replicas do not give the numbers of one." in done.stdout
    assert "strategy.cross_device_ops=one_device" in " ".join(done.stdout.split())
    assert "model.sync_batch_norm=false" in done.stdout


def test_one_replica_has_nothing_to_compare(script):
    done = script("check.py", *SMALL, *CPUS)
    assert done.returncode == 2
    assert "nothing to compare" in done.stderr and "strategy.replicas=4" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_mistake_of_the_check_is_told_as_the_training_would(script):
    done = script("check.py", *SMALL, *CPUS, "strategy.replicas=4", "batch.global_batch_size=30")
    assert done.returncode == 2
    assert done.stderr.startswith("Error: batch.global_batch_size=30 does not split evenly over 4 replicas.")
    assert "Traceback" not in done.stderr
