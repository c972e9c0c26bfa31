"""The same panels in W&B: a saved Workspace view and a Report of some runs, or what they would be where W&B is not."""

import json
import os
import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from manyfit.errors import UserError
from manyfit.files import to_json, write_atomically
from manyfit.report.dashboard_panels import Dashboard, report_of, run_id, view_of
from manyfit.report.runs import Run

SPEC_NAME = "wandb.json"
_OFFLINE, _ONLINE = ("offline", "dryrun", "disabled"), ("online", "run", "shared")
_IS_OFFLINE = "W&B is offline here, so that the view and the report were not saved there."


@dataclass(frozen=True)
class Published:
    """What came of it.

    Args:
        spec: The file that holds what W&B was given, or would be.
        urls: Of the view and the report; empty where W&B was not reached.
        says: For the user: where to look, or what to run.
    """

    spec: Path
    urls: tuple[str, ...]
    says: tuple[str, ...]


def publish(
    dashboard: Dashboard,
    path: Path,
    *,
    mode: str = "auto",
    entity: str | None = None,
    project: str | None = None,
    show: Callable[[str], Any] = lambda line: None,
) -> Published:
    """Save the view and the report in W&B, or write what they would be beside the page and say how to go on.

    Saved again with the same file, the same view and report are replaced. Nothing here raises for W&B's sake.

    Args:
        path: The file for what W&B is given, or would be.
        mode: `tracker.mode`: `offline` and `disabled` ask no server, unless WANDB_MODE=online; `auto` takes WANDB_MODE.
        entity: Of the runs; None for the one that they name, or the account's own.
        project: Of the runs; None for the one that they name.
        show: Told before a server is asked, which may take half a minute where there is none.

    Raises:
        TrainingError: the file cannot be written.
    """
    tracked = [run for run in dashboard.runs if run_id(run)]
    if not tracked:
        why = "None of these runs was tracked with W&B (tracker=wandb), so that W&B has nothing to show."
        return Published(path, (), (why,))
    os.environ.setdefault("WANDB_SILENT", "true")  # its own lines would come between ours
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    entity, project = entity or _part(tracked, 3, 0) or "", project or _part(tracked, 2, -2) or "manyfit"
    before = _known(path)
    why = _why_offline(mode)
    if not why:
        show("Saving a view and a report in W&B ...")
        try:
            return _save(dashboard, tracked, path, entity, project, before)
        except UserError:
            raise
        except Exception as error:  # no network, a key that is refused, a server of another version
            reason = " ".join(str(error).split())[:200] or type(error).__name__
            why = f"The W&B view and report could not be saved ({reason})."
    _write(path, view_of(dashboard, tracked, entity, project), report_of(dashboard, tracked, "", project), before)
    return Published(path, (), (why, *_how_to_go_on(dashboard, tracked, path, why)))


def _save(
    dashboard: Dashboard, runs: Sequence[Run], path: Path, entity: str, project: str, before: dict[str, Any]
) -> Published:
    import wandb

    api = wandb.Api(timeout=30)
    entity = entity or api.default_entity or ""
    missing = _missing(api, f"{entity}/{project}", runs)
    if len(missing) == len(runs):
        view, report = view_of(dashboard, runs, entity, project), report_of(dashboard, runs, "", project)
        _write(path, view, report, before)
        why = f"W&B has none of these runs in {entity}/{project} yet, so that nothing was saved there."
        return Published(path, (), (why, *_how_to_go_on(dashboard, missing, path, why)))
    view = view_of(dashboard, runs, entity, project)
    view._internal_name = before.get("view_name", "")
    view._internal_id = before.get("view_id", "")
    report = report_of(dashboard, runs, entity, project)
    report.id = before.get("report_id", "")
    view.save()
    report.save()
    known = {"view_name": view._internal_name, "view_id": view._internal_id, "report_id": report.id}
    _write(path, view, report, {**known, "view_url": view.url, "report_url": report.url})
    says = [f"W&B view: {view.url}", f"W&B report: {report.url}"]
    if missing:
        says.append(f"{len(missing)} of {len(runs)} runs are not in W&B yet, and will be shown once they are:")
        says += _sync_command(missing)
    return Published(path, (view.url, report.url), tuple(says))


def _missing(api: Any, place: str, runs: Sequence[Run]) -> list[Run]:
    """The runs that the server does not have."""
    ids = [run_id(run) for run in runs]
    try:
        found = {run.id for run in api.runs(place, filters={"name": {"$in": ids}}, per_page=100)}
    except ValueError:  # what W&B raises for a project that is not there
        found = set()
    return [run for run in runs if run_id(run) not in found]


def _why_offline(mode: str) -> str:
    """Why no server is asked; empty where one is. WANDB_MODE=online is stronger than `offline` in a configuration."""
    said = os.environ.get("WANDB_MODE", "")
    if not said:
        os.environ.pop("WANDB_MODE", None)  # W&B takes an empty one for a mode
    asked = said if mode == "auto" or said in _ONLINE else mode
    if asked in _OFFLINE:
        return _IS_OFFLINE
    from wandb.sdk import wandb_setup
    from wandb.sdk.lib import wbauth

    try:
        host = wandb_setup.singleton().settings.base_url
        key = wbauth.authenticate_session(host=host, source="manyfit", prompt=False, update_session=False)
    except Exception as error:
        return f"The W&B key cannot be used ({' '.join(str(error).split())[:200]})."
    return "" if key is not None else "No W&B key is set, so that the view and the report were not saved there."


def _how_to_go_on(dashboard: Dashboard, runs: Sequence[Run], path: Path, why: str) -> list[str]:
    """What the user runs once W&B can be reached."""
    return [
        f"What they would show is in {path}. Once online (`wandb login`), run:",
        *_sync_command(runs),
        f"  {'WANDB_MODE=online ' if why == _IS_OFFLINE else ''}{dashboard.command}",
    ]


def _sync_command(runs: Iterable[Run]) -> list[str]:
    """The line that uploads offline runs; empty where there is nothing to upload."""
    folders = [
        shlex.quote(str(folder))
        for run in runs
        if (run.record.get("tracker") or {}).get("sync_command")
        for folder in sorted((run.folder / "wandb").glob("offline-run-*"))
        if folder.is_dir()
    ]
    return [f"  wandb sync {' '.join(folders)}"] if folders else []


# --- what the runs say ------------------------------------------------------------------------------------------------


def _part(runs: Sequence[Run], least: int, index: int) -> str | None:
    """A part of the runs' `entity/project/id`, where it has at least so many."""
    paths = [str((run.record.get("tracker") or {}).get("path") or "").split("/") for run in runs]
    return next((parts[index] for parts in paths if len(parts) >= least), None)


def _known(path: Path) -> dict[str, Any]:
    """What was saved before from the same folder, to be replaced."""
    try:
        return dict(json.loads(path.read_text(encoding="utf-8"))["saved"])
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _write(path: Path, view: Any, report: Any, saved: dict[str, Any]) -> None:
    plain = [
        json.loads(one._to_model().spec.model_dump_json(by_alias=True, exclude_none=True)) for one in (view, report)
    ]
    written = {"title": report.title, "saved": saved, "workspace": plain[0], "report": plain[1]}
    write_atomically(path, to_json(written, indent=1) + "\n")
