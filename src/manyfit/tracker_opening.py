"""The tracker that was asked for, open, or the next best one: names, options, and the run that it belongs to."""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from manyfit.config import TrackerConfig, WandbConfig
from manyfit.files import to_plain
from manyfit.masking import mask
from manyfit.tracker import MAX_NAME, MAX_TAG, Notify, NullTracker, Tracker, explain, short_tags
from manyfit.wandb_segments import Segment, prepare
from manyfit.wandb_session import Environment, resolve_mode, start, stats_settings
from manyfit.wandb_tracker import WandbTracker


def open_tracker(
    config: TrackerConfig,
    *,
    folder: Path,
    run_name: str,
    config_dict: Mapping[str, Any],
    derived: Mapping[str, Any],
    tags: Sequence[str],
    notify: Notify,
    gpu_indices: Sequence[int] = (),
    earlier: Sequence[Segment] = (),
    begins: tuple[int, int] = (1, 0),
    steps_per_epoch: int = 0,
) -> Tracker:
    """The tracker that was asked for, open; where W&B can't be had as asked, the next best one and a notice.

    Args:
        config: What was asked.
        folder: The run folder; everything W&B writes stays inside.
        run_name: Shown by W&B, unless WANDB_NAME is set.
        config_dict: The resolved configuration, nested.
        derived: What followed from it (replicas, steps ...): the `derived` section of W&B's config.
        tags: Besides those of the configuration.
        notify: Shows and records a notice.
        gpu_indices: The GPUs whose system metrics W&B samples, as NVML counts them.
        earlier: What earlier attempts told of this run, which goes on as the same one.
        begins: Epoch, counted from 1, and steps of it that were done before.
        steps_per_epoch: Steps an epoch.
    """
    folder = Path(folder).absolute()
    tensorboard = folder / "tensorboard" if config.tensorboard else None
    if not isinstance(config, WandbConfig):
        return NullTracker("none", tensorboard=tensorboard, notify=notify)
    environment = Environment(folder)
    try:
        mode = _mode_of_segment(resolve_mode(config, notify), earlier, notify)
        options: dict[str, Any] = {
            "project": _project(config),
            "entity": config.entity,
            "group": config.group[:MAX_NAME] if config.group else None,
            "job_type": _job_type(config),
            "notes": config.notes,
            "name": (os.environ.get("WANDB_NAME") or run_name)[:MAX_NAME],
            "tags": short_tags([*config.tags, *tags, *os.environ.get("WANDB_TAGS", "").split(",")]),
            "config": to_plain({**config_dict, "derived": dict(derived)}),
            "dir": str(folder),
        }
        told_until = -1
        if earlier and mode != "disabled":
            options |= _same_run(earlier[-1], mode, options)
            told_until = _make_room(earlier, (begins[0] - 1) * steps_per_epoch + begins[1], notify)
        options |= {key: mask(options[key]) for key in ("notes", "name", "tags", "group", "config")}
        while mode != "disabled":
            try:
                run = start(mode, options, stats_settings(config.system_metrics_seconds, gpu_indices), notify)
            except Exception as error:
                fallback = "offline" if mode == "online" else "disabled"
                notify(_cannot_start(mode, fallback, error))
                mode = fallback
            else:
                place = Path(run.settings.sync_dir)
                if mode == "online":
                    # The client knows which steps the server has. What it lacks of earlier attempts is told again.
                    told_until, earlier = -1, [dataclasses.replace(one, complete=True) for one in earlier]
                segment = Segment(place, run.id, mode, *begins, project=run.project, entity=run.entity or None)
                return WandbTracker(
                    run,
                    environment,
                    config=config,
                    folder=folder,
                    segment=segment,
                    earlier=earlier,
                    told_until=told_until,
                    tensorboard=tensorboard,
                    notify=notify,
                )
    except BaseException:
        environment.restore()
        raise
    environment.restore()
    return NullTracker("disabled", tensorboard=tensorboard, notify=notify)


def _mode_of_segment(mode: str, earlier: Sequence[Segment], notify: Notify) -> str:
    """The mode of a run that goes on: online only where the server has what came before."""
    if mode == "online" and any(segment.mode == "offline" and segment.is_pending for segment in earlier):
        notify(
            "The run began offline and what it told is not uploaded yet, so it goes on offline: "
            "`wandb sync` then makes one history of all of it."
        )
        return "offline"
    return mode


def _same_run(last: Segment, mode: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that make a run part of the same one as `last`, whatever is asked or set now."""
    entity = last.entity or options["entity"]
    if last.entity is None and mode == "offline":
        entity = None
        os.environ.pop("WANDB_ENTITY", None)
    # "allow": also where the server does not have it yet.
    return {
        "id": last.run_id,
        "resume": "allow",
        "project": last.project or options["project"],
        "entity": entity,
    }


def _make_room(earlier: Sequence[Segment], step: int, notify: Notify) -> int:
    try:
        return prepare(earlier, step)
    except OSError as error:
        notify(f"W&B's file of the attempt before cannot be rewritten ({error}): it may show a row twice.")
        return -1


def _cannot_start(mode: str, fallback: str, error: Exception) -> str:
    meanwhile = (
        "This run is tracked offline." if fallback == "offline" else "This run is recorded in its run folder alone."
    )
    return f"W&B could not start {mode} ({explain(error)}). {meanwhile}"


def _project(config: WandbConfig) -> str:
    # The environment fills in where the configuration was left at its default, as it does for the mode.
    if config.project == WandbConfig.project:
        return os.environ.get("WANDB_PROJECT") or config.project
    return config.project


def _job_type(config: WandbConfig) -> str:
    if config.job_type != WandbConfig.job_type:
        return config.job_type[:MAX_TAG]
    by_agent = "sweep" if os.environ.get("WANDB_SWEEP_ID") else config.job_type
    return (os.environ.get("WANDB_JOB_TYPE") or by_agent)[:MAX_TAG]
