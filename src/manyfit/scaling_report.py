"""What a scaling study leaves in its folder (`scaling.json`, `report.html`, `report.md`) and shows in the terminal."""

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from manyfit.config import RunConfig, WandbConfig
from manyfit.files import to_json, write_atomically
from manyfit.record import environment
from manyfit.report.scaling import scaling
from manyfit.report.scaling_page import scaling_page
from manyfit.report.scaling_result import Scaling, Training
from manyfit.report.scaling_tables import scaling_markdown, scaling_tables
from manyfit.report.scaling_words import Recommendation, recommend
from manyfit.scaling import Plan
from manyfit.study import Result, override

JSON_NAME, PAGE_NAME, MARKDOWN_NAME = "scaling.json", "report.html", "report.md"


@dataclass(frozen=True)
class ScalingReport:
    """What was found and where it was written.

    Args:
        tables: For the terminal.
        markdown: What the Markdown file holds.
        files: The page, the Markdown and, last, the JSON.
    """

    found: Scaling
    advice: Recommendation
    trainings: tuple[Training, ...]
    tables: tuple[Table | Text, ...]
    markdown: str
    files: tuple[Path, ...]


def write_report(folder: Path, plan: Plan, results: Sequence[Result], config: RunConfig) -> ScalingReport:
    """Read the finished runs back from disk, and write what they say.

    Args:
        folder: The study's.
        results: Of every point.
        config: What all of them were made from.

    Raises:
        TrainingError: a file cannot be written.
    """
    trainings = plan.trainings(results)
    price = config.cost if config.cost.price_per_hour is not None else None
    currency = config.cost.currency
    failures = {result.point.label: str(result.error) for result in results if not result.succeeded}
    found = scaling(trainings, precision=config.precision.name, price=price, failures=failures, link=plan.link)
    advice = recommend(found, price)
    facts = _facts(found, trainings, config)
    page = scaling_page(
        found, advice, trainings, title=f"Scaling study: {_title(config)}", facts=facts, currency=currency
    )
    written = {
        **found.as_dict(),
        "recommendation": {"num_replicas": advice.num_replicas, "sentence": advice.sentence, "details": advice.details},
        "overrides": plan.overrides,
        "group": plan.group,
        "currency": currency if price else None,
        "made": dict(facts),
        **environment(),
    }
    page.write(folder / PAGE_NAME)
    lines = [f"{name}: {value}" for name, value in facts]
    markdown = scaling_markdown(found, advice, currency=currency, facts=lines)
    write_atomically(folder / MARKDOWN_NAME, markdown)
    write_atomically(folder / JSON_NAME, to_json(written, indent=2) + "\n")
    return ScalingReport(
        found,
        advice,
        tuple(trainings),
        tuple(scaling_tables(found, advice, currency=currency)),
        markdown,
        (folder / PAGE_NAME, folder / MARKDOWN_NAME, folder / JSON_NAME),
    )


def show_in_wandb(
    folder: Path, plan: Plan, report: ScalingReport, config: RunConfig, show: Callable[[str], Any]
) -> tuple[str, ...]:
    """Save the view and the report where they were asked for; where to look, or what to run.

    Args:
        show: Told before a server is asked.
    """
    if not plan.to_wandb:
        return ()
    from manyfit.report.dashboard import SPEC_NAME, publish  # only where asked for: it takes seconds
    from manyfit.report.dashboard_panels import Dashboard

    runs = tuple({training.run.key: training.run for training in report.trainings}.values())
    command = environment()["command"]
    if "hydra.run.dir=" not in command:
        command += f" {shlex.quote(override('hydra.run.dir', folder))}"
    shown = Dashboard(f"Scaling study: {_title(config)}", runs, report.markdown, plan.group, command)
    tracker = config.tracker
    where = {"mode": tracker.mode, "entity": tracker.entity} if isinstance(tracker, WandbConfig) else {}
    return publish(shown, folder / SPEC_NAME, show=show, **where).says


def _title(config: RunConfig) -> str:
    return f"{config.model.name} on {config.data.name}"


def _facts(found: Scaling, trainings: Sequence[Training], config: RunConfig) -> list[tuple[str, str]]:
    """What a published number carries: command, hardware, versions, commit, date."""
    around = environment()
    host, git = around["host"], around["git"]
    commit = f"{git['commit']}{' with uncommitted changes' if git['dirty'] else ''}" if git["commit"] else "unknown"
    epochs = f"{config.epochs} epoch{'s' if config.epochs > 1 else ''}"
    first = trainings[0].record["data"] if trainings else {}
    gpus = sorted({name for training in trainings for name in training.run.gpu_names})
    devices = ", ".join(gpus or found.devices)
    if found.shares_a_cpu:
        devices = "logical devices of one CPU: NOT GPUs"
        if found.unit.is_worker:
            devices = "processes of one machine, on its CPU, over loopback: NO GPU, NO NETWORK"
    return [
        ("command", around["command"]),
        ("data", f"{config.data.name}, {first.get('num_train')} training examples, {epochs}"),
        ("devices", devices),
        ("machine", f"{host['platform']}, {host['cpu_usable']} CPU cores, {host['memory_bytes'] / 2**30:.0f} GiB"),
        ("versions", ", ".join(f"{name} {version}" for name, version in around["versions"].items())),
        ("commit", commit),
        ("date", datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")),
    ]
