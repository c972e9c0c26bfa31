"""A sweep's parameters arrive with their values and types, or are refused by name: through W&B's own builder."""

import json
import sys

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import QuotedString
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from wandb.sdk.launch.sweeps.utils import create_sweep_command, create_sweep_command_args
from wandb.sdk.lib.config_util import save_config_file_from_dict
from wandb.sdk.wandb_config import Config

from manyfit.command import hydra_command
from manyfit.config import WandbConfig, check
from manyfit.errors import ConfigError
from manyfit.multirun import composed, composing
from manyfit.sweep_arguments import (
    COMMAND,
    agent_parameters,
    check_arrived,
    check_tracked,
    leaves,
    overrides,
    tracked_config,
)
from manyfit.sweep_run import arrived
from manyfit.tracker_opening import open_tracker

ODD = "a b, c = {d} (e) [f] 'g' \"h\" \\ i: 100 % # ~ ! ü 漢\n\tj"

ARRIVE = [
    {"optimizer.learning_rate": 1e-05, "epochs": 3, "jit_compile": True, "data.prefetch": False, "class_weight": None},
    {"optimizer.learning_rate": 1, "class_weight": [1.0, 2.5], "model.trainable": 20, "strategy.devices": [0, 2]},
    {"optimizer.learning_rate": 0.1 + 0.2, "class_weight": "balanced", "model.trainable": "none", "ema.decay": None},
    {"schedule": "step", "schedule.boundaries": [1, 2], "schedule.factors": [0.5, 1e-3], "steps_per_execution": "auto"},
    {"optimizer": "adamw", "optimizer.weight_decay": 0.01, "steps_per_execution": 4},
    {"optimizer": "sgd", "optimizer.momentum": 0.9, "data": "mnist", "model": "small_cnn"},
    {"model": {"head": {"units": 7, "dropout": 0.25}}, "batch": {"global_batch_size": None}},
    {"tracker.notes": ODD, "tracker.group": "None", "tracker.entity": "null"},
    {"tracker.notes": "1e-5", "tracker.group": "", "tracker.entity": " x ", "tracker.project": "true"},
    {"tracker.notes": "a\\", "tracker.group": '"', "tracker.entity": "'", "tracker.project": "\\'"},
    {"tracker.tags": [ODD, "1", "null", "", "[a]", "$x"]},
]

REFUSED = [
    ({"optimizer.learning_rate": "1e-5"}, "optimizer.learning_rate", "write 1.0e-05"),
    ({"optimizer.learning_rate": "0.1"}, "optimizer.learning_rate", "without quotes"),
    ({"new_key": 1}, "new_key", "Choices"),
    ({"optimizer.lr": 0.1}, "optimizer.lr", "Did you mean 'optimizer.learning_rate'?"),
    ({"optimizer.momentum": 0.9}, "optimizer.momentum", "optimizer=sgd"),
    ({"+epochs": 3}, "'+epochs' is not a key", "without +"),
    ({"++epochs": 3}, "'++epochs' is not a key", "without +"),
    ({"hydra.run.dir": "x"}, "hydra.run.dir", "folder of its own"),
    ({"epochs": True}, "epochs=True has the wrong type.", "whole number"),
    ({"epochs": 2.5}, "epochs", "whole number"),
    ({"epochs": "3"}, "epochs", "without quotes"),
    ({"epochs": None}, "epochs", "cannot be null"),
    ({"jit_compile": "true"}, "jit_compile", "sweep.py check"),
    ({"jit_compile": 1}, "jit_compile", "sweep.py check"),
    ({"tracker.notes": 5}, "tracker.notes", "sweep.py check"),
    ({"tracker.tags": ["a", 1]}, "tracker.tags", "sweep.py check"),
    ({"schedule.scale_with": None}, "schedule.scale_with", "cannot be null"),
    ({"optimizer": "adm"}, "optimizer=adm", "Did you mean 'adam'?"),
    ({"optimizer": None}, "optimizer", "the name of one"),
    ({"optimizer": ["adam"]}, "optimizer", "the name of one"),
    ({"optimizer": {}}, "optimizer is empty", "optimizer.KEY"),
    ({"optimizer": {"learning_rate": 1.0}, "optimizer.learning_rate": 1.0}, "given twice", "once"),
    ({"tracker.notes": "${epochs}"}, "tracker.notes", "without '${'"),
    ({"tracker.notes": "a ${"}, "tracker.notes", "without '${'"),
]


