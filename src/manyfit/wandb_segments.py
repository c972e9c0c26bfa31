"""The parts of one W&B run that went on: a folder an attempt, one run id, steps that never overlap.

W&B cannot resume offline: each attempt writes a file of its own. `wandb sync` takes files of one run in the order of
their start and appends those that say they resume; a row whose step the server has already got would be moved behind
it. So rows that are trained again are taken out of a file that was not uploaded, and not written again where it was.
"""

import os
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from manyfit import wandb_file
from manyfit.errors import UserError
from manyfit.files import flush, remove_quietly


@dataclass(frozen=True)
class Segment:
    """What one attempt at a run told W&B.

    Args:
        folder: Where W&B wrote it.
        run_id: W&B's name of the run, the same for every segment of it.
        mode: `online` or `offline`.
        from_epoch: The epoch it began in, counted from 1.
        from_step: Steps of that epoch that were done before.
        complete: Whether all of it is known to be on the server.
        project: Where the run is: W&B takes parts of different projects for different runs.
        entity: Whose it is; None where that was left to the account.
    """

    folder: Path
    run_id: str
    mode: str
    from_epoch: int = 1
    from_step: int = 0
    complete: bool = False
    project: str | None = None
    entity: str | None = None

    @property
    def path(self) -> Path:
        """The file that holds it."""
        return self.folder / f"run-{self.run_id}.wandb"

    @property
    def is_uploaded(self) -> bool:
        """Whether the server has it: all of it, or so much that it must not be changed on disk any more."""
        return self.mode == "online" or self.path.with_suffix(".wandb.synced").exists()

    @property
    def is_pending(self) -> bool:
        """Whether something of it is on disk alone."""
        return not self.complete and not self.path.with_suffix(".wandb.synced").exists() and self.path.exists()

    def as_dict(self, run_folder: Path) -> dict[str, Any]:
        """For the record, with a folder that moves with the run's."""
        try:
            folder = self.folder.relative_to(run_folder).as_posix()
        except ValueError:  # WANDB_DIR or the user's own place
            folder = str(self.folder)
        return {
            "folder": folder,
            "run_id": self.run_id,
            "mode": self.mode,
            "from_epoch": self.from_epoch,
            "from_step": self.from_step,
            "complete": self.complete,
            "project": self.project,
            "entity": self.entity,
        }


def segments_of(run_folder: Path, tracker: Mapping[str, Any]) -> list[Segment]:
    """The segments that a record's section `tracker` names; those that can't be read are left out."""
    found = []
    for entry in tracker.get("segments") or []:
        try:
            place = run_folder / str(entry["folder"])
            numbers = int(entry.get("from_epoch") or 1), int(entry.get("from_step") or 0)
            where = (str(entry[key]) if entry.get(key) else None for key in ("project", "entity"))
            names = str(entry["run_id"]), str(entry["mode"])
            segment = Segment(place, *names, *numbers, bool(entry.get("complete")), *where)
        except (TypeError, KeyError, ValueError, AttributeError):
            continue
        found.append(segment)
    return found


def sync_line(segments: Iterable[Segment]) -> str | None:
    """The one command that uploads what is on disk alone, as one run; None where there is nothing."""
    pending = [segment for segment in segments if segment.is_pending]
    if not pending:
        return None
    # What was begun online is passed over unless it is asked for.
    online = "--include-online " if any(segment.mode == "online" for segment in pending) else ""
    return f"wandb sync {online}{' '.join(shlex.quote(str(segment.folder)) for segment in pending)}"


def prepare(segments: Sequence[Segment], step: int) -> int:
    """Make room for a segment that begins after `step`; the last step that the ones before have a row of, -1 for none.

    Raises:
        OSError: a file cannot be rewritten.
    """
    for segment in segments:
        if not segment.is_uploaded:
            drop_rows_after(segment.path, step)
    return max((int(row["_step"]) for segment in segments for row in _rows(segment.path)), default=-1)


def drop_rows_after(path: Path, step: int) -> int:
    """Take the history rows of later steps out of a `.wandb` file, whole or cut; how many there were.

    A file without any is not touched; else it is replaced in one move, and what was unreadable in it is gone.

    Raises:
        OSError: it cannot be replaced.
    """
    try:
        kept, dropped = wandb_file.without_rows_after(path.read_bytes(), step)
    except FileNotFoundError:
        return 0
    if dropped:
        beside = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            beside.write_bytes(kept)
            flush(beside)
            os.replace(beside, path)
        finally:
            remove_quietly(beside)
    return dropped


def _rows(path: Path) -> list[dict[str, Any]]:
    try:
        return wandb_file.read(path).history
    except UserError:
        return []
