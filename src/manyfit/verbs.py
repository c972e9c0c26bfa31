"""What Python code and notebooks call: `run` trains in a process of its own and returns the record, `compare` compares.

One process a training, as everywhere here: TensorFlow keeps the devices and collectives of the first one, so that a
second `run` with another number of replicas or another model would die in the notebook's own process.
"""

import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from omegaconf import open_dict

from manyfit import sweep_arguments
from manyfit.command import DEFAULT_RUN_FOLDER, repository_root
from manyfit.config import RESUME_AUTO, check
from manyfit.errors import EXIT_BAD_CONFIG, EXIT_FINISHED, ConfigError, TrainingError, UserError
from manyfit.killed import close_record, describe
from manyfit.multirun import composed, composing
from manyfit.overrides import long_form
from manyfit.processes import end_processes, signal_group, start_process
from manyfit.record import RECORD_NAME, check_unused
from manyfit.report import comparison
from manyfit.report.inline import ShownComparison, ShownRecord, folder_of
from manyfit.report.runs import load_runs
from manyfit.resume import Finished, resolve
from manyfit.study import ONE_RUNS_OWN

TRAIN = repository_root() / "src" / "train.py"

NOT_PASSED_ON = (*ONE_RUNS_OWN, "WANDB_SERVICE", "FORCE_COLOR", "CLICOLOR_FORCE")
"""Variables of a notebook that mean something else to a training: another W&B run, a terminal that is none."""

LAST_LINES = 40
DRAIN_SECONDS = 5.0
"""How long to wait for the rest of what an ended training wrote, where something else keeps its pipes open."""

_POLL_SECONDS = 0.2
RUN_FOLDER = re.compile(r"run folder: (.+)$")

Overrides = Sequence[str] | Mapping[str, Any]


def run(overrides: Overrides = (), *, show: bool = True) -> ShownRecord:
    """Train what is asked and return its record, as `src/train.py` does with the same words.

    The training has a process of its own, also in a notebook in which TensorFlow has started: any number of runs with
    any number of replicas may follow each other. An interrupt (the notebook's stop button, Ctrl-C) saves the exact
    state first; a second one ends it at once.

    Args:
        overrides: As on the command line, `["strategy=mirrored", "data=mnist"]`; or a mapping of keys to Python values,
            `{"strategy": "mirrored", "data.root": "my photos", "epochs": 3}`. Run folders go to outputs/ of the
            repository or to MANYFIT_OUTPUTS; `hydra.run.dir=PATH` sets it exactly.
        show: Print what the training prints, line by line.

    Returns:
        The record: `record.data` is what `record.json` holds, `record.folder` the run folder, with `model.keras`. A run
        that was stopped (`max_minutes`) returns too: its `status` is `stopped`.

    Raises:
        ConfigError: what was asked cannot be run; most of it within a second, before the process starts.
        UserError: the training failed; `exit_code` is that of `src/train.py`.
        KeyboardInterrupt: it was interrupted; what it had learned is saved.
    """
    words = _words(overrides)
    finished = _check(words)
    if finished is None:
        return _Training(words, show).wait()
    folder, said = finished
    if show:
        print(said)
    return ShownRecord.load(folder)


def compare(
    *runs: Any,
    baseline: Any = None,
    target: float | None = None,
    price_per_hour: float | None = None,
    per: str | None = None,
    currency: str | None = None,
) -> ShownComparison:
    """Compare runs, as `src/compare.py` does; the last value of a notebook's cell is shown as the page.

    Args:
        runs: Records, or the folders of runs; or one list of them.
        baseline: The run that the others are compared with; by default the finished one with the fewest replicas.
        target: The validation accuracy whose time and cost are of interest, 0 to 1.
        price_per_hour: Over what the runs' own configurations say; with `per` (`machine`, `device`) and `currency`.

    Returns:
        The comparison: `verdict`, `claims`, `as_dict()`, `markdown()`, `page().write(path)`.

    Raises:
        UserError: a folder that holds no run, no runs, a value that is none.
    """
    given = list(runs[0]) if len(runs) == 1 and isinstance(runs[0], list | tuple) else list(runs)
    folders = [folder_of(one) for one in given]
    base = None if baseline is None else folder_of(baseline)
    if base is not None and base.resolve() not in {folder.resolve() for folder in folders}:
        folders.insert(0, base)
    loaded = load_runs(folders)
    chosen = None if base is None else next(one for one in loaded if one.folder.resolve() == base.resolve())
    price = {"price_per_hour": price_per_hour, "per": per, "currency": currency}
    return ShownComparison.of(comparison.compare(loaded, baseline=chosen, target=target, price=price))


