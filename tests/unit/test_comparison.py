"""Claims about runs: exact numbers where they may be made, none where they may not, and in the words of a colleague."""

import io
import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from manyfit.errors import UserError
from manyfit.files import to_json
from manyfit.report import dashboard_panels
from manyfit.report.comparison import compare
from manyfit.report.comparison_json import as_dict
from manyfit.report.comparison_page import comparison_page
from manyfit.report.comparison_sheets import sheets
from manyfit.report.comparison_text import markdown, terminal
from manyfit.report.dashboard_panels import Dashboard
from manyfit.report.runs import load_runs
from manyfit.report.verdict_words import details, headline, times

INPUT = {"bound": "input", "share": 0.4, "shares": {"input": 0.4}, "advice": "try data.cache=memory"}


@pytest.fixture
def runs(tmp_path, made_runs):
    """`runs(one={...}, four={"replicas": 4})` -> the runs of these names; seeds differ, so that none overlap."""

    def make(**wanted):
        folders = [
            made_runs.make_run(tmp_path / name, **{"seed": index, **changes})
            for index, (name, changes) in enumerate(wanted.items())
        ]
        return load_runs(folders)

    return make


def test_four_replicas_against_one(runs):
    found = compare(
        runs(one={"speed": 1000.0, "accuracy": 0.95}, four={"replicas": 4, "speed": 3600.0, "accuracy": 0.952}),
        price={"price_per_hour": 36.0},
    )
    (claim,) = found.claims
    assert claim.comparable and claim.scaling == "strong" and claim.is_faster
    assert claim.speed_up.value == pytest.approx(3.6)
    assert claim.efficiency.value == pytest.approx(0.9)
    assert (claim.speed_up.low, claim.speed_up.one_sample) == (None, True)
    # 12 s + 5 x (4 s + 1 s) + 3 s = 40 s against 12 s + 5 x (1.111 s + 1 s) + 3 s = 25.56 s
    assert claim.whole_run.value == pytest.approx(40 / 25.5556, rel=1e-5)
    assert claim.cost.value == pytest.approx((25.5556 - 40) / 100, rel=1e-4)
    assert claim.accuracy.value == pytest.approx(0.002) and claim.accuracy_is_noise


def test_the_verdict_is_one_sentence_of_plain_words(runs):
    found = compare(
        runs(
            one={"speed": 10.0, "accuracy": 0.95},
            four={"replicas": 4, "speed": 36.0, "accuracy": 0.952, "verdict": INPUT},
        ),
        price={"price_per_hour": 1.0},
    )
    # 2020 s against 575.6 s at one dollar an hour
    assert headline(found) == (
        "4 replicas: 3.6x faster, 90 % efficient (strong scaling), accuracy within noise (+0.2 pt), "
        "$0.40 less per run; bound by input: try data.cache=memory. One sample each."
    )
    assert details(found) == [
        "Compared with one (1 replica): one run each; repeats with other seeds (seed=1, seed=2) would tell how sure "
        "this is."
    ]


def test_a_whole_run_that_gains_less_than_its_steps_is_told(runs):
    found = compare(runs(one={"speed": 1000.0}, four={"replicas": 4, "speed": 3600.0}))
    assert "3.6x faster, 90 % efficient (strong scaling), the whole run takes 36 % less time" in headline(found)


def test_more_replicas_that_are_slower(runs):
    found = compare(runs(one={"speed": 100.0}, two={"replicas": 2, "speed": 50.0}))
    assert found.claims[0].is_faster is False
    assert headline(found).startswith("2 replicas: slower, 0.50x the speed, 25 % efficient (strong scaling)")


def test_no_price_no_claim_of_cost(runs):
    found = compare(runs(one={}, two={"replicas": 2}))
    assert found.claims[0].cost is None
    assert "per run" not in headline(found) and "Cost" not in {sheet.title for sheet in sheets(found)}


def test_two_currencies_are_not_subtracted(runs):
    prices = [{"cost__price_per_hour": 3.0, "cost__currency": currency} for currency in ("USD", "EUR")]
    found = compare(runs(one={"config": prices[0]}, two={"replicas": 2, "config": prices[1]}))
    assert found.claims[0].cost is None and all(found.costs.values())
    assert found.claims[0].other_settings == ()  # what a machine costs changes nothing about its speed


