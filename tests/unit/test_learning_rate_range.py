"""The range test's arithmetic: rates, end, smoothing, suggestion, what the schedule makes of it, how it is shown."""

import json
import math
import re

import numpy as np
import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import given, settings
from hypothesis import strategies as st

from manyfit.batch import BatchPlan
from manyfit.config import (
    BatchConfig,
    CosineConfig,
    RampConfig,
    ResumeConfig,
    RunConfig,
    ScheduleConfig,
    SGDConfig,
)
from manyfit.errors import ConfigError, UserError
from manyfit.report.learning_rate_page import range_page, range_words, text_chart, write_range
from manyfit.report.learning_rate_range import (
    DIVERGED,
    DONE,
    NOT_FINITE,
    Losses,
    RangeSettings,
    check_asked,
    curve,
)
from manyfit.report.learning_rate_suggestion import RangeTest, Suggestion, factors, suggest

DECADES = RangeSettings(1e-6, 100.0, 81)
"""Ten steps a decade."""
FACTS = {
    "model": {"name": "<b>net</b>"},
    "data": {"name": "mnist"},
    "strategy": {"num_replicas": 2, "devices": ["GPU:0", "GPU:1"]},
    "batch": {"global_batch_size": 64, "per_replica_batch_size": 32, "gradient_accumulation": 2},
    "versions": {"python": "3.11", "wandb": None},
    "notices": ["a notice"],
    "rehearsal": True,
    "command": "python src/find_lr.py",
}


def made(losses, asked: RangeSettings = DECADES) -> Losses:
    """What a test has after these losses."""
    found = Losses(asked)
    for loss in losses:
        if found.add(float(loss)):
            break
    return found


def outcome(losses, asked: RangeSettings = DECADES, factor=1.0, start_factor=1.0) -> RangeTest:
    return RangeTest.of(made(losses, asked), factor, start_factor, "schedule=constant")


def falling(middle=1e-3, best=0.1, high=2.0, width=0.25):
    """Losses that fall fastest at `middle` and are lowest at `best`, from where they grow tenfold a decade."""
    at = np.log10(DECADES.rates)
    fall = 0.5 + (high - 0.5) / (1 + np.exp((at - math.log10(middle)) / width))
    return fall + 0.05 * np.maximum(0, 10 ** (2 * (at - math.log10(best))) - 1)


# --- rates ------------------------------------------------------------------------------------------------------------


def test_the_rate_grows_by_the_same_factor_from_the_lowest_to_the_highest():
    rates = RangeSettings().rates
    assert (len(rates), rates[0], rates[-1]) == (100, 1e-7, 10.0)
    ratios = np.divide(rates[1:], rates[:-1])
    np.testing.assert_allclose(ratios, 1e8 ** (1 / 99), rtol=1e-9)
    assert DECADES.rates[::10] == [1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1.0, 10.0, 100.0]


@pytest.mark.parametrize(
    ("asked", "said", "remedy"),
    [
        ({"steps": 19}, "--steps 19 is too few", "20 or more"),
        ({"steps": 10_001}, "--steps 10001 is too many", "10,000 or fewer"),
        ({"lowest": 0.0}, "--lowest 0", "above 0"),
        ({"lowest": -1.0}, "--lowest -1", "above 0"),
        ({"lowest": 1.0, "highest": 1.0}, "--lowest 1 and --highest 1", "ten times"),
        ({"lowest": 1.0, "highest": 9.9}, "make no range", "ten times"),
        ({"highest": math.inf}, "--highest inf", "ten times"),
        ({"lowest": math.nan}, "--lowest nan", "above 0"),
        ({"highest": math.nan}, "--highest nan", "ten times"),
    ],
)
def test_rates_that_cannot_be_tried_are_refused(asked, said, remedy):
    with pytest.raises(ConfigError) as caught:
        RangeSettings(**asked)
    assert said in caught.value.message and remedy in caught.value.remedy


def test_a_run_that_goes_on_is_no_range_test():
    check_asked(RunConfig())
    with pytest.raises(ConfigError, match="resume=.*somewhere"):
        check_asked(RunConfig(resume=ResumeConfig(folder="somewhere")))


# --- the losses and the end -------------------------------------------------------------------------------------------


