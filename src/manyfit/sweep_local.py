"""A sweep file without a server: the same search, each run in a process of its own; started again, it goes on.

Optuna draws the values: all of a grid, at random, or (bayes) by what the runs so far gave. What it knows is in
`search.log` of the sweep's folder. Early termination is successive halving, as W&B's hyperband is with one bracket.
"""

import dataclasses
import hashlib
import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from manyfit import sweep_arguments
from manyfit.errors import ConfigError, UserError
from manyfit.files import to_json, write_atomically
from manyfit.locks import FileLock
from manyfit.record import ROWS_NAME
from manyfit.report.sweep import SweepRun
from manyfit.resume import CONFIG_NAME
from manyfit.study import FAILED, STOPPED, Point, Result, as_group, override, run_study
from manyfit.sweep_file import Parameter, SweepFile
from manyfit.sweep_search import draw, grid, keys, open_search

if TYPE_CHECKING:
    import optuna

SUMMARY_NAME, LOCK_NAME = "sweep.json", ".lock"
FAILURES_AT_FIRST = 3
"""When this many runs fail before one finishes, the rest would as well."""

_PARAMETERS, _POINT, _ERROR = "parameters", "point", "error"
_FOLDER, _SECONDS = "folder", "seconds"
_STOP_POLL_SECONDS = 0.5