def test_weak_scaling_is_called_so(runs):
    found = compare(runs(one={"speed": 1000.0}, two={"replicas": 2, "batch": 80, "speed": 1900.0}))
    assert found.claims[0].scaling == "weak" and found.claims[0].efficiency.value == pytest.approx(0.95)
    assert "95 % efficient (weak scaling: 80 images a step instead of 40)" in headline(found)


def test_another_change_beside_the_replicas_has_a_speed_up_but_no_efficiency(runs):
    found = compare(runs(one={}, two={"replicas": 2, "speed": 1900.0, "config": {"data__cache": "off"}}))
    assert found.claims[0].speed_up.value == pytest.approx(1.9) and found.claims[0].efficiency is None
    assert headline(found).startswith("2 replicas with data.cache=off: 1.90x faster, strong scaling, ")


def test_a_setting_alone(runs):
    found = compare(runs(one={}, fast={"speed": 1500.0, "config": {"data__cache": "memory"}}))
    assert headline(found).startswith("data.cache=memory: 1.50x faster, ")
    assert found.claims[0].efficiency is None


def test_what_differs_by_less_than_noise_is_not_faster(runs):
    found = compare(runs(one={"speed": 1000.0}, two={"speed": 1010.0, "config": {"data__cache": "off"}}))
    assert found.claims[0].is_faster is None
    assert "no faster than the noise (1.01x)" in headline(found)


@pytest.mark.parametrize(
    "changes",
    [
        {"data": {"fingerprint": "0" * 64}},
        {"model": {"num_parameters": 7}},
        {"config": {"precision__name": "mixed_float16"}},
        {"epochs": 9},
        {"rehearsal": True},
        {"versions": {"tensorflow": "2.20.0"}},
        {"status": "failed", "epochs": 2, "asked_epochs": 5},
        {"gpu": False},
    ],
)
def test_nothing_is_claimed_of_what_cannot_be_compared(runs, changes):
    found = compare(runs(one={}, four={"replicas": 4, "speed": 9000.0, **changes}), price={"price_per_hour": 1.0})
    (claim,) = found.claims
    assert not claim.comparable
    numbers = (claim.speed_up, claim.efficiency, claim.whole_run, claim.accuracy, claim.cost, claim.is_faster)
    assert numbers == (None,) * 6
    assert headline(found).startswith("No speed-up can be claimed: ")
    written = markdown(found) + headline(found) + " ".join(details(found))
    assert "9.0x" not in written and "faster" not in written
    assert "not comparable: " in written
    assert as_dict(found)["claims"][0]["sentence"] is None
    assert 'class="verdict"' in comparison_page(found).html()


def test_several_reasons_are_named(runs):
    found = compare(runs(one={}, two={"epochs": 7, "config": {"precision__name": "mixed_float16"}}))
    assert headline(found) == "No speed-up can be claimed: they differ in precision and epochs."
    assert details(found) == [
        "two can't be compared with one: precision float32 against mixed_float16; epochs 5 against 7."
    ]


def test_repeats_are_grouped_and_get_an_interval(runs):
    found = compare(
        runs(
            a1={"speed": 1000.0, "accuracy": 0.90},
            a2={"speed": 1000.0, "accuracy": 0.91},
            a3={"speed": 1000.0, "accuracy": 0.92},
            b1={"replicas": 2, "speed": 1800.0, "accuracy": 0.90},
            b2={"replicas": 2, "speed": 1900.0, "accuracy": 0.92},
        )
    )
    assert [[run.name for run in group.runs] for group in found.groups] == [["a1", "a2", "a3"], ["b1", "b2"]]
    (claim,) = found.claims
    assert claim.speed_up.samples == (2, 3)
    assert claim.speed_up.value == pytest.approx((1800 * 1900) ** 0.5 / 1000)
    # ln(1900/1800) = 0.054067; its standard error is half of that, one degree of freedom: 12.706 * 0.0270336 = 0.34349
    assert claim.speed_up.low == pytest.approx(claim.speed_up.value * 2.718281828**-0.34349, rel=1e-4)
    assert claim.speed_up.high == pytest.approx(claim.speed_up.value * 2.718281828**0.34349, rel=1e-4)
    assert claim.accuracy_is_noise
    said = " ".join([headline(found), *details(found)])
    assert "One sample" not in said and "3 and 2 runs; intervals are 95 %" in said
    assert "1.85x faster (95 %: 1.31x to 2.6x)" in said


