"""`check`: what is accepted, what is refused, and what the refusal says."""

import dataclasses

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from manyfit import config as config_module
from manyfit.command import repository_root
from manyfit.config import SCHEMAS, RunConfig, check, from_yaml, nearest, to_yaml, unknown_key
from manyfit.errors import ConfigError


def composed(*overrides):
    with initialize_config_dir(str(repository_root() / "conf"), version_base="1.3"):
        return compose("config", overrides=list(overrides))


def refused(*overrides):
    with pytest.raises(ConfigError) as caught:
        check(composed(*overrides))
    return caught.value


def test_the_defaults_of_the_files_are_the_defaults_of_the_dataclasses():
    assert check(composed()) == RunConfig()


@pytest.mark.parametrize(
    ("group", "choice"), [(group, choice) for group, choices in SCHEMAS.items() for choice in choices]
)
def test_every_choice_is_accepted(group, choice):
    more = ["model.factory=my_module:build"] if choice == "module" else []
    section = getattr(check(composed(f"{group}={choice}", *more)), group)
    assert type(section) is SCHEMAS[group][choice]


def test_values_arrive_with_their_types():
    config = check(composed("epochs=3", "strategy.devices=[0,2]", "optimizer.learning_rate=1e-2", "model.trainable=4"))
    assert config.epochs == 3
    assert list(config.strategy.devices) == [0, 2]
    assert config.optimizer.learning_rate == 0.01
    assert config.model.trainable == 4


def test_interpolations_reach_the_whole_configuration():
    overrides = ["epochs=9", "schedule=ramp", "schedule.ramp_up_epochs=${epochs}"]
    config = check(composed(*overrides, "tracker.group=${data.name}-${optimizer.name}"))
    assert config.schedule.ramp_up_epochs == 9
    assert config.tracker.group == "cats_dogs-adam"


def test_a_checked_config_survives_its_file():
    config = check(composed("model=small_cnn", "data=emnist", "schedule=step", "tracker.tags=[a,b]"))
    assert from_yaml(to_yaml(config)) == config


def test_a_file_of_something_else_is_refused():
    with pytest.raises(ConfigError, match="not a mapping"):
        from_yaml("- 1")