@pytest.fixture
def start(monkeypatch, capsys, tmp_path):
    """Start the command layer as W&B's agent would: `start(parameters, command)` -> exit code, config, stderr."""

    def run(parameters, words=COMMAND, *, file_says=None):
        arguments = {name: {"value": value} for name, value in parameters.items()}
        built = create_sweep_command_args({"args": arguments})
        json_file = tmp_path / "config.json"
        json_file.write_text(built["args_json"][0])
        told = {name: {"value": value} for name, value in (file_says or parameters).items()}
        save_config_file_from_dict(str(tmp_path / "config.yaml"), told)
        monkeypatch.setenv("WANDB_SWEEP_PARAM_PATH", str(tmp_path / "config.yaml"))
        macros = {
            **built,
            "program": ["src/train.py"],
            "args_json_file": [str(json_file)],
            "env": [],
            "interpreter": [],
        }
        line = []
        for word in create_sweep_command(list(words)):
            line += macros[word[2:-1]] if word.startswith("${") else [word]
        configs = []

        def task(composition):
            config = check(composition)
            arrived(config)
            configs.append(config)

        monkeypatch.setattr(sys, "argv", line)
        with pytest.raises(SystemExit) as exit_:
            hydra_command(task)()
        return exit_.value.code, configs[0] if configs else None, capsys.readouterr().err

    return run


def at(config, name):
    for part in name.split("."):
        config = getattr(config, part)
    return config


@pytest.mark.parametrize("parameters", ARRIVE, ids=str)
def test_a_parameter_arrives_with_its_value_and_type(start, parameters):
    code, config, err = start(parameters)
    assert (code, err) == (0, "")
    for name, value in leaves(parameters).items():
        if name in ("optimizer", "schedule", "data"):
            assert at(config, name).name == value
        elif name == "model":
            assert config.model.builder == value
        else:
            found = at(config, name)
            assert found == value
            assert type(found) is type(value) or (type(found), type(value)) == (float, int)


def test_what_cannot_arrive_is_refused_by_name():
    with composing():  # once: it takes as long as a composition
        for parameters, named, remedy in REFUSED:
            with pytest.raises(ConfigError) as refused:
                check_arrived(check(composed(overrides(parameters))), parameters)
            assert named in refused.value.message and remedy in refused.value.remedy, parameters


@pytest.mark.parametrize(
    ("parameters", "named"),
    [
        ({"class_weight": None}, "class_weight"),
        ({"tracker.notes": "null"}, "tracker.notes"),
        ({"tracker.notes": "x # y, z"}, "tracker.notes"),
        ({"model": {"head": {"units": 3}}}, "model"),
    ],
    ids=str,
)
def test_what_another_command_loses_is_refused_as_well(start, parameters, named):
    code, _, err = start(parameters, ("${program}", "${args_no_hyphens}"))
    assert code == 2 and named in err and "Traceback" not in err


def test_what_another_command_keeps_runs(start):
    parameters = {"optimizer": "sgd", "optimizer.learning_rate": 1e-05, "jit_compile": True, "tracker.tags": ["a", "b"]}
    code, config, err = start(parameters, ("${program}", "${args_no_hyphens}"))
    assert (code, err) == (0, "") and config.optimizer.learning_rate == 1e-05


def test_a_command_that_passes_nothing_is_refused(start):
    code, _, err = start({"epochs": 3}, ("${program}",))
    assert code == 2 and "The sweep gives epochs=3, but 5 would train." in err


def test_a_command_with_dashes_is_told_what_to_write(start):
    code, _, err = start({"epochs": 3}, ("${program}", "${args}"))
    assert code == 2 and "--sweep-parameters and ${args_json_file}" in err


def test_a_later_override_does_not_win_in_silence(start):
    code, _, err = start({"epochs": 3}, (*COMMAND, "epochs=4"))
    assert code == 2 and "The sweep gives epochs=3, but 4 would train." in err


def test_the_files_of_the_agent_must_agree(start):
    code, _, err = start({"epochs": 3}, file_says={"epochs": 4})
    assert code == 2 and "The sweep gives epochs=4, but 3 would train." in err


def test_overrides_of_the_command_hold_beside_the_parameters(start):
    code, config, _ = start({"epochs": 3}, (*COMMAND[:3], "optimizer=sgd", *COMMAND[3:]))
    assert code == 0 and config.optimizer.name == "sgd" and config.epochs == 3


@pytest.mark.parametrize("content", ["", "[1]", "{", None])
def test_a_file_that_is_none_is_refused(monkeypatch, capsys, tmp_path, content):
    path = tmp_path / "parameters.json"
    if content is not None:
        path.write_text(content)
    monkeypatch.setattr(sys, "argv", ["train.py", "--sweep-parameters", str(path)])
    with pytest.raises(SystemExit) as exit_:
        hydra_command(lambda config: None)()
    assert exit_.value.code == 2 and "${args_json_file}" in capsys.readouterr().err + "${args_json_file}"