def test_one_run_against_repeats_has_no_interval_of_speed(runs):
    found = compare(runs(a1={}, a2={}, b1={"replicas": 2, "speed": 1900.0}))
    assert found.claims[0].speed_up.low is None
    assert "no interval where one side is a single run" in " ".join(details(found))


def test_a_better_accuracy_that_is_more_than_noise_is_told(runs):
    found = compare(runs(one={"accuracy": 0.80}, two={"replicas": 2, "speed": 1900.0, "accuracy": 0.90}))
    assert found.claims[0].accuracy_is_noise is False
    assert "accuracy better by 10.0 pt" in headline(found)
    back = compare(list(found.runs), baseline=found.runs[1])
    assert "accuracy worse by 10.0 pt" in headline(back)


def test_the_baseline_is_finished_and_small_unless_one_is_named(runs):
    found = runs(
        four={"replicas": 4},
        broken={"replicas": 1, "status": "failed"},
        drawn={"replicas": 1, "rehearsal": True},
        two={"replicas": 2},
    )
    assert compare(found).baseline.first.name == "two"
    assert compare(found, baseline=found[0]).baseline.first.name == "four"


def test_the_headline_is_of_the_most_replicas(runs):
    found = compare(
        runs(
            one={},
            two={"replicas": 2, "speed": 1900.0},
            four={"replicas": 4, "speed": 3000.0},
            eight={"replicas": 8, "speed": 9000.0, "epochs": 7},
        )
    )
    assert headline(found).startswith("4 replicas: 3.0x faster")
    assert details(found)[0].startswith("2 replicas: 1.90x faster")
    assert details(found)[1].startswith("eight can't be compared with one: epochs 5 against 7")


def test_the_target_is_what_every_compared_run_reached(runs):
    three = {
        "one": {"accuracy": 0.9125},
        "two": {"replicas": 2, "accuracy": 0.93},
        "other": {"accuracy": 0.5, "epochs": 9},
    }
    found = compare(runs(**three))
    assert (found.target, found.target_was_given) == (0.912, False)
    again = compare(list(found.runs), target=0.4)
    assert (again.target, again.target_was_given) == (0.4, True)
    assert as_dict(again)["runs"][0]["seconds_to_target"] == 27.0  # 0.9125 * 3/5 is above 0.4: epoch 3
    with pytest.raises(UserError, match="target accuracy 95"):
        compare(list(found.runs), target=95)


def test_a_single_run_is_shown_without_a_claim(runs):
    found = compare(runs(one={"verdict": INPUT}))
    assert headline(found) == (
        "Nothing to compare with: 1 replica, 1,000 images/s, validation accuracy 0.9000, 40.0 s in all; "
        "bound by input: try data.cache=memory."
    )
    assert found.claims == () and [sheet.title for sheet in sheets(found)] == ["Runs", "Where the time went"]


def test_runs_without_an_epoch_are_shown(runs):
    broken = {"status": "failed", "epochs": 0, "asked_epochs": 5, "error": "boom"}
    found = compare(runs(one=broken, two={**broken, "replicas": 2}))
    assert headline(found).startswith("No speed-up can be claimed")
    page = comparison_page(found)
    assert {chart.title for chart in page.charts} == {"Time"}  # no chart without data
    assert "failed after 0 of 5 epochs (boom)" in page.html()


def test_runs_too_short_to_have_a_speed(runs):
    short = {"throughput": {"images_per_second": None}}
    found = runs(one=short, two={"replicas": 2, **short})
    for run in found:
        for row in run.epochs:
            row["images_per_second"] = None
    assert headline(compare(found)).startswith("2 replicas: too short to measure a speed, ")