@dataclass
class LocalSweep:
    """One search, in a folder of its own.

    Args:
        file: A sweep file without mistakes.
        folder: Where its runs go; one that was used before is gone on with.
        more: Overrides for every run, which win over the file's.
        program: The script that trains.
        seed: Of the draws.
    """

    file: SweepFile
    folder: Path
    more: Sequence[str] = ()
    program: Path = Path(__file__).resolve().parents[1] / "train.py"
    seed: int = 0
    _search: Any = field(default=None, init=False)
    _trials: dict[str, "optuna.Trial"] = field(default_factory=dict, init=False)
    _rows_read: dict[str, tuple[float, int]] = field(default_factory=dict, init=False)

    def run(self, *, count: int | None, workers: int = 1, show: Callable[[str], Any] = lambda line: None) -> int:
        """Search until `count` runs are over or the grid is; how many there are.

        Args:
            count: Runs in all, those of earlier starts included; None for the file's `run_cap` or the whole grid.
            workers: Runs at a time.

        Raises:
            ConfigError: no end was given; the folder holds another sweep, or another process searches in it.
            UserError: the first runs all failed.
        """
        limit = self._limit(count)
        lock = FileLock(self.folder / LOCK_NAME)
        if not lock.take(exclusive=True):
            message = f"{self.folder} is being searched by another process."
            raise ConfigError(message, "Wait for it, or give another --folder.")
        try:
            return self._run(limit, workers, show)
        finally:
            lock.release()

    def _run(self, limit: int, workers: int, show: Callable[[str], Any]) -> int:
        self.folder.mkdir(parents=True, exist_ok=True)
        digest = _digest(self.file, self.more)
        self._search = open_search(self.folder, digest, self.file, self._varied(), limit=limit, seed=self.seed)
        over = sum(trial.state.is_finished() for trial in self._search.get_trials(deepcopy=False))
        if over:
            show(f"going on after {over} runs")

        def ended(result: Result) -> None:
            show(f"  {self._ended(result)}")
            self._write_summary()
            self._give_up_early()

        run_study(
            self._points(limit, show),
            self.folder,
            command=self._command,
            workers=workers,
            environment=as_group("sweep", self.folder),
            on_end=ended,
            stop_early=self._stop_early,
        )
        self._write_summary()
        return len(self.runs())

    def runs(self) -> list[SweepRun]:
        """What came of every run so far, in the order in which they were asked for."""
        if self._search is None:
            return []
        from optuna.trial import TrialState

        states = {TrialState.COMPLETE: "finished", TrialState.PRUNED: "stopped", TrialState.FAIL: "failed"}
        found = []
        for trial in self._search.get_trials(deepcopy=False):
            if trial.state not in states:
                continue
            known = trial.user_attrs
            values = trial.intermediate_values
            best = trial.value if trial.state == TrialState.COMPLETE else self._extreme(list(values.values()))
            found.append(
                SweepRun(
                    name=known.get(_POINT, str(trial.number)),
                    parameters=json.loads(known.get(_PARAMETERS, "{}")),
                    status=states[trial.state],
                    value=best,
                    folder=known.get(_FOLDER),
                    seconds=known.get(_SECONDS),
                    said=known.get(_ERROR),
                )
            )
        return found

    @property
    def metric(self) -> str | None:
        """The metric that the file names."""
        return (self.file.content.get("metric") or {}).get("name")

    @property
    def maximises(self) -> bool:
        """Whether more is better."""
        return (self.file.content.get("metric") or {}).get("goal") == "maximize"

    # --- the search -------------------------------------------------------------------------------------------------

    def _limit(self, count: int | None) -> int:
        limit = count or self.file.content.get("run_cap")
        if self.file.content["method"] == "grid":
            whole = len(list(grid(self._varied())))
            return min(limit, whole) if limit else whole
        if limit is None:
            raise ConfigError(
                f"method: {self.file.content['method']} has no end.", "Give --count N, or run_cap: N in the file."
            )
        return limit

    def _varied(self) -> list[Parameter]:
        given = keys(self.more)
        return [parameter for parameter in self.file.parameters if parameter.name not in given]

    def _points(self, limit: int, show: Callable[[str], Any]) -> Iterator[Point]:
        """The runs of an earlier start that were cut off, then new ones."""
        import optuna

        cut_off = self._search.get_trials(deepcopy=False, states=[optuna.trial.TrialState.RUNNING])
        for frozen in cut_off:
            trial = optuna.Trial(self._search, frozen._trial_id)
            yield self._point(trial, show)
        while True:
            over = self._search.get_trials(deepcopy=False)
            if sum(trial.state != optuna.trial.TrialState.WAITING for trial in over) >= limit:
                return
            yield self._point(self._search.ask(), show)

    def _point(self, trial: "optuna.Trial", show: Callable[[str], Any]) -> Point:
        if _PARAMETERS in trial.user_attrs:
            parameters = json.loads(trial.user_attrs[_PARAMETERS])
        else:
            parameters = draw(trial, self.file.content["method"], self._varied())
        words = sweep_arguments.overrides(parameters)
        changing = [one.name for one in self._varied() if one.distribution != "constant"]
        short = [f"{name.rpartition('.')[2]}={_short(parameters[name])}" for name in changing]
        point = Point(f"{trial.number:03d}_{'_'.join(short)}"[:100], (*self._fixed(), *words, *self.more))
        trial.set_user_attr(_PARAMETERS, json.dumps(parameters))
        trial.set_user_attr(_POINT, " ".join(short))
        self._trials[point.label] = trial
        show(f"run {trial.number}: {' '.join(short)} ...")
        return point

    def _fixed(self) -> list[str]:
        """What the file's command gives every run and the command line does not, and a group for W&B."""
        given = keys(self.more)
        fixed = [text for text in self.file.fixed if not keys([text]) & given]
        all_given = keys([*fixed, *self.more]) | {parameter.name for parameter in self.file.parameters}
        if not all_given & {"tracker", "tracker.group"}:
            fixed.append(override("tracker.group", self.folder.name[:128]))
        return fixed

    def _command(self, point: Point, run: Path) -> list[str]:
        return [sys.executable, str(self.program), *point.overrides, override("hydra.run.dir", run)]

    # --- one run ----------------------------------------------------------------------------------------------------

    def _stop_early(self, point: Point, run: Path) -> str | None:
        """Tell the search each new epoch of a run; why it should stop, or None."""
        if not self.file.content.get("early_terminate") or self.metric is None:
            return None
        read_at, num_rows = self._rows_read.get(point.label, (0.0, 0))
        if time.monotonic() - read_at < _STOP_POLL_SECONDS:
            return None
        values = [row.get(self.metric.partition("/")[2]) for row in _rows(run)]
        self._rows_read[point.label] = (time.monotonic(), len(values))
        trial = self._trials[point.label]
        for epoch, value in enumerate(values[num_rows:], start=num_rows + 1):
            if value is not None:
                trial.report(value, epoch)
                if epoch < _last_epoch(run) and trial.should_prune():
                    return f"after epoch {epoch} it was not among the best"
        return None

    def _ended(self, result: Result) -> str:
        """Tell the search what came of a run; the line for the user."""
        from optuna.trial import TrialState

        trial = self._trials.pop(result.point.label)
        run = f"run {trial.number}"
        trial.set_user_attr(_FOLDER, str(result.folder))
        trial.set_user_attr(_SECONDS, result.seconds)
        value = self._value(result)
        if result.status == STOPPED or result.stopped:
            trial.set_user_attr(_ERROR, result.stopped)
            self._search.tell(trial, state=TrialState.PRUNED)
            return f"{run} stopped: {result.stopped}"
        if result.status == FAILED or (value is None and self.metric):
            error = result.error or f"the run logged no {self.metric}"
            trial.set_user_attr(_ERROR, error)
            self._search.tell(trial, state=TrialState.FAIL)
            return f"{run} failed: {error}; see {result.log}"
        self._search.tell(trial, 0.0 if value is None else value)
        took = f" in {result.seconds:.0f} s" if result.seconds is not None else ""
        return f"{run} " + (f"{self.metric} {value:.4f}" if value is not None else "finished") + took

    def _value(self, result: Result) -> float | None:
        """The metric of a run: of an epoch's metric the best epoch, as W&B's search takes it."""
        if self.metric is None or result.record is None:
            return None
        section, _, name = self.metric.partition("/")
        if section == "epoch":
            return self._extreme([row.get(name) for row in result.record["epochs"]])
        return (result.record.get(section) or {}).get(name)

    def _extreme(self, values: Sequence[float | None]) -> float | None:
        known = [value for value in values if value is not None]
        return (max if self.maximises else min)(known) if known else None

    def _give_up_early(self) -> None:
        runs = self.runs()
        if len(runs) >= FAILURES_AT_FIRST and all(run.status == "failed" for run in runs):
            raise UserError(
                f"The first {len(runs)} runs all failed: {runs[-1].said}", f"See the .txt files in {self.folder}."
            )

    def _write_summary(self) -> None:
        facts = {"sweep": self.file.content, "more": list(self.more), "metric": self.metric}
        runs = [dataclasses.asdict(run) for run in self.runs()]
        write_atomically(self.folder / SUMMARY_NAME, to_json(facts | {"runs": runs}, indent=2) + "\n")


def default_folder(outputs: Path, file: SweepFile, more: Sequence[str]) -> Path:
    """The folder of a file's runs: the same for the same search, so that it can go on."""
    return outputs / "sweeps" / f"{file.path.stem}-{_digest(file, more)[:8]}"


def _digest(file: SweepFile, more: Sequence[str]) -> str:
    """What makes a search the same one: all but how many runs it takes, and its name."""
    content = {key: value for key, value in file.content.items() if key not in ("run_cap", "name", "description")}
    return hashlib.sha256(to_json({"sweep": content, "more": list(more)}).encode()).hexdigest()


def _rows(run: Path) -> list[Mapping[str, Any]]:
    try:
        lines = (run / ROWS_NAME).read_text(encoding="utf-8").splitlines()
        return [json.loads(line) for line in lines]
    except (OSError, ValueError):  # not there yet, or a row half written
        return []


def _last_epoch(run: Path) -> float:
    """The epoch after which a run ends by itself, as the configuration in its folder says."""
    import yaml

    try:
        return float(yaml.safe_load((run / CONFIG_NAME).read_text(encoding="utf-8"))["epochs"])
    except (OSError, ValueError, TypeError, KeyError, yaml.YAMLError):
        return math.inf


def _short(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