def test_the_running_mean_is_corrected_for_its_start():
    asked = RangeSettings(steps=20)
    assert asked.smoothing == 0.5
    found = made([4.0, 2.0, 8.0], asked)
    # (1/2 4) / (1/2); (1/4 4 + 1/2 2) / (3/4); (1/8 4 + 1/4 2 + 1/2 8) / (7/8)
    assert found.smoothed == pytest.approx([4.0, 8 / 3, 40 / 7])
    assert found.ended is None
    assert RangeSettings(steps=100).smoothing == pytest.approx(0.9)


def test_it_ends_where_the_smoothed_loss_is_more_than_four_times_the_best():
    asked = RangeSettings(steps=20)
    found = made([1.0] * 5 + [6.9] * 9, asked)
    # 1/2 1 + 1/2 6.9 = 3.95 at the first, 1/4 1 + 3/4 6.9 = 5.4 at the second of them, but for the start's correction.
    assert (found.ended, len(found.losses)) == (DIVERGED, 7)
    assert made([1.0] * 20, asked).ended == DONE
    assert made([4.0] * 5 + [1.0] * 15, asked).ended == DONE


def test_a_negative_loss_ends_only_where_it_grows():
    asked = RangeSettings(steps=20)
    assert made(np.linspace(-1.0, -5.0, 20), asked).ended == DONE
    found = made([-1.0] * 10 + [20.0], asked)
    assert (found.ended, len(found.losses)) == (DIVERGED, 11)


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_loss_that_is_no_number_ends_it_and_is_not_kept(loss):
    found = made([1.0, 0.9, loss, 0.8])
    assert (found.ended, found.losses, len(found.smoothed)) == (NOT_FINITE, [1.0, 0.9], 2)


# --- the curve --------------------------------------------------------------------------------------------------------


def test_the_curve_is_a_mean_with_gaussian_weights():
    losses, width = [3.0, 1.0, 2.0, 5.0, 2.5], 1.5
    weights = np.exp(-((np.subtract.outer(np.arange(5), np.arange(5)) / width) ** 2) / 2)
    np.testing.assert_allclose(curve(losses, width), weights @ np.minimum(losses, 4.0) / weights.sum(axis=1))


def test_the_curve_moves_no_fall_to_a_higher_rate():
    fall = 1 / (1 + np.exp(np.arange(-40, 41) / 3.0))
    smooth = np.array(curve(fall, 4.0))
    assert int(np.gradient(smooth).argmin()) == 40 and smooth[40] == pytest.approx(0.5)


def test_one_huge_loss_at_the_end_hides_nothing():
    losses = [*falling()[:60], 1e12]
    assert np.abs(np.array(curve(losses, 4.0))[:45] - np.array(curve(losses[:-1], 4.0))[:45]).max() < 1e-3


@given(st.lists(st.floats(-100, 100), min_size=1, max_size=40), st.floats(0.5, 400))
def test_a_curve_stays_among_its_losses(losses, width):
    smooth = curve(losses, width)
    assert len(smooth) == len(losses)
    assert min(losses) - 1e-9 <= min(smooth) and max(smooth) <= max(losses) + 1e-9


# --- the suggestion ---------------------------------------------------------------------------------------------------


def test_the_steepest_descent_decides_where_it_is_lower():
    found = suggest(made(falling(middle=1e-3, best=0.3)))
    assert found.steepest == found.rate == 1e-3
    assert 0.05 < found.minimum < 0.5 and found.tenth == found.minimum / 10
    assert found.by == "steepest descent" and not found.still_falling


def test_a_tenth_of_the_minimum_decides_where_it_is_lower():
    found = suggest(made(falling(middle=1e-3, best=3e-3)))
    assert found.rate == found.tenth == found.minimum / 10 < found.steepest <= 1.3e-3
    assert found.by == "a tenth of the minimum"


def test_noise_moves_the_suggestion_little():
    scatter = np.random.default_rng(0).normal(0, 0.1, len(DECADES.rates))
    found = suggest(made(falling() + scatter))
    assert 5e-4 <= found.steepest <= 2e-3


