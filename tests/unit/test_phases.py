"""The plan of a training in phases: what is asked, what is refused, where it stands, what is said of it."""

import dataclasses

import pytest
from hydra import compose, initialize_config_dir
from hypothesis import given
from hypothesis import strategies as st

from manyfit import phases
from manyfit.command import repository_root
from manyfit.config import (
    CosineConfig,
    LightAugmentConfig,
    PhaseConfig,
    RunConfig,
    SmallCNNConfig,
    SWAConfig,
    check,
    from_yaml,
    to_yaml,
)
from manyfit.errors import ConfigError
from manyfit.phases import Standing, outcome, plan, summary_rows
from manyfit.schema.checks import last_layers

TWO = "phases=[{epochs:3,trainable:none},{epochs:2,trainable:last:20,learning_rate:1e-4,schedule:cosine,augment:light}]"


def composed(*overrides):
    with initialize_config_dir(str(repository_root() / "conf"), version_base="1.3"):
        return compose("config", overrides=list(overrides))


def test_each_phase_is_the_run_with_what_it_asks_for():
    config = check(composed(TWO, "swa.epochs=2"))
    assert config.epochs == 5
    head, last = plan(config)
    assert (head.number, head.epochs, head.trainable, head.config.model.trainable) == (1, 3, "none", "none")
    assert (head.config.optimizer.learning_rate, head.config.schedule.name) == (0.001, "constant")
    assert (last.epochs, last.trainable, last.config.optimizer.learning_rate) == (2, "last:20", 1e-4)
    assert isinstance(last.config.schedule, CosineConfig) and isinstance(last.config.augment, LightAugmentConfig)
    assert (head.config.swa.epochs, last.config.swa.epochs) == (None, 2)
    assert from_yaml(to_yaml(config)) == config


def test_a_run_without_phases_is_one_phase_and_stays_as_it_is():
    config = RunConfig(epochs=4)
    (phase,) = plan(config)
    assert phase.config is config and phase.trainable is None


def test_a_phase_keeps_what_it_leaves_out():
    config = RunConfig(phases=[PhaseConfig(2), PhaseConfig(1, trainable=5)], augment=LightAugmentConfig(flip=0.25))
    first, second = plan(config)
    assert first.trainable == "none" and second.trainable == second.config.model.trainable == 5
    assert first.config.augment == second.config.augment == LightAugmentConfig(flip=0.25)
    (only,) = plan(RunConfig(model=SmallCNNConfig(), phases=[{"epochs": 1, "trainable": ["dense"]}]))
    assert only.trainable == ["dense"]


@pytest.mark.parametrize(
    ("overrides", "message", "remedy"),
    [
        (["phases=[{epochs:3,lr:1}]"], "Unknown key: phases[0].lr.", "learning_rate"),
        (["phases=[{trainable:all}]"], "phases[0].epochs has no value.", "phases[0].epochs="),
        (["phases=[{epochs:1},{epochs:0}]"], "phases[1].epochs=0 is out of range.", ">= 1"),
        (["phases=[{epochs:x}]"], "phases[0].epochs has the wrong type", "right type"),
        (["phases=[{epochs:2,learning_rate:0}]"], "phases[0].learning_rate=0.0 is out of range.", "> 0"),
        (["phases=[{epochs:2,schedule:cosin}]"], "phases[0].schedule=cosin is unknown.", "'cosine'"),
        (["phases=[{epochs:2,schedule:3}]"], "neither a name nor a mapping", "constant"),
        (["phases=[{epochs:2,schedule:{name:cosine,decay:1}}]"], "phases[0].schedule.decay", "warmup_epochs"),
        (["phases=[{epochs:2,schedule:{name:cosine,min_factor:7}}]"], "phases[0].schedule: schedule.min", "0 to 1"),
        (["phases=[{epochs:2,augment:lite}]"], "phases[0].augment=lite is unknown.", "'light'"),
        (["phases=[{epochs:2,batch_norm:yes}]"], "phases[0].batch_norm=yes", "inference"),
        (["phases=[{epochs:2,trainable:last:0}]"], "phases[0].trainable=last:0", "last:N"),
        (["phases=[{epochs:2,trainable:[]}]"], "phases[0].trainable=[]", "last:N"),
        (["phases=[{epochs:2,schedule:{name:plateau,metric:val_f1}}]"], "schedule.metric=val_f1", "metrics=[f1]"),
        (["phases=[3]"], "phases[0]=3 is no mapping", "epochs: 3"),
        (["phases=3"], "phases=3 has the wrong type.", "Give a list"),
        (["phases=[{epochs:2}]", "epochs=9"], "epochs=9, but the phases have 2 epochs", "Leave epochs out"),
        (["phases=[{epochs:4},{epochs:2}]", "swa.epochs=3"], "the 2 epochs of the last phase", "fewer"),
        (["swa.epochs=3", "ema.decay=0.9"], "both average the weights", "Give one"),
        (["model.trainable=last:x"], "model.trainable=last:x", "last:N"),
        (["schedule=plateau", "schedule.factor=1"], "schedule.factor=1.0 is out of range.", "0.5"),
        (["optimizer.layer_decay=1.5"], "optimizer.layer_decay=1.5 is out of range.", "0.8"),
    ],
)  # fmt: skip
def test_a_refusal_names_the_key_and_the_remedy(overrides, message, remedy):
    with pytest.raises(ConfigError) as caught:
        check(composed(*overrides))
    assert message in caught.value.message and remedy in caught.value.remedy


