"""`src/ablate.py` in a process of its own: what it refuses, and one small ablation that is started twice."""

import json

import pytest

SMALL = (
    *("data=synthetic", "data.num_train=64", "data.num_validation=12", "data.image_size=10", "data.num_classes=3"),
    *("model=small_cnn", "model.filters=2", "model.units=4", "strategy.device=cpu", "batch.per_replica_batch_size=8"),
)


def test_help_says_what_it_does_without_tensorflow(script):
    done = script("ablate.py", "--help")
    assert done.returncode == 0 and "--repeats N" in done.stdout and "hydra.run.dir=PATH" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["epoch=3"], "Did you mean 'epochs'?"),
        (["--only", "speed"], "speed is no switch."),
        (["--repeat", "2"], "--repeat is no flag"),
    ],
)
def test_what_cannot_be_had_is_refused(script, arguments, said):
    done = script("ablate.py", *arguments)
    assert done.returncode == 2
    assert said in done.stderr and "Traceback" not in done.stderr


@pytest.mark.slow
def test_an_ablation_and_going_on_with_it(script, tmp_path):
    arguments = ("--only", "steps_per_execution,jit_compile", *SMALL, "epochs=2", f"hydra.run.dir={tmp_path / 'study'}")
    done = script("ablate.py", *arguments)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[-1] == str(tmp_path / "study" / "ablation.json")
    assert any(line.lstrip().startswith("steps_per_execution=1 ") for line in lines)
    assert any("noise" in line for line in lines)
    written = json.loads((tmp_path / "study" / "ablation.json").read_text())
    assert len(written["speeds"]) == 2
    assert {row["change"] for row in written["rows"]} == {"steps_per_execution=1", "jit_compile=true"}
    records = [json.loads(path.read_text()) for path in (tmp_path / "study").glob("*/run/record.json")]
    assert len(records) == 4
    configs = [path.read_text() for path in (tmp_path / "study").glob("*/run/config.yaml")]
    assert all("group: ablate-study" in config for config in configs)
    again = script("ablate.py", *arguments)
    assert again.stdout.count("(kept from an earlier start)") == 4


@pytest.mark.slow
def test_a_run_finds_its_batch_size_and_its_bound(script, tmp_path):
    place = ("strategy=mirrored", "strategy.device=cpu", "strategy.replicas=2", "schedule.scale_with=linear")
    asked = [argument for argument in SMALL if not argument.startswith(("batch.", "strategy.", "data.num_train"))]
    arguments = ("data.num_train=1300", *asked, *place, "batch=auto", "probe=true", "epochs=3", "tracker=none")
    records = []
    for name in ("first", "second"):
        done = script("train.py", *arguments, f"hydra.run.dir={tmp_path / name}", MANYFIT_CACHE=str(tmp_path / "cache"))
        assert done.returncode == 0, done.stderr
        assert "verdict: " in done.stdout and "batch=auto: " in done.stdout
        records.append(json.loads((tmp_path / name / "record.json").read_text()))
    first, second = records
    size = first["batch"]["per_replica_batch_size"]
    assert size == first["batch"]["search"]["per_replica_batch_size"] == second["batch"]["per_replica_batch_size"]
    assert size % 8 == 0 and first["batch"]["steps_per_epoch"] >= 20
    assert first["batch"]["learning_rate"] == pytest.approx(0.001 * 2 * size / 32)
    assert [record["batch"]["search"]["reused"] for record in records] == [False, True]
    assert f"per_replica_batch_size: {size}" in (tmp_path / "first" / "config.yaml").read_text()
    verdict, throughput = first["verdict"], first["throughput"]
    assert verdict["bound"] in ("input", "synchronisation", "launch", "compute")
    assert sum(verdict["shares"].values()) == pytest.approx(1.0)
    assert throughput["images_per_second_per_replica"] == pytest.approx(throughput["images_per_second"] / 2)
    assert throughput["step_seconds_without_all_reduce"] > 0
