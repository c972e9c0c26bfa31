"""What a scaling study's records allow to be said: exact numbers in, exact claims out."""

import itertools
import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyfit.console import as_text
from manyfit.files import to_json
from manyfit.report.pairs import STRONG, WEAK
from manyfit.report.runs import Run
from manyfit.report.scaling import scaling
from manyfit.report.scaling_equality import DIFFERENT, DRIFTS, EQUAL, NOT_COMPARED, equality
from manyfit.report.scaling_losses import PARTS, Parts, fitted, lost, parts_of, predict
from manyfit.report.scaling_page import scaling_page
from manyfit.report.scaling_result import Training
from manyfit.report.scaling_tables import scaling_markdown, scaling_tables
from manyfit.report.scaling_words import recommend
from manyfit.schema.cost import CostConfig


def record(count, speed, *, size=64, gpu=True, shares=None, numbers=None, losses=(1.0, 0.5), seconds=100.0, **more):
    """A finished run: `speed` images/s on `count` replicas, a global batch of `size`, 2 s an epoch."""
    kind = "GPU" if gpu else "CPU"
    epochs = [
        {
            **{"epoch": epoch, "loss": loss, "val_loss": loss, "val_accuracy": 1 - loss / 2, "accuracy": 1 - loss / 2},
            **{"train_seconds": 1.5, "validation_seconds": 0.5, "images_per_second": speed, "learning_rate": 0.01},
        }
        for epoch, loss in enumerate(losses, start=1)
    ]
    plain = {
        "status": "finished",
        "rehearsal": False,
        "data": {"fingerprint": "f", "num_train": 10 * size, "num_validation": 100},
        "model": {"name": "m", "trains_batch_norm": False, "sync_batch_norm": True},
        "strategy": {"num_replicas": count, "devices": [f"{kind}:{index}" for index in range(count)]},
        "batch": {
            **{"global_batch_size": size, "per_replica_batch_size": size // count, "gradient_accumulation": 1},
            **{"steps_per_epoch": 10, "padding_rows": 0},
        },
        "best": {"val_accuracy": max(1 - loss / 2 for loss in losses)} if losses else {},
        "timing": {"total_seconds": seconds + 7.0, "probe_seconds": 7.0, "startup_seconds": 10.0},
        "throughput": {"images_per_second": speed},
        "versions": {},
        "git": {},
        "host": {},
        "tracker": {},
        "epochs": epochs,
    }
    if shares is not None:
        plain["verdict"] = {"shares": shares, "bound": max(shares, key=shares.get), "numbers": numbers or {}}
    return {**plain, **more}


_names = itertools.count()


def training(count, speed, *, mode=STRONG, repeat=1, **more):
    name = f"replicas-{count}.{repeat}-{next(_names)}"
    settings = {"precision.name": "float32", "epochs": 2}
    return Training(mode, count, repeat, Run(Path("/runs") / name, name, record(count, speed, **more), settings))


def point(found, count, mode=STRONG):
    [one] = [one for one in found.points if (one.num_replicas, one.mode) == (count, mode)]
    return one


# --- speed-up and efficiency ------------------------------------------------------------------------------------------


def test_speed_up_and_efficiency_of_single_runs():
    found = scaling([training(1, 100.0), training(2, 180.0), training(4, 300.0)])
    assert [one.num_replicas for one in found.points] == [1, 2, 4]
    assert [one.speed_up.value for one in found.points] == pytest.approx([1.0, 1.8, 3.0])
    assert [one.efficiency.value for one in found.points] == pytest.approx([1.0, 0.9, 0.75])
    # Replica 2 does 80 % of what it could; replicas 3 and 4 add 1.2 of the 1.8 that two of them do now.
    assert [one.added_efficiency for one in found.points] == [None, pytest.approx(0.8), pytest.approx(2 / 3)]
    assert all(one.speed_up.low is None for one in found.points)  # one sample, no interval
    assert [one.seconds.value for one in found.points if one.seconds] == pytest.approx([100.0] * 3)


def test_repeats_are_compared_round_by_round_so_that_drift_cancels():
    # The machine is half as fast in the second round; the ratio is 2 in both.
    trainings = [training(n, s, repeat=r) for r, n, s in ((1, 1, 100.0), (1, 2, 200.0), (2, 1, 50.0), (2, 2, 100.0))]
    two = point(scaling(trainings), 2)
    assert (two.speed_up.value, two.speed_up.low, two.speed_up.high) == pytest.approx((2.0, 2.0, 2.0))
    assert two.images_per_second.value == pytest.approx(math.sqrt(200.0 * 100.0))
    assert two.repeats == len(two.runs) == 2


def test_the_interval_is_students_of_the_logarithms():
    # Ratios 2/1.1, 2 and 2 x 1.1: symmetric in the logarithm, with a standard deviation of log 1.1.
    rounds = [(100.0, 200.0 / 1.1), (100.0, 200.0), (100.0, 220.0)]
    trainings = [
        training(n, speed, repeat=repeat)
        for repeat, speeds in enumerate(rounds, start=1)
        for n, speed in zip((1, 2), speeds, strict=True)
    ]
    two = point(scaling(trainings), 2)
    factor = math.exp(4.303 * math.log(1.1) / math.sqrt(3))
    assert (two.speed_up.value, two.speed_up.low, two.speed_up.high) == pytest.approx((2.0, 2 / factor, 2 * factor))
    assert (two.efficiency.low, two.efficiency.high) == pytest.approx((1 / factor, factor))


def test_the_smallest_count_need_not_be_one():
    found = scaling([training(2, 100.0), training(8, 300.0)])
    assert point(found, 8).speed_up.value == pytest.approx(3.0)
    assert point(found, 8).efficiency.value == pytest.approx(0.75)


def test_weak_scaling_counts_images_as_well_and_makes_no_claim_about_the_time_of_a_run():
    found = scaling([training(1, 100.0, mode=WEAK, size=32), training(4, 360.0, mode=WEAK, size=128)])
    four = point(found, 4, WEAK)
    assert (four.speed_up.value, four.efficiency.value) == pytest.approx((3.6, 0.9))
    assert four.time_ratio is None and four.per_replica_batch_size == 32


def test_time_and_cost_to_the_accuracy_that_every_run_reached():
    slow = training(1, 100.0, losses=(1.0, 0.6, 0.4), seconds=360.0)
    fast = training(2, 190.0, losses=(0.6, 0.2, 0.2), seconds=180.0)
    found = scaling([slow, fast], price=CostConfig(price_per_hour=10.0, per="device"))
    assert found.target_accuracy == pytest.approx(0.8)  # the best of the slow one
    # 10 s of start-up and 2 s an epoch: the slow one needs 3 epochs, the fast one 2.
    assert [one.seconds_to_accuracy.value for one in found.points if one.seconds_to_accuracy] == pytest.approx([16, 14])
    assert [one.cost for one in found.points] == pytest.approx([1.0, 1.0])
    machine = scaling([slow, fast], price=CostConfig(price_per_hour=10.0, per="machine"))
    assert [one.cost for one in machine.points] == pytest.approx([1.0, 0.5])
    assert [one.cost_to_accuracy for one in machine.points] == pytest.approx([16 * 10 / 3600, 14 * 10 / 3600])
    assert point(found, 2).time_ratio == pytest.approx(2.0)


def test_what_one_run_does_for_all_is_not_its_time():
    features = training(1, 100.0)
    features.record["timing"].update(feature_seconds=30.0, prepare_seconds=40.0)
    assert features.seconds == pytest.approx(60.0)


# --- what is left out -------------------------------------------------------------------------------------------------


def test_runs_too_short_or_unlike_the_others_are_named_and_left_out():
    short = training(4, None)
    for row in short.record["epochs"]:
        row["images_per_second"] = None
    other = training(2, 150.0)
    other.record["data"]["fingerprint"] = "another"
    found = scaling([training(1, 100.0), other, short], failures={"replicas-8": "no memory"})
    assert [one.num_replicas for one in found.points] == [1]
    assert found.unmeasured == (short.run.name,)
    assert found.failures["replicas-8"] == "no memory" and "the data differ" in found.failures[other.run.name]
    assert recommend(found).sentence == "One count was measured: there is nothing to compare."


def test_nothing_at_all_says_so():
    short = training(1, None, losses=())
    found = scaling([short])
    assert found.points == [] and recommend(found).sentence.startswith("Nothing was measured")
    assert json.loads(to_json(found.as_dict()))["points"] == []


# --- where the lost time goes -----------------------------------------------------------------------------------------

ONE = {"input": 0.1, "synchronisation": 0.0, "launch": 0.1, "compute": 0.8}
FOUR = {"input": 0.2, "synchronisation": 0.3, "launch": 0.2, "compute": 0.3}


def test_lost_parts_are_what_did_not_shrink_and_sum_to_what_the_efficiency_lacks():
    found = scaling([training(1, 100.0, shares=ONE), training(4, 250.0, shares=FOUR)])
    parts = point(found, 4).lost
    # An image takes 10 ms on one replica and 4 ms on four; a quarter of 10 ms is 2.5 ms.
    assert parts is not None and sum(parts.values()) == pytest.approx(1 - 250 / 400)
    assert parts["input"] == pytest.approx(0.2 - 0.1 * 2.5 / 4)
    assert parts["synchronisation"] == pytest.approx(0.3)
    assert parts["launch"] == pytest.approx(0.2 - 0.1 * 2.5 / 4)
    assert parts["compute"] == pytest.approx(0.3 - 0.8 * 2.5 / 4)
    assert point(found, 1).lost == dict.fromkeys(PARTS, 0.0)


def test_without_a_probe_nothing_is_said_about_losses():
    found = scaling([training(1, 100.0), training(4, 250.0, shares=FOUR)])
    assert point(found, 4).lost is None
    assert "give probe=true" in " ".join(recommend(found).details)


def test_waiting_for_the_slowest_replica_is_told_from_summing():
    numbers = {
        **{"step_seconds_cached": 0.010, "step_seconds_without_all_reduce": 0.006},
        "step_seconds_with_barrier": 0.007,
    }
    one = parts_of([record(4, 100.0, shares=FOUR, numbers=numbers)], 100.0)
    assert one is not None
    assert one.parts["imbalance"] == pytest.approx(0.3 * 0.25 / 100)
    assert one.parts["synchronisation"] == pytest.approx(0.3 * 0.75 / 100)
    assert sum(one.parts.values()) == pytest.approx(1 / 100)


def test_rows_of_padding_are_a_part_of_their_own():
    plain = record(4, 100.0, shares=FOUR)
    plain["batch"]["padding_rows"] = 64  # of 640
    one = parts_of([plain], 100.0)
    assert one is not None and one.parts["padding"] == pytest.approx(0.1 / 100)
    assert one.parts["compute"] == pytest.approx(0.9 * 0.3 / 100)


@given(st.lists(st.floats(0.0, 1.0), min_size=8, max_size=8), st.floats(1.0, 1e5), st.floats(1.0, 1e5))
def test_the_parts_sum_to_the_whole_whatever_they_are(shares, base_speed, speed):
    def parts(values, count, rate):
        total = sum(values) or 1.0
        names = [name for name in PARTS if name not in ("imbalance", "padding")]
        values = [value / total for value in values] if sum(values) else [0.25] * 4
        return parts_of([record(count, rate, shares=dict(zip(names, values, strict=True)))], rate)

    base, more = parts(shares[:4], 1, base_speed), parts(shares[4:], 4, speed)
    assert base is not None and more is not None
    assert sum(lost(base, more).values()) == pytest.approx(1 - speed / base_speed / 4, abs=1e-6, rel=1e-6)


# --- predictions ------------------------------------------------------------------------------------------------------


def made(count, *, launch, compute, ring, alone, size=64):
    """What the model says a step on `count` replicas is made of, as measured parts."""
    parts = {
        **{"launch": launch, "compute": compute * size / count},
        "synchronisation": ring * 2 * (count - 1) / count,
    }
    step = max(sum(parts.values()), alone * size)
    parts["input"] = step - sum(parts.values())
    an_image = {name: seconds / size for name, seconds in parts.items()}
    return Parts(count, size, step / size, an_image, alone)


def test_amdahls_law_is_found_in_points_that_obey_it():
    serial, parallel = 0.2, 0.8  # a fifth of a step cannot be shared
    points = [made(n, launch=serial, compute=parallel / 64, ring=0.0, alone=0.0) for n in (1, 2, 4)]
    model = fitted(points)
    assert not isinstance(model, str)
    assert (model.launch, 64 * model.compute, model.ring) == pytest.approx((serial, parallel, 0.0))
    assert model.error == pytest.approx(0.0, abs=1e-9)
    found = predict(model, points, fixed_batch=True)
    assert [one.num_replicas for one in found] == [8, 16]
    assert [one.speed_up for one in found] == pytest.approx([1 / (serial + parallel / n) for n in (8, 16)])
    assert [one.efficiency for one in found] == pytest.approx([1 / (serial + parallel / n) / n for n in (8, 16)])
    assert [one.bound for one in found] == ["launch", "launch"]


def test_a_ring_and_an_input_that_cannot_keep_up_are_found_again():
    points = [made(n, launch=0.01, compute=0.01, ring=0.02, alone=0.0007) for n in (1, 2, 4)]
    model = fitted(points)
    assert not isinstance(model, str)
    assert (model.launch, model.compute, model.ring, model.input) == pytest.approx((0.01, 0.01, 0.02, 0.0007))
    eight, sixteen = predict(model, points, fixed_batch=True)
    assert eight.images_per_second == pytest.approx(64 / (0.01 + 0.08 + 0.02 * 2 * 7 / 8))
    assert sixteen.images_per_second == pytest.approx(64 / (0.01 + 0.04 + 0.02 * 2 * 15 / 16))
    starved = [made(n, launch=0.01, compute=0.01, ring=0.0, alone=0.003) for n in (1, 2, 4)]
    model = fitted(starved)
    assert not isinstance(model, str)
    assert [one.images_per_second for one in predict(model, starved, fixed_batch=True)] == pytest.approx(
        [1 / 0.003] * 2
    )
    assert [one.bound for one in predict(model, starved, fixed_batch=True)] == ["input", "input"]


def test_weak_scaling_is_predicted_with_a_batch_that_grows():
    points = [made(n, launch=0.01, compute=0.01, ring=0.02, alone=0.0, size=16 * n) for n in (1, 2, 4)]
    model = fitted(points)
    assert not isinstance(model, str)
    eight, _ = predict(model, points, fixed_batch=False)
    assert eight.global_batch_size == 128
    assert eight.images_per_second == pytest.approx(128 / (0.01 + 0.16 + 0.02 * 2 * 7 / 8))


def test_what_the_model_does_not_know_it_does_not_predict():
    points = [made(n, launch=0.01, compute=0.01, ring=0.02, alone=0.0) for n in (1, 2, 4)]
    assert "needs 3 counts" in str(fitted(points[:2]))
    broken = Parts(8, 64, 3 * points[2].seconds, dict(points[2].parts))
    assert "misses the speed measured on 8 replicas" in str(fitted([*points, broken]))
    unknown = Parts(4, 64, points[2].seconds, dict(points[2].parts), launch_is_known=False)
    assert "fixed cost of a step" in str(fitted([*points[:2], unknown]))


def test_a_batch_that_does_not_divide_is_not_predicted():
    points = [made(n, launch=0.01, compute=0.01, ring=0.0, alone=0.0, size=24) for n in (1, 2, 4)]
    model = fitted(points)
    assert not isinstance(model, str)
    assert [one.num_replicas for one in predict(model, points, fixed_batch=True)] == [8]


# --- is the result the same -------------------------------------------------------------------------------------------


def losses(*values, **more):
    return record(1, 100.0, losses=values, **more)


def test_equal_results_are_called_equal():
    found = equality(2, 1, [(losses(1.0, 0.5), losses(1.0 + 1e-6, 0.5 - 1e-6))], limit=1e-3, weak=False)
    assert (found.verdict, found.pairs, found.drifts_from) == (EQUAL, 1, None)
    assert found.first_difference == pytest.approx(1e-6) and found.largest_difference == pytest.approx(2e-6)
    assert found.accuracy_difference == pytest.approx(0.5e-6)


def test_rounding_that_grows_is_told_from_another_result():
    drifting = equality(2, 1, [(losses(1.0, 0.5, 0.2), losses(1.0, 0.5, 0.21))], limit=1e-3, weak=False)
    assert (drifting.verdict, drifting.drifts_from) == (DRIFTS, 3)
    different = equality(2, 1, [(losses(1.0, 0.5), losses(1.1, 0.5))], limit=1e-3, weak=False)
    assert (different.verdict, different.drifts_from) == (DIFFERENT, 1)
    assert "src/check.py" in different.why
    broken = losses(1.0, 0.5)
    broken["epochs"][0]["loss"] = None  # not finite on one side only
    assert equality(2, 1, [(losses(1.0, 0.5), broken)], limit=1e-3, weak=False).verdict == DIFFERENT


def test_the_worst_of_several_pairs_counts():
    pairs = [(losses(1.0), losses(1.0)), (losses(1.0), losses(1.2))]
    assert equality(2, 1, pairs, limit=1e-3, weak=False).verdict == DIFFERENT


@pytest.mark.parametrize(
    ("other", "weak", "why"),
    [
        (losses(1.0), True, "the batch of a step grows"),
        (losses(1.0, size=128), False, "the global batch is not the same"),
        (losses(1.0, data={"fingerprint": "another"}), False, "the data is not the same"),
        (
            losses(1.0, model={"trains_batch_norm": True, "sync_batch_norm": False}),
            False,
            "model.sync_batch_norm=false",
        ),
        (losses(), False, "no epoch of both runs"),
    ],
)
def test_what_must_differ_is_not_compared(other, weak, why):
    found = equality(2, 1, [(losses(1.0), other)], limit=1e-3, weak=weak)
    assert found.verdict == NOT_COMPARED and why in found.why


def test_runs_are_paired_by_their_round():
    trainings = [
        *(training(1, 100.0, repeat=1, losses=(1.0,)), training(1, 100.0, repeat=2, losses=(2.0,))),
        *(training(2, 100.0, repeat=1, losses=(1.0,)), training(2, 100.0, repeat=2, losses=(2.0,))),
    ]
    [found] = scaling(trainings).modes[0].equality
    assert (found.verdict, found.pairs, found.largest_difference) == (EQUAL, 2, 0.0)


# --- what is recommended ----------------------------------------------------------------------------------------------


def advice(*speeds, price=None, gpu=True, **more):
    trainings = [training(n, s, gpu=gpu, seconds=36000 / s, **more) for n, s in zip((1, 2, 4), speeds, strict=False)]
    return recommend(scaling(trainings, price=price), price)


def test_all_replicas_where_each_does_its_work():
    found = advice(100.0, 190.0, 360.0, price=CostConfig(price_per_hour=10.0, per="device"))
    assert found.num_replicas == 4
    assert found.sentence == (
        "More replicas pay: 4 replicas run at 3.60x the speed of 1 (90% efficient), and a run costs 11% more."
    )
    assert found.details[0] == "A run costs, by replicas, 1: $1.00, 2: $1.05, 4: $1.11."


def test_a_machine_that_is_paid_for_anyway_gets_cheaper():
    found = advice(100.0, 190.0, 360.0, price=CostConfig(price_per_hour=10.0, per="machine"))
    assert found.sentence.endswith("and a run costs 72% less.")


def test_the_second_device_that_is_not_worth_its_price():
    found = advice(100.0, 120.0, 130.0)
    assert found.num_replicas == 1
    assert found.sentence == (
        "More replicas do not pay: the second one would bring 1.20x the speed for 2x the replicas, 20% of what they "
        "could add."
    )


def test_some_but_not_all():
    found = advice(100.0, 190.0, 210.0)
    assert found.num_replicas == 2
    assert found.sentence.startswith(
        "2 replicas pay: 1.90x the speed of 1 (95% efficient). Beyond that, 2 more would bring 1.11x"
    )


def test_a_gain_that_repeats_cannot_tell_from_noise_is_none():
    speeds = [(1, 1, 100.0), (1, 2, 190.0), (2, 1, 100.0), (2, 2, 105.0)]
    found = recommend(scaling([training(n, speed, repeat=repeat) for repeat, n, speed in speeds]))
    assert found.num_replicas == 1 and "cannot tell from noise" in found.sentence


def test_any_gain_pays_on_a_machine_that_is_paid_for():
    found = advice(100.0, 120.0, 130.0, price=CostConfig(price_per_hour=10.0, per="machine"))
    assert found.num_replicas == 4
    none = advice(100.0, 101.0, price=CostConfig(price_per_hour=10.0, per="machine"))
    assert none.num_replicas == 1 and "nothing beyond the noise" in none.sentence


def test_logical_devices_recommend_nothing_and_say_so_everywhere():
    trainings = [training(n, s, gpu=False) for n, s in ((1, 100.0), (2, 190.0))]
    found = scaling(trainings)
    advised = recommend(found)
    assert advised.num_replicas is None and "measures no GPU" in advised.sentence
    assert found.as_dict()["measures_gpus"] is False
    page = scaling_page(found, advised, trainings, title="t", facts=[]).html()
    terminal = "\n".join(as_text(part) for part in scaling_tables(found, advised))
    for text in (page, terminal.replace("\n", " "), scaling_markdown(found, advised)):
        assert "measure no GPU" in text


def test_the_texts_name_speed_losses_predictions_and_equality():
    def whole(count, speed):
        numbers = {"input_seconds": 0.01, "launch_seconds": 0.1}
        parts = made(count, launch=0.1, compute=0.01, ring=0.02, alone=0.0001)
        shares = {name: seconds / parts.seconds for name, seconds in parts.parts.items()}
        return training(count, 1 / parts.seconds, shares=shares, numbers=numbers)

    trainings = [whole(count, None) for count in (1, 2, 4)]
    found = scaling(trainings)
    advised = recommend(found)
    page = scaling_page(found, advised, trainings, title="<b>study</b>", facts=[("commit", "abc")])
    titles = [chart.title for chart in page.charts]
    for title in ("Speed-up against replicas", "Scaling efficiency", "Where the lost time goes", "Validation accuracy"):
        assert title in titles
    assert "Cost of a run" not in titles and "<b>study" not in page.html()
    terminal = " ".join("\n".join(as_text(part) for part in scaling_tables(found, advised)).split())
    for text in (terminal, scaling_markdown(found, advised)):
        assert "PREDICTION, not measured: 8 replicas would run at" in text and "Model: a step takes max(" in text
        assert "4 replicas: the same result as 1 replica" in text
    written = json.loads(to_json(found.as_dict()))
    assert written["points"][2]["speed_up"] == pytest.approx(found.points[2].speed_up.value)
    assert {"num_replicas", "images_per_second", "speed_up", "efficiency", "best_val_accuracy", "seconds", "cost",
            "run", "mode", "repeats"} <= set(written["points"][0])  # fmt: skip
    assert [one["num_replicas"] for one in written["predictions"]] == [8, 16]
