"""Which switches an ablation changes, in what order it trains, and what it claims."""

import sys

import pytest

from manyfit import ablation as ablations
from manyfit.ablation import batch_change, run_ablation, switches
from manyfit.command import repository_root
from manyfit.console import as_text
from manyfit.errors import ConfigError, UserError
from manyfit.report.ablation import Change, ablation, ablation_tables

SETTINGS = {
    "steps_per_execution": "auto",
    "jit_compile": False,
    "precision.name": "float32",
    "strategy.replicas": "auto",
    "strategy.devices": None,
    "model.trainable": "none",
    "model.feature_cache": "auto",
    "batch.name": "default",
    "tracker.group": None,
    "probe": "auto",
}
TRAIN = f"""
import sys
sys.path.insert(0, {str(repository_root() / "src")!r})
from pathlib import Path
from manyfit.record import RunRecord
folder = Path(sys.argv[1])
folder.mkdir()
if "jit_compile=true" in sys.argv:
    sys.exit("Error: no XLA here.")
record = RunRecord.create(
    folder,
    batch={{"per_replica_batch_size": 16, "gradient_accumulation": 1}},
    strategy={{"num_replicas": 2}},
    data={{"num_train": 100}},
)
speed = 50.0 if "steps_per_execution=1" in sys.argv else 100.0
for epoch in (1, 2, 3):
    record.add_epoch({{"epoch": epoch, "train_seconds": 100 / speed, "images_per_second": speed}})
record.set_status("finished", exit_code=0)
"""


def command(point, folder):
    return [sys.executable, "-c", TRAIN, str(folder), *point.overrides]


@pytest.fixture(autouse=True)
def _no_gpu(monkeypatch):
    monkeypatch.setattr(ablations, "has_gpu", lambda: False)


def changes(**settings):
    found = (switch.change({**SETTINGS, **settings}) for switch in switches())
    return [(change.text, change.turned_on) for change in found if change is not None]


def test_a_switch_is_changed_from_what_the_baseline_has():
    assert changes() == [
        ("steps_per_execution=1", False),
        ("model.feature_cache=off", False),
        ("precision=mixed_bfloat16", True),
        ("jit_compile=true", True),
    ]
    assert changes(steps_per_execution=1)[0] == ("steps_per_execution=auto", True)
    assert ("precision=float32", False) in changes(**{"precision.name": "mixed_float16"})


def test_what_cannot_matter_or_does_not_exist_is_left_out():
    assert "jit_compile=true" not in dict(changes(**{"strategy.replicas": 2}))
    assert not any("feature_cache" in text for text, _ in changes(**{"model.trainable": "all"}))
    assert ("data.cache=off", False) in changes(**{"data.cache": "auto"})


def test_twice_the_batch_where_the_data_set_holds_it():
    record = {
        "batch": {"per_replica_batch_size": 16, "gradient_accumulation": 1},
        "strategy": {"num_replicas": 2},
        "data": {"num_train": 64},
    }
    change = batch_change(record)
    assert change is not None and change.text == "batch.per_replica_batch_size=32"
    assert batch_change(record | {"data": {"num_train": 63}}) is None


def test_the_baseline_is_trained_first_between_and_last(tmp_path):
    shown = []
    settings = {**SETTINGS, "batch.name": "auto"}
    overrides = ["data=mnist", "batch=auto"]
    found, results = run_ablation(
        settings,
        overrides,
        tmp_path,
        repeats=2,
        only=["steps_per_execution", "batch"],
        command=command,
        show=shown.append,
    )
    assert [change.text for change in found] == ["steps_per_execution=1", "batch.per_replica_batch_size=32"]
    one_round = ["many steps a call", "twice the batch"]
    names = [result.point.name for result in results]
    assert names == ["baseline", *one_round, "baseline", *one_round, "baseline"]
    base = (*overrides, "epochs=3", "probe=false", f"tracker.group=ablate-{tmp_path.name}")
    assert {result.point.overrides for result in results if result.point.name == "baseline"} == {base}
    pinned = (*base, "batch.per_replica_batch_size=16")
    assert results[1].point.overrides == (*pinned, "steps_per_execution=1")
    assert results[2].point.overrides[-2:] == ("batch.global_batch_size=null", "batch.per_replica_batch_size=32")
    assert any(line.startswith("baseline, time 3") for line in shown)