def test_the_record_gets_the_overrides_and_not_a_file_that_will_be_gone(start):
    start({"epochs": 3, "optimizer": "sgd"})
    assert sys.argv == ["src/train.py", "epochs=3", "optimizer=sgd"]


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=4,
)


@settings(deadline=None)
@given(value=JSON_VALUES)
def test_any_json_value_is_what_hydra_reads_back(value):
    assume("${" not in json.dumps(value))  # which is refused
    [text] = overrides({"class_weight": value})
    parsed = OverridesParser.create().parse_override(text)
    found = text_of(parsed.value())
    assert found == value and json.dumps(found) == json.dumps(value)  # 1 is not true


def text_of(value):
    """Hydra's quoted strings as what composing makes of them."""
    if isinstance(value, list):
        return [text_of(one) for one in value]
    return value.text if isinstance(value, QuotedString) else value


# --- what W&B holds -------------------------------------------------------------------------------------------------


def wandb_config(config, parameters):
    """What `wandb.init` makes of a config and a sweep's parameters."""
    held = Config()
    held.update(config)
    held.merge_locked(parameters, user="sweep", _allow_val_change=True)
    return dict(held)


TRAINS = {"epochs": 3, "optimizer": {"name": "adam", "learning_rate": 0.1}, "class_weight": [1.0, 2.0]}


@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"epochs": 3},
        {"optimizer": "adam"},
        {"optimizer.learning_rate": 0.1},
        {"optimizer": {"learning_rate": 0.1}},
        {"optimizer": "adam", "optimizer.learning_rate": 0.1},
        {"class_weight": [1, 2]},
    ],
    ids=str,
)
def test_wandb_holds_what_trains_and_loses_nothing(parameters):
    given_to_wandb = tracked_config(TRAINS, parameters)
    held = wandb_config(given_to_wandb, parameters)
    check_tracked(held, given_to_wandb)
    for name, value in parameters.items():
        if not isinstance(value, dict):
            assert held[name] == value  # the server's search looks for it there
    flat = {
        **held,
        **({f"optimizer.{k}": v for k, v in held["optimizer"].items()} if held["optimizer"] != "adam" else {}),
    }
    assert (flat["optimizer.name"], flat["optimizer.learning_rate"], flat["epochs"]) == ("adam", 0.1, 3)


@pytest.mark.parametrize(
    ("parameters", "named"),
    [
        ({"epochs": 4}, "W&B holds epochs=4 for this run, but 3 would train."),
        ({"optimizer.learning_rate": "0.1"}, "W&B holds optimizer.learning_rate=the text '0.1'"),
        ({"optimizer.learning_rate": 0.2}, "W&B holds optimizer.learning_rate=0.2"),
        ({"optimizer": {"learning_rate": 0.2}}, "W&B holds optimizer.learning_rate=0.2"),
        ({"class_weight": None}, "W&B holds class_weight=null"),
    ],
    ids=str,
)
def test_a_sweeps_value_that_does_not_train_is_refused(parameters, named):
    with pytest.raises(ConfigError) as refused:
        check_tracked(wandb_config(TRAINS, parameters), tracked_config(TRAINS, {}))
    assert named in str(refused.value)


# W&B reads the agent's file without closing it.
@pytest.mark.filterwarnings("ignore:Exception ignored in.*p.yaml:pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore:unclosed file.*p.yaml:ResourceWarning")
@pytest.mark.slow
@pytest.mark.parametrize("epochs", [3, 4])
def test_an_open_run_is_refused_where_the_sweeps_value_won(monkeypatch, tmp_path, epochs):
    save_config_file_from_dict(str(tmp_path / "p.yaml"), {"epochs": {"value": epochs}, "optimizer": {"value": "adam"}})
    for name, value in {"SWEEP_ID": "s", "RUN_ID": "r", "SWEEP_PARAM_PATH": str(tmp_path / "p.yaml")}.items():
        monkeypatch.setenv(f"WANDB_{name}", value)
    told = tracked_config(TRAINS, agent_parameters())
    options = {"run_name": "x", "config_dict": told, "derived": {}, "tags": [], "notify": pytest.fail}
    with open_tracker(WandbConfig(mode="offline"), folder=tmp_path, **options) as tracker:
        assert (tracker.config["epochs"], tracker.config["optimizer"]) == (epochs, "adam")
        if epochs == 3:
            check_tracked(tracker.config, told)
        else:
            with pytest.raises(ConfigError, match="W&B holds epochs=4 for this run, but 3 would train"):
                check_tracked(tracker.config, told)