def test_a_loss_that_falls_to_the_end_says_so():
    found = suggest(made(np.linspace(2.0, 0.5, 81)))
    assert found.still_falling and found.minimum == 100.0
    test = outcome(np.linspace(2.0, 0.5, 81))
    assert any("a higher --highest (10000)" in line.plain for line in range_words(test))


@pytest.mark.parametrize(
    ("losses", "said", "remedy"),
    [
        ([math.nan], "not a finite number at step 1 of 81, before any rate", "precision=float32"),
        ([2.0, 2.0, math.inf], "not a finite number at step 3 of 81 (learning rate 1.3e-06)", "--lowest 1e-09"),
        ([1.0, 1.0, 1e9], "more than 4 times the best at step 3 of 81", "--lowest 1e-09"),
        ([1.0] * 81, "falls by 0 from 1;", "model.trainable"),
        (1 + 0.01 * np.arange(81), "falls by 0 from 1", "model.trainable"),
        (10 ** (0.05 * np.arange(81)), "over the rates 1e-06 to", "--lowest 1e-09"),
    ],
)
def test_losses_that_allow_no_suggestion_say_why(losses, said, remedy):
    with pytest.raises(UserError) as caught:
        suggest(made(losses))
    assert said in caught.value.message and remedy in caught.value.remedy
    assert caught.value.exit_code == 1
    test = outcome(losses)
    assert test.suggestion is test.override is None and test.problem == str(caught.value)


def test_scatter_alone_is_no_fall():
    rng = np.random.default_rng(1)
    suggested = 0
    for _ in range(100):
        test = outcome(0.7 + 0.1 * rng.standard_normal(81))
        suggested += test.suggestion is not None
    assert suggested <= 2


# --- what the schedule makes of it ------------------------------------------------------------------------------------


def plan(num_replicas: int) -> BatchPlan:
    batch = BatchConfig(per_replica_batch_size=32)
    return BatchPlan.make(batch, num_train=2000, num_validation=0, num_replicas=num_replicas)


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (ScheduleConfig(), (1.0, 1.0)),
        (ScheduleConfig(scale_with="linear"), (4.0, 4.0)),
        (ScheduleConfig(scale_with="sqrt", reference_batch_size=8), (4.0, 4.0)),
        (RampConfig(start_factor=0.1, ramp_up_epochs=2), (1.0, 0.1)),
        (RampConfig(start_factor=0.0, max_factor=3.0, ramp_up_epochs=2, scale_with="linear"), (12.0, 0.0)),
        (CosineConfig(warmup_epochs=1), (1.0, 0.5)),
    ],
)
def test_the_factor_is_what_the_schedule_multiplies_with(schedule, expected):
    config = RunConfig(schedule=schedule, optimizer=SGDConfig(learning_rate=0.02), epochs=5)
    highest, first, words = factors(config, plan(4))
    assert (highest, first) == pytest.approx(expected)
    assert f"schedule={schedule.name}" in words
    assert ("128 examples" in words) == (schedule.scale_with != "none")


@settings(deadline=None, max_examples=50)
@given(
    rate=st.floats(1e-9, 100),
    scale_with=st.sampled_from(["none", "linear", "sqrt"]),
    num_replicas=st.integers(1, 8),
)
def test_training_with_the_override_has_the_suggested_rate(rate, scale_with, num_replicas):
    from manyfit.schedule import learning_rates

    config = RunConfig(schedule=ScheduleConfig(scale_with=scale_with), optimizer=SGDConfig(learning_rate=0.7))
    test = RangeTest(DECADES, (), (), DONE, *factors(config, plan(num_replicas)), Suggestion(rate, 100 * rate))
    assert test.override is not None
    [parsed] = OverridesParser.create().parse_overrides([test.override])
    value = parsed.value()
    assert parsed.key_or_group == "optimizer.learning_rate" and isinstance(value, float | int)
    config.optimizer.learning_rate = float(value)
    assert learning_rates(config, plan(num_replicas))[0] == pytest.approx(rate, rel=0.051)  # two digits


def test_a_schedule_that_gives_no_rate_gives_no_override():
    test = outcome(falling(), factor=0.0, start_factor=0.0)
    assert test.suggestion is not None and test.override is None
    assert any("No override follows" in line.plain for line in range_words(test))