@given(st.one_of(st.text(max_size=12), st.integers(-3, 300), st.none(), st.lists(st.text(max_size=5), max_size=2)))
def test_whatever_is_given_as_trainable_is_taken_or_refused_in_words(value):
    try:
        phase = RunConfig(phases=[{"epochs": 1, "trainable": value}]).phases[0]
    except ConfigError as error:
        assert "phases[0]" in error.message and error.remedy
    else:
        assert phase.trainable == value
        assert last_layers(value) is None or last_layers(value) >= 1


def test_the_example_composes_and_has_two_phases():
    config = check(composed("experiment=cats_dogs_two_phase"))
    head, fine = plan(config)
    assert head.trainable == "none" and not head.config.augment.active
    assert fine.config.optimizer.learning_rate == pytest.approx(head.config.optimizer.learning_rate / 10)


def test_a_standing_survives_its_checkpoint_and_older_ones_have_none():
    at = Standing(index=1, first_epoch=4)
    assert Standing.of({"phase": at.as_dict()}) == at and Standing.of({}) == Standing()
    phase = plan(RunConfig(phases=[{"epochs": 1}, {"epochs": 3}]))[1]
    assert [at.is_over(phase, epoch) for epoch in (4, 6, 7)] == [False, False, True]
    assert dataclasses.replace(at, ended=True).is_over(phase, 5)


ROWS = [
    {"epoch": 1, "phase": 1, "val_accuracy": 0.5, "val_loss": 0.9, "train_seconds": 2.0, "images_per_second": 100.0},
    {"epoch": 2, "phase": 2, "val_accuracy": 0.7, "val_loss": 0.8, "train_seconds": 3.0, "validation_seconds": 1.0},
    {"epoch": 3, "phase": 2, "val_accuracy": 0.7, "val_loss": 0.6, "train_seconds": 3.0, "images_per_second": 50.0},
    {"epoch": 4, "phase": 2, "val_accuracy": None, "val_loss": None, "train_seconds": 1.0, "images_per_second": 25.0},
]


def test_the_outcome_of_a_phase_is_that_of_its_own_rows():
    second = outcome(ROWS, 2, "val_accuracy")
    assert second["epochs_trained"] == 3 and second["seconds"] == 8.0
    assert second["images_per_second"] == pytest.approx(2 / (1 / 50 + 1 / 25))
    assert second["best"] == {"epoch": 3, "val_accuracy": 0.7, "val_loss": 0.6}
    assert outcome(ROWS, 2, "val_loss")["best"]["epoch"] == 3
    nothing = {"epochs_trained": 0, "seconds": 0, "images_per_second": None, "best": {}}
    assert outcome(ROWS, 3, "val_accuracy") == nothing


def test_the_table_has_a_row_a_phase_also_of_a_record_that_lacks_things():
    entry = {"phase": 1, "first_epoch": 1, "trainable": "none", "features": True, **outcome(ROWS, 1, "val_accuracy")}
    assert summary_rows({"phases": [entry]}) == [
        ("phase 1", "epoch 1, the head, on features, 2.0 s, best accuracy 0.5000")
    ]
    assert summary_rows({}) == [] and summary_rows({"phases": [{}]})[0][0] == "phase None"


def test_swa_needs_two_epochs():
    with pytest.raises(ConfigError, match=r"swa\.epochs"):
        SWAConfig(epochs=1)


def test_what_trains_in_words():
    assert phases.in_words("all") == "all layers" and phases.in_words("last:1") == "the head and the last layer"
    assert phases.in_words("block_1*", has_head=False) == "block_1*"