def _words(overrides: Overrides) -> list[str]:
    if isinstance(overrides, str):
        raise ConfigError(f"The overrides are one text: {overrides!r}.", f"Give a list: {overrides.split()}.")
    words = sweep_arguments.overrides(overrides) if isinstance(overrides, Mapping) else list(overrides)
    wrong = [word for word in words if not isinstance(word, str)]
    if wrong:
        raise ConfigError(f"{wrong[0]!r} is no override.", 'Give texts: ["data=mnist", "epochs=3"].')
    return [long_form(word) for word in words]


def _check(words: Sequence[str]) -> tuple[Path, str] | None:
    """Refuse now what the training would refuse; the run that was asked to go on and is finished, and that it is."""
    with composing():
        config = composed(words, with_hydra=True)
        asked = str(config.hydra.run.dir)
    with open_dict(config):
        del config["hydra"]
    run_dir = None if asked == DEFAULT_RUN_FOLDER else Path(asked).expanduser().absolute()
    own = [word for word in words if not word.lstrip("+").startswith("hydra.")]
    checked = check(config)
    try:
        now, folder = resolve(checked, config, run_dir, own)
    except Finished as finished:
        folder = run_dir if checked.resume.folder == RESUME_AUTO else Path(str(checked.resume.folder))
        return Path(str(folder)), str(finished)
    if folder is not None and now.resume.folder is None:
        check_unused(folder)
    return None


class _Training:
    """`src/train.py` in a process of its own, what it writes passed on."""

    def __init__(self, words: Sequence[str], show: bool):
        inherited = {name: value for name, value in os.environ.items() if name not in NOT_PASSED_ON}
        self._show = show
        self._folder: Path | None = None
        self._errors: deque[str] = deque(maxlen=LAST_LINES)
        self._refused = False
        self._process = start_process(
            [sys.executable, str(TRAIN), *words],
            env={**inherited, "PYTHONUNBUFFERED": "1", "PYTHONIOENCODING": "utf-8"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self._lines: queue.Queue[tuple[bool, str | None]] = queue.Queue()
        for is_error, stream in ((False, self._process.stdout), (True, self._process.stderr)):
            threading.Thread(target=self._read, args=(is_error, stream), daemon=True).start()

    def wait(self) -> ShownRecord:
        """What came of it."""
        try:
            interrupted = self._until_it_ends()
        finally:
            end_processes([self._process], grace_seconds=0.0)  # and what it may have left behind
            code = self._process.returncode
            if self._folder is not None and code < 0:
                close_record(self._folder, code)
        if interrupted:
            raise KeyboardInterrupt(f"The training was interrupted; its run folder is {self._folder}.")
        if self._folder is not None and (self._folder / RECORD_NAME).exists():
            record = ShownRecord.load(self._folder)
            if code == EXIT_FINISHED or record.data["status"] == "stopped":
                return record
        raise self._error(code)

    def _until_it_ends(self) -> bool:
        """Show what it writes; whether it was interrupted meanwhile."""
        interrupted, num_open, ended = False, 2, None
        while num_open and (ended is None or time.monotonic() - ended < DRAIN_SECONDS):
            try:
                is_error, line = self._lines.get(timeout=_POLL_SECONDS)
                if line is None:
                    num_open -= 1
                else:
                    self._take(line, is_error)
            except queue.Empty:
                if ended is None and self._process.poll() is not None:
                    ended = time.monotonic()
            except KeyboardInterrupt:
                if interrupted:
                    raise
                interrupted = True
                signal_group(self._process, signal.SIGINT)
        self._process.wait()
        return interrupted

    def _read(self, is_error: bool, stream: IO[bytes]) -> None:
        with stream:
            for line in stream:
                self._lines.put((is_error, line.decode("utf-8", "replace").rstrip("\n")))
        self._lines.put((is_error, None))

    def _take(self, line: str, is_error: bool) -> None:
        if is_error:
            self._refused = self._refused or line.startswith("Error: ")
            self._errors.append(line)
        elif found := RUN_FOLDER.search(line):
            self._folder = Path(found[1])
        if self._show and not self._refused:  # a message is what the exception will say
            print(line, file=sys.stderr if is_error else sys.stdout, flush=True)

    def _error(self, code: int) -> UserError:
        lines = list(self._errors)
        at = next((index for index, line in enumerate(lines) if line.startswith("Error: ")), None)
        if at is not None:
            message, *remedy = [lines[at].removeprefix("Error: "), *lines[at + 1 :]]
        else:
            said = [line.strip() for line in lines if line.strip()][-1:]
            how = f"was {describe(-code)}" if code < 0 else f"ended with code {code}"
            message, remedy = ": ".join([f"The training {how}", *said]), []
        kind = ConfigError if code == EXIT_BAD_CONFIG else TrainingError
        error = kind(message, "\n".join(remedy))
        error.exit_code = 128 - code if code < 0 else code
        if self._folder is not None:
            error.add_note(f"The run folder is {self._folder}.")
        return error
