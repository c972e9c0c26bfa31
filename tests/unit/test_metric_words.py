"""`metrics=[...]`: which words there are, what is refused before anything runs, which way each is good."""

import pytest
from hydra import compose, initialize_config_dir

from manyfit.command import repository_root
from manyfit.config import check
from manyfit.errors import ConfigError
from manyfit.schema import metrics


def config_of(*overrides):
    with initialize_config_dir(str(repository_root() / "conf"), version_base="1.3"):
        return check(compose("config", overrides=list(overrides)))


@pytest.mark.parametrize(
    ("overrides", "message", "remedy"),
    [
        (["metrics=[aucc]"], "metrics: aucc is not one of its choices.", "Did you mean 'auc'?"),
        (["metrics=[top5]"], "metrics: top5 is not one", "Did you mean 'top_5'?"),
        (["metrics=[top_0]"], "metrics: top_0 is not one", "top_3"),
        (["metrics=[top_1]"], "top_1 is the accuracy", "Leave it out"),
        (["metrics=auc"], "metrics=auc has the wrong type.", "Give a list"),
        (["early_stopping.metric=val_f1"], "early_stopping.metric=val_f1 is not counted", "metrics=[f1]"),
        (["metrics=[auc]", "early_stopping.metric=val_top_3"], "is not counted in this run", "metrics=[auc,top_3]"),
        (["early_stopping.metric=val_los"], "is not a metric of this run", "Did you mean 'val_loss'?"),
        (["best_metric=f1", "metrics=[f1]"], "best_metric=f1 is not a metric", "Did you mean 'val_f1'?"),
        (["best_metric=val_auc"], "best_metric=val_auc is not counted in this run", "metrics=[auc]"),
    ],
)
def test_a_mistake_is_told_at_once(overrides, message, remedy):
    with pytest.raises(ConfigError) as caught:
        config_of(*overrides)
    assert message in caught.value.message and remedy in caught.value.remedy


def test_what_is_asked_for_can_stop_a_run_and_choose_its_model():
    config = config_of("metrics=[f1,top_7]", "early_stopping.metric=val_top_7", "best_metric=val_f1")
    assert metrics.of_epochs(config.metrics)[-2:] == ["val_f1", "val_top_7"]


@pytest.mark.parametrize(("k", "classes", "allowed"), [(5, 3, False), (3, 3, False), (2, 3, True), (2, 2, False)])
def test_the_true_class_must_be_able_to_be_missed(k, classes, allowed):
    if allowed:
        metrics.check_classes([f"top_{k}"], classes)
        return
    with pytest.raises(ConfigError, match=f"top_{k} is always 1, since the data has {classes} classes"):
        metrics.check_classes([f"top_{k}"], classes)


def test_low_errors_and_high_shares_are_good():
    low = [name for name in metrics.of_epochs(metrics.WORDS) if metrics.falls(name)]
    assert low == ["loss", "calibration_error", "val_loss", "val_calibration_error"]