@settings(max_examples=15, deadline=None)
@given(
    speeds=st.lists(st.floats(1.0, 1e6), min_size=2, max_size=2),
    replicas=st.sampled_from([(1, 2), (1, 4), (2, 8), (4, 1), (8, 4)]),
)
def test_efficiency_is_speed_up_over_the_ratio_of_replicas(made_runs, tmp_path_factory, speeds, replicas):
    folder = tmp_path_factory.mktemp("pair")
    folders = [
        made_runs.make_run(folder / str(seed), replicas=count, speed=speed, epochs=2, seed=seed)
        for seed, (count, speed) in enumerate(zip(replicas, speeds, strict=True))
    ]
    base, run = load_runs(folders)
    (claim,) = compare([base, run], baseline=base).claims
    assert claim.speed_up.value == pytest.approx(speeds[1] / speeds[0])
    assert claim.efficiency.value * replicas[1] / replicas[0] == pytest.approx(claim.speed_up.value)


# --- what is written --------------------------------------------------------------------------------------------------


def test_json_holds_every_claim(runs):
    found = compare(
        runs(one={}, four={"replicas": 4, "speed": 3600.0}), price={"price_per_hour": 36.0, "currency": "EUR"}
    )
    told = json.loads(to_json(as_dict(found)))
    assert told["verdict"] == headline(found)
    assert told["claims"][0]["speed_up"]["value"] == pytest.approx(3.6)
    assert told["claims"][0]["efficiency"]["value"] == pytest.approx(0.9)
    assert told["claims"][0]["currency"] == "EUR"
    assert told["runs"][0]["cost"]["run"] == pytest.approx(0.4)
    assert told["settings_that_differ"]["strategy.replicas"] == {"one": 1, "four": 4}


def test_the_terminal_fits_eighty_columns(runs):
    found = compare(
        runs(
            **{f"a_run_with_a_long_name_that_goes_on_{seed}": {"seed": seed} for seed in range(3)},
            **{f"b_run_with_a_long_name_{seed}": {"replicas": 4, "speed": 3600.0 + seed} for seed in range(3)},
        ),
        price={"price_per_hour": 36.0},
    )
    console = Console(width=80, record=True, file=io.StringIO())
    for part in terminal(found):
        console.print(part)
    text = console.export_text()
    assert all(len(line) <= 80 for line in text.splitlines())
    for word in ("speed-up", "efficiency", "images/s", "validation", "replicas", "accuracy"):
        assert re.search(rf"(^|\s){word}(\s|$)", text, re.MULTILINE), f"{word} is broken"
    assert headline(found)[:60] in text.replace("\n", " ")


def test_markdown_takes_no_name_for_markup(runs):
    found = compare(runs(**{"a|b*c_d": {}, "<b>x": {"replicas": 2, "speed": 1900.0}}))
    text = markdown(found)
    assert "a\\|b\\*c\\_d" in text and "\\<b\\>" in text
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert all(len(re.findall(r"(?<!\\)\|", line)) in (3 + 1, 8, 9, 7, 5) for line in rows)


def test_times_have_three_digits_at_most():
    assert [times(value) for value in (0.005, 0.5, 1.0, 1.94, 1.96, 9.94, 44.4)] == [
        "0.005x",
        "0.50x",
        "1.00x",
        "1.94x",
        "2.0x",
        "9.9x",
        "44x",
    ]


JUNK = st.sampled_from([None, True, "x", "", -1, 0, 1e308, [], [1], {}, {"a": 1}, "\ud800"])


def paths(value, path=()):
    """The path of every value inside a record."""
    if path:
        yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from paths(inner, (*path, key))


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_a_record_of_another_version_stops_nobody(made_runs, tmp_path_factory, data):
    """Whatever stands where in a record, it is refused in words or shown; no value is taken for what it is not."""
    root = tmp_path_factory.mktemp("odd")
    one = made_runs.make_run(root / "one")
    odd = made_runs.make_run(root / "odd", replicas=2, verdict=INPUT, samples=made_runs.make_samples(12))
    record = json.loads((odd / "record.json").read_text())
    for _ in range(data.draw(st.integers(1, 3))):
        *way, last = data.draw(st.sampled_from(list(paths(record))))
        section = record
        for key in way:
            section = section[key]
        section[last] = data.draw(JUNK)
    (odd / "record.json").write_text(json.dumps(record))
    try:
        found = compare(load_runs([one, odd]), price={"price_per_hour": 1.0})
    except UserError:
        return
    to_json(as_dict(found))
    assert terminal(found) and markdown(found) and comparison_page(found)


def test_a_rehearsal_says_so_in_its_verdict(runs):
    found = compare(runs(one={"rehearsal": True}, two={"replicas": 2, "speed": 1900.0, "rehearsal": True}))
    assert headline(found).endswith("One sample each. A rehearsal on drawn pictures.")


