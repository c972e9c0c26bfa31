"""Which steps a profile may be asked for, and what is said of a run that has one."""

import pytest

from manyfit.config import ProfileConfig, check
from manyfit.console import summary_rows
from manyfit.errors import ConfigError
from manyfit.multirun import composed, composing
from manyfit.overrides import long_form
from manyfit.record import RunRecord
from manyfit.report.comparison import compare
from manyfit.report.runs import load_runs
from manyfit.report.verdict_words import headline


@pytest.mark.parametrize(
    ("given", "steps"),
    [
        ([], None),
        (["profile=true"], True),
        (["profile=false"], None),
        (["profile.steps=true"], True),
        (["profile.steps=[10,20]"], [10, 20]),
        (["profile=[2,2]"], [2, 2]),
        (["profile=null"], None),
        (["profile=true", "profile.epoch=4"], True),
    ],
)
def test_both_spellings_work(given, steps):
    with composing():
        assert check(composed([long_form(word) for word in given])).profile.steps == steps


@pytest.mark.parametrize("steps", [7, "all", [10], [10, 20, 30], [20, 10], [1, 5], [0, 5], [2.5, 5], [True, 5]])
def test_steps_that_are_none_are_refused_with_a_remedy(steps):
    with pytest.raises(ConfigError, match=r"profile\.steps=") as error:
        ProfileConfig(steps)
    assert error.value.remedy


SECTION = {
    "epoch": 1,
    "first_step": 10,
    "last_step": 20,
    "milliseconds_a_step": 4.0,
    "shares": {"computing": 0.7, "idle": 0.3, "copies": 0.0},
}


def test_a_run_whose_only_epoch_was_profiled_has_no_speed_and_says_why(made_runs, tmp_path):
    made_runs.make_run(tmp_path / "one", epochs=1, asked_epochs=1)
    made_runs.make_run(tmp_path / "two", epochs=1, asked_epochs=1, replicas=2, config={"profile__steps": True})
    record = RunRecord.load(tmp_path / "two")
    record.data["epochs"][0]["images_per_second"] = None
    record.update("throughput", images_per_second=None)
    record.update("profile", **SECTION)
    rows = dict(summary_rows(record.data))
    assert rows["images/s"] == "- (its only epoch was profiled)"
    assert rows["profile"] == "steps 10 to 20 of epoch 1, 4.00 ms each: computing 70 %, idle 30 %"
    comparison = compare(load_runs([tmp_path / "one", tmp_path / "two"]))
    [claim] = comparison.claims
    assert claim.comparable and claim.speed_up is None
    assert "no speed, since an epoch was profiled" in headline(comparison)


def test_a_profile_is_no_other_setting(made_runs, tmp_path):
    made_runs.make_run(tmp_path / "one", speed=500.0)
    made_runs.make_run(tmp_path / "two", speed=900.0, replicas=2, config={"profile__steps": True})
    [claim] = compare(load_runs([tmp_path / "one", tmp_path / "two"])).claims
    assert claim.efficiency.value == pytest.approx(0.9)