def test_the_words_name_the_first_and_the_highest_rate():
    said = "\n".join(line.plain for line in range_words(outcome(falling(), factor=2.0, start_factor=0.02)))
    assert "Suggested learning rate: 0.001 (steepest descent)." in said
    assert "To train with it: optimizer.learning_rate=0.0005" in said
    assert "highest rate of the training is then 0.001: optimizer.learning_rate times 2" in said
    assert "begins with 1e-05" in said


# --- how it is shown --------------------------------------------------------------------------------------------------


def test_the_chart_in_characters():
    test = outcome([2.0] * 8 + [1.0] * 12, RangeSettings(1e-3, 10.0, 20))
    assert text_chart(test, width=40, height=3).splitlines() == [
        "     loss   (* smoothed, . single steps, | suggested)",
        "        2 |* * * * * * * .",
        "          |              * *",
        "        1 |              | . *  * * * * * * * * * *",
        "          +----------------------------------------",
        "           0.001   learning rate, logarithmic    10",
        "                       0.034",
    ]


def test_the_chart_marks_the_suggestion():
    lines = text_chart(outcome(falling()), width=81).splitlines()
    assert lines[-1].strip() == "0.001" and lines[-1].index("0.001") + 2 == len("          |") + 30
    assert sum(line[len("          |") :][30:31] == "|" for line in lines) >= 8


def test_the_files_hold_every_step(tmp_path):
    test = outcome(falling(), factor=2.0)
    paths = write_range(tmp_path, test, FACTS)
    assert [path.name for path in paths] == ["find_lr.json", "find_lr.html"]
    written = json.loads(paths[0].read_text())
    assert [row["loss"] for row in written["steps"]] == list(test.losses)
    assert [row["smoothed"] for row in written["steps"]] == list(test.smoothed)
    assert [row["learning_rate"] for row in written["steps"]] == DECADES.rates[: len(test.losses)]
    assert written["steps"][0]["step"] == 1
    assert written["suggestion"]["override"] == "optimizer.learning_rate=0.0005"
    assert written["suggestion"]["rate"] == written["suggestion"]["steepest"] == 1e-3
    assert written["learning_rate_factor"]["highest"] == 2.0
    assert written["ended"] == DIVERGED and written["problem"] is None
    assert written["strategy"]["num_replicas"] == 2


def page_data(page):
    found = re.search(r'<script type="application/json" id="page-data">(.*?)</script>', page.html(), re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def test_the_page_shows_the_curve_over_the_logarithm_of_the_rate():
    page = range_page(outcome(falling()), FACTS)
    figure = page_data(page)["charts"][0]["figure"]
    assert figure["layout"]["xaxis"]["type"] == "log"
    assert "learning rate" in figure["layout"]["xaxis"]["title"]["text"]
    assert "loss" in figure["layout"]["yaxis"]["title"]["text"]
    assert {trace["name"] for trace in figure["data"]} >= {"loss of a step", "smoothed", "suggested: 0.001"}
    [marked] = [trace for trace in figure["data"] if trace["name"].startswith("suggested")]
    assert marked["x"] == [1e-3, 1e-3]
    text = page.html()
    assert "Suggested learning rate: 0.001" in text and "REHEARSAL" in text and "a notice" in text
    assert "<b>net</b>" not in text and "steps of 128 examples" in text


def test_a_page_without_a_suggestion_says_why():
    page = range_page(outcome([1.0] * 81), {})
    assert "No suggestion" in page.html() and "model.trainable" in page.html()
    assert len(page_data(page)["charts"][0]["figure"]["data"]) == 2


@settings(deadline=None, max_examples=60)
@given(st.lists(st.floats(allow_nan=True, allow_infinity=True, width=32), max_size=25))
def test_whatever_the_losses_are_something_is_said(losses):
    found = made(losses, RangeSettings(steps=20))
    found.ended = found.ended or DONE
    test = RangeTest.of(found, 1.0, 1.0, "schedule=constant")
    assert (test.suggestion is None) == (test.problem is not None)
    assert range_words(test) and range_page(test, FACTS)._parts
    json.dumps(test.as_dict(), allow_nan=True)
    if test.suggestion is not None:
        assert math.isfinite(test.suggestion.rate) and test.suggestion.rate > 0
