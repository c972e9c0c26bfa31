"""`src/train.py` with a mistake in what was asked: code 2 in about a second, one message, nothing left behind."""

import os
import subprocess
import sys
import time

import pytest

from manyfit.command import repository_root

TRAIN = repository_root() / "src/train.py"

# A module of this name, first on the path, ends the process that imports TensorFlow.
BOOBY_TRAP = "raise SystemExit('TensorFlow was imported')\n"


def train(folder, *arguments):
    """Run train.py from `folder` where TensorFlow cannot be imported; the finished process."""
    trap = folder / "trap"
    trap.mkdir()
    (trap / "tensorflow.py").write_text(BOOBY_TRAP)
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, TRAIN, *arguments],
        cwd=elsewhere,
        env={**os.environ, "PYTHONPATH": str(trap)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    print(f"{' '.join(arguments)}: {time.perf_counter() - start:.2f} s")
    assert list(elsewhere.iterdir()) == []
    return done


@pytest.mark.parametrize(
    ("arguments", "message", "remedy"),
    [
        (["optimizer.lr=1"], "Unknown key: optimizer.lr.", "Did you mean 'optimizer.learning_rate'?"),
        (["+typo=1"], "Unknown key: typo.", "Choices: "),
        (["epochs=many"], "epochs=many has the wrong type.", "whole number"),
        (["epochs=0"], "epochs=0 is out of range.", ">= 1"),
        (["data=cat_dogs"], "data=cat_dogs is not one of its choices.", "Did you mean 'cats_dogs'?"),
        (["strategy.device=tpu"], "strategy.device=tpu is not one of its choices.", "auto, gpu, cpu"),
        (["epochs=("], "the value cannot be read", "Quote"),
        (["mirrored"], "mirrored has no '='", "Write strategy=mirrored."),
        (["seed=1,2"], "gives several values", "--multirun (-m)"),
        (["-m", "seed=1,2", "epochs=0"], "2 of 2 jobs cannot run, so none was started", ">= 1"),
        (["hydra.run.dir=X", "optimzer=adam"], "Unknown key: optimzer.", "Did you mean 'optimizer'?"),
        (["batch.global_batch_size=0"], "batch.global_batch_size=0 is out of range.", ">= 1"),
        (["strategy=parameter_server"], "strategy=parameter_server is not offered", "Use strategy=multi_worker"),
        (["strategy=central_storage"], "strategy=central_storage is not offered", "cross_device_ops=one_device"),
        (["strategy=tpu", "strategy.tpu=grpc://127.0.0.1:1"], "nothing answers at 127.0.0.1:1", "Is the TPU running"),
    ],
)
def test_a_mistake_ends_with_code_2_and_no_tensorflow(tmp_path, arguments, message, remedy):
    done = train(tmp_path, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    first, rest = done.stderr.split("\n", 1)
    assert first.startswith("Error: ") and message in first
    assert remedy in rest
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("arguments", [["--help"], ["--cfg", "job"], ["--info", "defaults"], ["--version"]])
def test_a_question_is_answered_without_tensorflow(tmp_path, arguments):
    done = train(tmp_path, *arguments)
    assert done.returncode == 0, done.stderr
    assert done.stdout and not done.stderr
