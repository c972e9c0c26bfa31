"""What a real run tells W&B: killed, gone on, uploaded as one history, with its artifacts and without its secrets."""

import json
import os
import shlex
import subprocess
import sys
import time

import pytest

from manyfit.wandb_file import read_run
from wandb_artifact_stub import WandbArtifactStub

pytestmark = pytest.mark.slow

SECRET = "hunter2hunter2hunter2"
EPOCHS = 40
ARGUMENTS = (
    "data=synthetic", "data.num_train=64", "data.num_validation=24", "data.image_size=10", "model=small_cnn",
    "model.filters=2", "probe=false", "batch.per_replica_batch_size=8", "strategy.device=cpu", f"epochs={EPOCHS}",
    "resume=auto", "tracker.mode=offline", "tracker.log_mistakes=5", "tracker.log_model=best", "tracker.log_code=true",
    "tracker.log_every_steps=3", "steps_per_execution=2", f"tracker.notes=\"api_key: {SECRET}\"",
)  # fmt: skip


@pytest.fixture(scope="module")
def killed_and_gone_on(start_script, script, tmp_path_factory):
    """The run folder, its record, and what the second attempt printed."""
    folder = tmp_path_factory.mktemp("tracking") / "run"
    arguments = (*ARGUMENTS, f"hydra.run.dir={folder}")
    process = start_script("train.py", *arguments, WANDB_MODE="", MY_TOKEN=SECRET)
    until = time.monotonic() + 120
    rows = folder / "epochs.jsonl"
    while not rows.exists() or rows.read_text().count("\n") < 4:
        assert process.poll() is None and time.monotonic() < until
        time.sleep(0.01)
    process.kill()
    process.communicate()
    assert json.loads((folder / "record.json").read_text())["status"] == "running"
    done = script("train.py", *arguments, WANDB_MODE="", MY_TOKEN=SECRET)
    assert done.returncode == 0, done.stderr
    return folder, json.loads((folder / "record.json").read_text()), done.stdout


def test_a_killed_run_that_went_on_is_uploaded_as_one_history(killed_and_gone_on):
    folder, record, stdout = killed_and_gone_on
    first, second = record["tracker"]["segments"]
    assert (first["from_epoch"], second["from_epoch"] > 1) == (1, True) and first["run_id"] == second["run_id"]
    command = next(line.strip() for line in stdout.splitlines() if line.startswith("  wandb sync"))
    expected = [(row["epoch"], row["loss"], row["val_accuracy"]) for row in record["epochs"]]
    assert [epoch for epoch, *_ in expected] == list(range(1, EPOCHS + 1))

    def epochs_of(history):
        return [
            (row["epoch/epoch"], row["epoch/loss"], row["epoch/val_accuracy"])
            for row in history
            if "epoch/epoch" in row
        ]

    joined = read_run(folder)
    assert epochs_of(joined.history) == expected and joined.exit_code == 0
    with WandbArtifactStub() as stub:
        words = [sys.executable, "-c", "from wandb.cli.cli import cli; cli()", *shlex.split(command)[1:]]
        subprocess.run(words, env={**os.environ, **stub.environment}, check=True, capture_output=True, timeout=120)
        assert stub.unknown == []
        run = stub.runs[first["run_id"]]
        assert epochs_of(run.history) == expected
        steps = [row["_step"] for row in run.history]
        assert steps == sorted(set(steps)) and len(run.values("batch/loss")) >= 2 * EPOCHS
        assert all(row["examples_seen"] == 8 * row["_step"] for row in run.history if "examples_seen" in row)
        assert run.facts["displayName"] == "synthetic small_cnn mirrored x1 b8" and run.facts["jobType"] == "train"
        assert run.facts["notes"] == "api_key: ***" and SECRET not in json.dumps(run.config)
        derived = run.config["derived"]["value"]
        assert derived["batch"]["global_batch_size"] == 8 and derived["git"] == record["git"]
        [model], [data] = stub.of_type("model"), stub.of_type("dataset")
        assert model.metadata["data"]["fingerprint"] == record["data"]["fingerprint"] and data.used_by
        assert model.metadata["epoch"] == record["best"]["epoch"]
        assert stub.content(model, "model.keras") == (folder / "model.keras").read_bytes()
        assert run.history[-1]["mistakes"]["nrows"] == min(5, record["mistakes"]["num_wrong"])


def test_mistakes_are_those_of_the_best_model(killed_and_gone_on):
    folder, record, _ = killed_and_gone_on
    found = json.loads((folder / "mistakes.json").read_text())
    right = sum(row[index] for index, row in enumerate(found["confusion_matrix"]))
    assert right / found["num_examples"] == pytest.approx(record["best"]["val_accuracy"])
    assert (found["num_examples"], found["epoch"]) == (24, record["best"]["epoch"])
    assert record["mistakes"]["num_wrong"] == 24 - right
    confidences = [one["confidence"] for one in found["mistakes"]]
    assert confidences == sorted(confidences, reverse=True)
    assert all((folder / one["picture"]).stat().st_size for one in found["mistakes"])


def test_secrets_stay_out_of_everything_but_the_configuration_itself(killed_and_gone_on):
    folder, record, _ = killed_and_gone_on
    assert "api_key: ***" in record["command"]
    holders = [path for path in folder.rglob("*") if path.is_file() and SECRET in path.read_text("latin-1")]
    assert [path.name for path in holders] == ["config.yaml"]