def test_repeats_that_scatter_too_much_claim_nothing(runs):
    found = compare(
        runs(
            a1={"speed": 1000.0},
            a2={"speed": 900.0},
            b1={"replicas": 2, "speed": 500.0},
            b2={"replicas": 2, "speed": 1600.0},
        )
    )
    assert headline(found).startswith("2 replicas: speed too uncertain to tell (0.94x, 95 %: ")
    assert "efficient" not in headline(found)


def test_metrics_that_a_run_asked_for_have_curves_of_their_own(runs):
    found = runs(one={}, two={"replicas": 2})
    for epoch, row in enumerate(found[0].epochs):
        row |= {"calibration_error": 0.1, "val_calibration_error": 0.2 / (epoch + 1)}
    charts = {chart.title: chart.figure["data"] for chart in comparison_page(compare(found)).charts}
    (line,) = charts["Validation calibration error"]
    assert line["name"] == "one" and line["y"] == pytest.approx([0.2 / epoch for epoch in range(1, 6)], rel=1e-5)
    assert "Training calibration error" in charts
    panels = dashboard_panels._sections(Dashboard("", tuple(found), "", None, ""), found)["Learning"]
    assert ["epoch/val_calibration_error"] in [panel.y for panel in panels]


def test_samples_of_many_hours_are_drawn_as_means(runs, made_runs):
    samples = made_runs.make_samples(9000, utilization=50.0)
    found = compare(runs(one={"samples": samples}))
    (chart,) = (chart for chart in comparison_page(found).charts if chart.title == "GPU utilisation (%)")
    line = next(trace for trace in chart.figure["data"] if trace.get("legendgroup"))
    assert len(line["y"]) == 1801  # 9001 samples, five a point
    # Eight seconds of ten at 50 %: the mean of all points, the first ten seconds left out.
    assert sum(line["y"][2:]) / len(line["y"][2:]) == pytest.approx(40.0, abs=0.2)


def test_the_devices_of_several_workers_are_drawn_one_by_one(runs, made_runs):
    own = [made_runs.make_samples(20, gpus=2, node=node, utilization=10.0) for node in ("a", "b", "b")]
    asked = {"replicas": 6, "samples": own[0], "worker_samples": own[1:]}
    charts = {chart.title: chart for chart in comparison_page(compare(runs(one=asked))).charts}

    def names(title):
        return [trace["name"] for trace in charts[title].figure["data"] if trace.get("legendgroup")]

    assert names("GPU utilisation (%)") == [f"GPU {gpu} of rank {rank}" for rank in range(3) for gpu in range(2)]
    assert names("CPU utilisation, all cores (%)") == ["rank 0", "rank 1"]  # rank 2 shares the machine of rank 1
    assert "(of rank 0)" in charts["GPU utilisation (%)"].note and "6 GPUs" in str(charts["GPU utilisation (%)"].figure)


def test_of_many_runs_of_several_workers_the_mean_is_that_of_all_gpus(runs, made_runs):
    own = [made_runs.make_samples(20, utilization=utilization) for utilization in (10.0, 30.0)]
    asked = {"replicas": 2, "samples": own[0], "worker_samples": own[1:]}
    page = comparison_page(compare(runs(**{f"run{index}": asked for index in range(7)})))
    (chart,) = (chart for chart in page.charts if chart.title == "GPU utilisation (%)")
    lines = [trace for trace in chart.figure["data"] if trace.get("legendgroup")]
    assert len(lines) == 7 and set(lines[0]["y"]) == {0.0, 20.0}
    assert "mean of 2 GPUs" in str(chart.figure)


@pytest.mark.parametrize(("count", "lines"), [(2, 4), (7, 7)])
def test_of_many_runs_the_mean_over_the_gpus_is_drawn(runs, made_runs, count, lines):
    samples = made_runs.make_samples(20, gpus=2)
    found = compare(runs(**{f"run{index}": {"replicas": 2, "samples": samples} for index in range(count)}))
    (chart,) = (chart for chart in comparison_page(found).charts if chart.title == "GPU utilisation (%)")
    assert len([trace for trace in chart.figure["data"] if trace.get("legendgroup")]) == lines