@pytest.mark.parametrize(
    ("overrides", "message", "remedy"),
    [
        (["+typo=1"], "Unknown key: typo.", "Choices: data, augment"),
        (["+optimizer.lr=1"], "Unknown key: optimizer.lr.", "'optimizer.learning_rate'"),
        (["+learning_rate=1"], "Unknown key: learning_rate.", "'optimizer.learning_rate'"),
        (["+batch_size=1"], "Unknown key: batch_size.", "'batch.per_replica_batch_size'"),
        (["+schedule.decay=1"], "Unknown key: schedule.decay.", "belongs to schedule=ramp"),
        (["+optimizer.momentum=1"], "Unknown key: optimizer.momentum.", "belongs to optimizer=sgd"),
        (["+model.head.drop=1"], "Unknown key: model.head.drop.", "'model.head.dropout'"),
        (["+model.head.zzz=1"], "Unknown key: model.head.zzz.", "Choices: units, dropout"),
        (["+model.size=1"], "Unknown key: model.size.", "Did you mean 'model.image_size'"),
        (["+dropout=1"], "Unknown key: dropout.", "'model.head.dropout'"),
        (["+ema.decoy=1"], "Unknown key: ema.decoy.", "'ema.decay'"),
        (["epochs=abc"], "epochs=abc has the wrong type.", "whole number"),
        (["epochs=1.5"], "epochs=1.5 has the wrong type.", "whole number"),
        (["epochs="], "epochs= has the wrong type.", "whole number"),
        (["epochs=null"], "epochs=null has the wrong type.", "cannot be null"),
        (["epochs=[1]"], "epochs=[1] has the wrong type.", ""),
        (["optimizer.learning_rate=fast"], "optimizer.learning_rate=fast has the wrong type.", "Give a number."),
        (["jit_compile=maybe"], "jit_compile=maybe has the wrong type.", "true or false"),
        (["strategy.devices=0"], "strategy.devices=0 has the wrong type.", "Give a list"),
        (["strategy.devices=[a]"], "strategy.devices[0]=a has the wrong type.", "whole number"),
        (["model.head.units=x"], "model.head.units=x has the wrong type.", "whole number"),
        (["model.head=3"], "model.head=3 has the wrong type.", "model.head.units, model.head.dropout"),
        (["ema=3"], "ema=3 has the wrong type.", "ema.decay"),
        (["tracker.mode=null"], "tracker.mode=null has the wrong type.", "cannot be null"),
        (["epochs=${nowhere}"], "Interpolation key 'nowhere' not found.", "${epochs}"),
        (["epochs=0"], "epochs=0 is out of range.", ">= 1"),
        (["seed=-1"], "seed=-1 is out of range.", "from 0 to"),
        (["optimizer.learning_rate=0"], "optimizer.learning_rate=0.0 is out of range.", "> 0"),
        (["optimizer.learning_rate=nan"], "optimizer.learning_rate=nan is out of range.", "> 0"),
        (["optimizer.learning_rate=inf"], "optimizer.learning_rate=inf is out of range.", "> 0"),
        (["data.validation_fraction=1"], "data.validation_fraction=1.0 is out of range.", "between 0 and 1"),
        (["data.source=tdfs"], "data.source=tdfs is not one of its choices.", "'tfds'"),
        (["data=mnist", "data.source=sample"], "does not exist for data=mnist", "data.root=PATH"),
        (["data.source=folder"], "needs a folder", "data.root=PATH"),
        (["data=emnist", "data.variant=letter"], "data.variant=letter", "'letters'"),
        (["model.trainable=-1"], "model.trainable=-1", "'none', 'all'"),
        (["model=module"], "model.factory=null", "my_package.my_module:build"),
        (["strategy.replicas=0"], "strategy.replicas=0 is not a count", "'auto'"),
        (["strategy.device=cuda"], "strategy.device=cuda", "Choices: auto, gpu, cpu"),
        (["strategy.devices=[0,0]"], "not a list of different", "[0,2]"),
        (["strategy.devices=[0,1]", "strategy.replicas=3"], "are 2 devices", "agree"),
        (["strategy=one_device", "strategy.replicas=2"], "has one replica, but 2", "strategy=mirrored"),
        (["batch.global_batch_size=0"], "batch.global_batch_size=0 is out of range.", ">= 1"),
        (["batch.global_batch_size=8", "batch.per_replica_batch_size=8"], "both given", "exactly one"),
        (["schedule=step", "schedule.boundaries=[7,3]"], "do not fit together", "rising"),
        (["jit_compile=true", "strategy.replicas=2"], "jit_compile=true does not work", "jit_compile=false"),
        (["strategy=multi_worker", "model.sync_batch_norm=false"], "statistics of its own", "Leave it out"),
        (["tracker.system_metrics_seconds=0"], "is out of range", ">= 0.1"),
    ],
)
def test_a_refusal_names_the_key_the_value_and_the_remedy(overrides, message, remedy):
    error = refused(*overrides)
    assert message in error.message
    assert remedy in error.remedy
    assert error.exit_code == 2


def test_a_group_that_is_no_group_is_refused():
    config = OmegaConf.to_container(composed())
    for value in (None, 3):
        with pytest.raises(ConfigError, match=r"Choices: sgd, adam, adamw"):
            check(OmegaConf.create({**config, "optimizer": value}))
    with pytest.raises(ConfigError, match=r"optimizer\.name=adm is unknown"):
        check(OmegaConf.create({**config, "optimizer": {"name": "adm"}}))


def test_check_leaves_the_composed_config_alone():
    config = composed("tracker.group=${data.name}")
    before = OmegaConf.to_yaml(config)
    check(config)
    assert OmegaConf.to_yaml(config) == before


def test_nearest_names_a_near_choice_and_all_of_them():
    assert nearest("adm", ["adam", "sgd"]) == "Did you mean 'adam'? Choices: adam, sgd."
    assert nearest("zzz", ["adam", "sgd"]) == "Choices: adam, sgd."


def test_every_key_is_found_by_its_last_name():
    for key in config_module._all_keys():
        name = key.rpartition(".")[2]
        if name not in {f.name for f in dataclasses.fields(RunConfig)}:
            assert "Did you mean" in unknown_key(name, []).remedy