def test_what_the_user_said_is_not_said_again(tmp_path):
    overrides = ["epochs=7", "probe=true", "tracker=none"]
    settings = {key: value for key, value in SETTINGS.items() if key != "tracker.group"}
    _, results = run_ablation(settings, overrides, tmp_path, only=["steps_per_execution"], command=command)
    assert results[0].point.overrides == tuple(overrides)


def test_a_change_that_fails_is_told_and_stops_nothing(tmp_path):
    _, results = run_ablation(SETTINGS, [], tmp_path, only=["jit_compile"], command=command)
    assert [result.error for result in results] == [None, "no XLA here.", None]


def test_a_baseline_that_fails_ends_it(tmp_path):
    with pytest.raises(UserError, match="The baseline failed.*no XLA"):
        run_ablation(SETTINGS, ["jit_compile=true"], tmp_path, command=command)
    with pytest.raises(ConfigError, match="speed is no switch"):
        run_ablation(SETTINGS, [], tmp_path, only=["speed"], command=command)


# --- what is claimed --------------------------------------------------------------------------------------------------


def record(speed, accuracy=0.9):
    epochs = [{"train_seconds": 1000 / rate, "images_per_second": rate} for rate in (speed / 2, speed, speed)]
    return {"epochs": epochs, "timing": {"total_seconds": 30.0}, "best": {"val_accuracy": accuracy}}


CHANGES = [
    Change("many steps a call", "steps_per_execution=1", turned_on=False),
    Change("mixed precision", "precision=mixed_bfloat16", turned_on=True),
    Change("XLA", "jit_compile=true", turned_on=True),
    Change("twice the batch", "batch.per_replica_batch_size=64", turned_on=True),
]


def claims():
    records = {
        "many steps a call": [record(50.0)],
        "mixed precision": [record(50.0)],
        "twice the batch": [record(104.0), record(106.0)],
    }
    return ablation(CHANGES, [record(95.0), record(105.0)], records, {"XLA": "no XLA here."})


def test_the_gain_is_that_of_having_the_switch():
    found = claims()
    assert found.speeds == pytest.approx((95.0, 105.0))
    assert (found.noise, found.drift) == (pytest.approx(0.1), pytest.approx(0.105, abs=1e-3))
    rows = {row.name: row for row in found.rows}
    assert (rows["many steps a call"].ratio, rows["many steps a call"].gain) == pytest.approx((0.5, 2.0))
    assert [rows[change.name].verdict for change in CHANGES] == ["pays", "costs", "failed", "no difference"]
    assert [row.name for row in found.rows][0] == "many steps a call"
    assert found.baseline.epoch_seconds == pytest.approx((1000 / 95 + 1000 / 105) / 2)


def test_a_steady_baseline_still_has_some_noise():
    found = ablation(CHANGES[:1], [record(100.0), record(100.0)], {"many steps a call": [record(99.0)]})
    assert found.noise == 0.02
    assert found.rows[0].verdict == "no difference"


def test_a_baseline_that_ran_once_claims_little():
    found = ablation(CHANGES[:1], [record(100.0)], {"many steps a call": [record(85.0)]})
    assert (found.noise, found.rows[0].verdict) == (0.25, "no difference")
    assert "measured once" in "\n".join(as_text(part) for part in ablation_tables(found))


def test_what_is_too_short_to_measure_claims_nothing():
    short = {"epochs": [{"train_seconds": 1.0, "images_per_second": None}]}
    found = ablation(CHANGES[:1], [short, short], {"many steps a call": [short]})
    assert (found.rows[0].gain, found.rows[0].verdict) == (None, "no difference")
    assert found.as_dict()["speeds"] == () and found.drift == 0.0
    assert "too short" in "\n".join(as_text(part) for part in ablation_tables(found))


def test_the_tables_say_what_pays_and_how_sure_that_is():
    text = "\n".join(as_text(part) for part in ablation_tables(claims()))
    assert "from first to last +11%. A difference below 10% is noise." in text
    assert "What pays: many steps a call 2.00x. What costs: mixed precision 0.50x." in text
    assert "XLA (jit_compile=true): no XLA here." in text
    lines = [line.split() for line in text.splitlines()]
    assert ["baseline", "10.03", "100", "1.00", "30.0", "s"] in lines
    assert ["steps_per_execution=1", "20.00", "50", "0.50", "30.0", "s", "pays", "2.00x"] in lines
