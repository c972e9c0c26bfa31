"""What runs cost, to the cent; and nothing at all without a price."""

import pytest

from manyfit.config import CostConfig
from manyfit.errors import ConfigError
from manyfit.report.cost import cost_of, money, price_of
from manyfit.report.runs import load_runs


@pytest.fixture
def run(tmp_path, made_runs):
    def make(**changes):
        return load_runs([made_runs.make_run(tmp_path / f"run{len(list(tmp_path.iterdir()))}", **changes)])[0]

    return make


def test_no_price_no_claim(run):
    assert price_of(run()) is None
    assert cost_of(run(), None) is None
    assert cost_of(run(), CostConfig()) is None


def test_every_part_of_the_cost(run):
    # 12 s start-up, 5 epochs of 4 s + 1 s, 3 s at the end: 40 s; epoch 2 reaches 0.36, at 22 s.
    cost = cost_of(run(speed=1000.0, accuracy=0.9, probe=7.0), CostConfig(price_per_hour=3.6), target=0.36)
    assert cost is not None
    assert (cost.currency, cost.per_hour) == ("USD", 3.6)
    assert cost.run == pytest.approx(0.040)  # the probe's seconds are not the training's
    assert cost.epoch == pytest.approx(0.005)
    assert cost.million_images == pytest.approx(1.0)
    assert cost.target == pytest.approx(0.022)


def test_a_target_that_was_never_reached_has_no_cost(run):
    cost = cost_of(run(accuracy=0.5), CostConfig(price_per_hour=1.0), target=0.6)
    assert cost is not None and cost.target is None and cost.run is not None


def test_a_price_a_device_counts_gpus_and_the_one_cpu(run):
    price = CostConfig(price_per_hour=2.0, per="device")
    assert [cost_of(one, price).per_hour for one in (run(replicas=4), run(replicas=4, gpu=False))] == [8.0, 2.0]
    assert cost_of(run(replicas=4), CostConfig(price_per_hour=2.0)).per_hour == 2.0
    assert cost_of(run(strategy={"devices": []}), price) is None  # on how many is not known


def test_a_run_that_is_not_over_has_no_cost_of_the_run(run):
    cost = cost_of(run(status="running"), CostConfig(price_per_hour=1.0))
    assert cost is not None and cost.run is None and cost.epoch is not None


def test_the_command_line_wins_over_the_runs_own_price(run):
    priced = run(config={"cost__price_per_hour": 3.0, "cost__per": "device", "cost__currency": "EUR"})
    assert price_of(priced) == CostConfig(3.0, "device", "EUR")
    assert price_of(priced, {"price_per_hour": 1.0, "per": None, "currency": None}) == CostConfig(1.0, "device", "EUR")
    assert price_of(run(), {"price_per_hour": 0}) == CostConfig(0)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"price_per_hour": -1.0}, "cost.price_per_hour=-1.0 is out of range"),
        ({"price_per_hour": float("nan")}, "out of range"),
        ({"per": "hour"}, "cost.per=hour is not one of its choices"),
        ({"currency": "dollars"}, "cost.currency=dollars is not a currency"),
        ({"currency": "usd"}, "cost.currency=usd is not a currency"),
    ],
)
def test_what_is_no_price_is_refused(changes, said):
    with pytest.raises(ConfigError, match=said) as caught:
        CostConfig(**changes)
    assert caught.value.remedy


def test_prices_that_cannot_be_read_are_refused_in_words(run):
    with pytest.raises(ConfigError, match="prices of"):
        price_of(run(config={"cost__price_per_hour": "three"}))


@pytest.mark.parametrize(
    ("amount", "expected"),
    [(0.11, "$0.11"), (-0.11, "-$0.11"), (0.0042, "$0.0042"), (12, "$12.00"), (0.1, "$0.10"), (None, "-")],
)
def test_amounts_for_people(amount, expected):
    assert money(amount, "USD") == expected
