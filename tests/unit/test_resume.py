"""Which run goes on, and with what; a changed configuration is refused by the names of its keys."""

import json

import pytest
from omegaconf import OmegaConf

from manyfit.config import check, to_yaml
from manyfit.errors import ConfigError, UserError
from manyfit.record import RunRecord
from manyfit.resume import Finished, one_process, resolve


def composed(**changes):
    """The configuration of conf/, with changes by dotted key."""
    from hydra import compose, initialize_config_dir

    from manyfit.command import repository_root

    with initialize_config_dir(str(repository_root() / "conf"), version_base="1.3"):
        config = compose("config", ["data=mnist", "model=small_cnn", "tracker=none", "batch.global_batch_size=32"])
    config = OmegaConf.masked_copy(config, [key for key in config if key != "hydra"])
    for key, value in changes.items():
        OmegaConf.update(config, key.replace("__", "."), value)
    return config


@pytest.fixture
def run(tmp_path):
    """A run that was stopped, of five epochs."""
    folder = tmp_path / "run"
    folder.mkdir()
    RunRecord.create(folder).set_status("stopped", exit_code=143)
    (folder / "config.yaml").write_text(to_yaml(check(composed(optimizer__learning_rate=0.25))))
    return folder


def resumed(run, asked, run_dir=None, **changes):
    config = composed(**{"resume__folder": str(run), **changes})
    return resolve(check(config), config, run_dir, asked)


def test_a_run_goes_on_with_its_own_configuration(run):
    config, folder = resumed(run, ["resume.folder=..."])
    assert folder == run and config.optimizer.learning_rate == 0.25
    assert config.resume.folder == str(run)


def test_what_changes_nothing_of_what_is_learned_may_change(run):
    config, _ = resumed(run, ["strategy.replicas=4", "cost.per=device"], strategy__replicas=4, cost__per="device")
    assert config.strategy.replicas == 4 and config.cost.per == "device"
    assert config.optimizer.learning_rate == 0.25


def test_how_a_process_works_is_its_own_affair(run):
    limited = to_yaml(check(composed(max_minutes=3.0, strategy__replicas=2)))
    (run / "config.yaml").write_text(limited)
    config, _ = resumed(run, [], checkpoint__keep=5)
    assert config.max_minutes is None and config.checkpoint.keep == 5
    assert config.strategy.replicas == 2


def test_a_changed_key_is_named_and_may_be_allowed(run):
    with pytest.raises(ConfigError, match=r"epochs=9 \(was 5\)(?s:.*)resume.allow=\[epochs\]"):
        resumed(run, ["epochs=9"], epochs=9)
    config, _ = resumed(run, ["epochs=9"], epochs=9, resume__allow=["epochs"])
    assert config.epochs == 9


def test_the_same_values_again_are_no_change(run):
    config, _ = resumed(run, ["optimizer.learning_rate=0.25"], optimizer__learning_rate=0.25)
    assert config.optimizer.learning_rate == 0.25


def test_phases_are_the_same_however_short_they_are_written(run):
    short = [{"epochs": 2, "trainable": ["dense", "class_scores"]}, {"epochs": 1, "schedule": "cosine"}]
    (run / "config.yaml").write_text(to_yaml(check(composed(phases=short))))
    asked = ["phases=[...]", "experiment=two_phase"]  # an experiment may have set any key
    config, _ = resumed(run, asked, phases=short)
    assert config.epochs == 3 and config.phases[1].schedule.name == "cosine"
    longer = [short[0], {**short[1], "epochs": 4}]
    with pytest.raises(ConfigError, match=r"resume.allow=\["):
        resumed(run, asked[:1], phases=longer)
    config, _ = resumed(run, asked[:1], phases=longer, resume__allow=["phases"])
    assert config.epochs == 6 and config.phases[1].epochs == 4
    with pytest.raises(ConfigError, match="the phases have 3 epochs in all"):
        resumed(run, ["epochs=9"], epochs=9, resume__allow=["epochs"])


def test_from_python_everything_is_meant(run):
    with pytest.raises(ConfigError, match="optimizer.learning_rate=0.001"):
        resumed(run, None)


def test_auto_takes_the_folder_of_the_run_or_begins_one(run, tmp_path):
    config, folder = resumed("auto", [], run_dir=run)
    assert folder == run and config.resume.folder == str(run)
    config, folder = resumed("auto", [], run_dir=tmp_path / "new")
    assert folder == tmp_path / "new" and config.resume.folder is None
    with pytest.raises(ConfigError, match="hydra.run.dir"):
        resumed("auto", [])


def test_another_folder_beside_the_runs_own_is_refused(run, tmp_path):
    with pytest.raises(ConfigError, match="another folder"):
        resumed(run, [], run_dir=tmp_path / "other")


def test_a_finished_run_has_nothing_left_to_do(run):
    RunRecord.load(run).set_status("finished", exit_code=0)
    with pytest.raises(Finished) as caught:
        resumed(run, [])
    assert caught.value.exit_code == 0
    config, _ = resumed(run, ["epochs=9"], epochs=9, resume__allow=["epochs"])
    assert config.epochs == 9


@pytest.mark.parametrize(
    "content", [b"", b"\xff\xfe\x00", b"[1, 2]", b"a: [", b"data: {name: !!python/object:os.x {}}"]
)
def test_a_configuration_that_cannot_be_read_says_so(run, content):
    (run / "config.yaml").write_bytes(content)
    with pytest.raises(UserError, match="config|group|choices"):
        resumed(run, [])


def test_a_folder_without_a_run_says_so(tmp_path):
    with pytest.raises(UserError, match="holds no run"):
        resumed(tmp_path, [])


def test_two_processes_never_share_a_run(run):
    with one_process(run), pytest.raises(ConfigError, match="Another process"), one_process(run):
        pass
    with one_process(run):
        pass


def test_a_record_keeps_its_attempts(run):
    record = RunRecord.load(run)
    record.data["epochs"] = [{"epoch": 1}, {"epoch": 2}]
    record.go_on(1, 3, strategy={"num_replicas": 2})
    record.set_status("running")
    again = RunRecord.load(run)
    again.go_on(1, 5)
    attempts = json.loads((run / "record.json").read_text())["attempts"]
    assert [(one["status"], one["from_epoch"], one["from_step"]) for one in attempts] == [
        ("stopped", 1, 0),
        ("killed", 2, 3),
        ("running", 2, 5),
    ]
    assert again.data["epochs"] == [{"epoch": 1}] and again.data["ended"] is None
