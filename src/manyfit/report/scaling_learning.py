"""The part of a scaling study's page about learning: whether the result is the same, and the curves of every point."""

from collections.abc import Sequence
from typing import Any

from manyfit.report.page import By, Cell, Page, Style
from manyfit.report.runs import Run
from manyfit.report.scaling_equality import DIFFERENT, EQUAL, NOT_COMPARED
from manyfit.report.scaling_result import Scaling, Training
from manyfit.report.scaling_words import equality_words
from manyfit.report.system_charts import device_charts

_FROM_ZERO = ("learning_rate", "images_per_second")


def add_equality(page: Page, found: Scaling) -> None:
    """Whether every count gave the result of the smallest."""
    compared = [(result.mode, one) for result in found.modes for one in result.equality]
    if not compared:
        return
    page.section(
        "Is the result the same?",
        "With the same batch of a step and the same seed every count trains the same network to rounding: dropout and "
        "augmentation draw what one replica draws. It cannot be so with batch norm of each replica's own "
        "(model.sync_batch_norm=false), nor with other random layers of a model of your own.",
    )
    tones = {EQUAL: "good", DIFFERENT: "bad"}
    rows = [
        [
            f"{found.unit.words(one.num_replicas)} ({mode})",
            Cell(one.verdict, tone=tones.get(one.verdict, "mark")),
            _scientific(one.first_difference),
            _scientific(one.largest_difference),
            _scientific(one.tolerance),
            _points(one.accuracy_difference),
        ]
        for mode, one in compared
    ]
    columns = ("count", "result", "epoch 1", "all epochs", "tolerance", "best accuracy")
    page.table(columns, rows, note="Largest relative difference of training and validation loss; accuracy in points.")
    for text in dict.fromkeys(equality_words(one, found.unit) for _, one in compared if one.verdict == NOT_COMPARED):
        page.text(text)


def _scientific(value: float | None) -> str | None:
    return None if value is None else f"{value:.1e}"


def _points(value: float | None) -> str | None:
    return None if value is None else f"{100 * value:.2f}"


def add_curves(page: Page, trainings: Sequence[Training]) -> None:
    """Curves of the first repeat's runs, each run once."""
    runs = list({one.run.key: one.run for one in trainings if one.repeat == 1}.values())
    if not any(run.epochs for run in runs):
        return
    page.section("Learning", "The first repeat of every point.")
    names = {run.key: f"{run.num_replicas} x {run.record['batch'].get('per_replica_batch_size')}" for run in runs}
    styles = page.series({key: f"{name} a step" for key, name in names.items()})
    axes = {
        "epoch": By("epoch", [[row.get("epoch") for row in run.epochs] for run in runs]),
        "wall time": By("time since the start (s)", [list(run.elapsed) for run in runs]),
        "examples": By("examples seen", [list(run.examples_seen) for run in runs]),
    }
    for key, title, unit in (
        ("val_accuracy", "Validation accuracy", "accuracy"),
        ("val_loss", "Validation loss", "loss"),
        ("loss", "Training loss", "loss"),
        ("learning_rate", "Learning rate", "learning rate"),
        ("images_per_second", "Speed of each epoch", "images/s"),
    ):
        page.chart(
            {
                "data": [_curve(run, key, styles[run.key], names[run.key]) for run in runs],
                "layout": {
                    "yaxis": {"title": {"text": unit}, "rangemode": "tozero" if key in _FROM_ZERO else "normal"}
                },
            },
            title,
            by=axes,
            height=300,
            half=True,
        )
    device_charts(page, runs, styles, "The first repeat of every point.", add=Page.section)


def _curve(run: Run, key: str, style: Style, name: str) -> dict[str, Any]:
    return {
        **{"y": [row.get(key) for row in run.epochs], "name": name, "legendgroup": run.key},
        **{"mode": "lines+markers", "line": style.line, "marker": {"symbol": style.symbol, "size": 6}},
        "hovertemplate": f"%{{y:.5g}}<extra>{name}</extra>",
    }
