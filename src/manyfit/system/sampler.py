"""The thread that samples the machine during a run; nothing of it can end or hold up the training."""

import contextlib
import math
import platform
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Protocol, Self

from manyfit.errors import UserError
from manyfit.files import to_json, write_atomically
from manyfit.processes import process_seconds
from manyfit.report.system_samples import SAMPLES_NAME, read_samples
from manyfit.system.gpus import Gpus
from manyfit.system.host import Host
from manyfit.system.statistics import Statistics

CLOSEST_SECONDS = 0.1
"""Readings are never closer than this: phases that change faster share one."""
READING_SHARE = 0.1
"""Share of the time that readings at changes of phase may take, where the phases change without end."""
PATIENCE_SECONDS = 10.0
"""How long the end of a run waits for a reading that hangs in a driver."""


class Reader(Protocol):
    """Reads the host; see `Host.read`."""

    problem: str | None

    def read(self) -> dict[str, Any]:
        """The values now."""
        ...


class Sampler:
    """Samples the machine into `system.jsonl`, at an interval and at each change of phase; a context manager.

    They are read in a thread of its own. At a change of phase a sample is written twice, with the time of the change:
    as the last of the phase that ends and the first of the one that begins. So each phase has both, however short it
    is; they are read within `CLOSEST_SECONDS` after the change.

    Args:
        folder: The run folder.
        interval_seconds: Between two samples; None for no samples at all.
        gpus: Those that are sampled.
        notify: Told once of readings that fail, and once of a file that can't be written; called in the thread that
            calls the methods.
        make_host: Makes the reader of the host, in the thread of the samples.
        earlier_seconds: What the run had taken where it now goes on; the samples until then are kept, later ones not.

    Attributes:
        count_images: Tells how many images have been trained on, for the energy an image; None for none.
    """

    def __init__(
        self,
        folder: Path,
        interval_seconds: float | None,
        gpus: Gpus,
        *,
        notify: Callable[[str], None],
        make_host: Callable[[], Reader] = Host,
        earlier_seconds: float = 0.0,
    ):
        self.count_images: Callable[[], int] | None = None
        self._path = Path(folder) / SAMPLES_NAME
        self._interval = interval_seconds
        self._gpus = gpus
        self._notify = notify
        self._make_host = make_host
        self._earlier = earlier_seconds
        self._host: Reader | None = None
        self._statistics = Statistics()
        self._entered = self._phase = "start"  # by the run; by the samples, which are a little behind
        self._changes: list[tuple[float, str]] = []  # since the last reading: when, and the phase that began
        self._notices: list[str] = []
        self._told: set[str] = set()
        self._changed = threading.Condition()
        self._closing = False
        self._thread: threading.Thread | None = None
        self._file: IO[str] | None = None
        self._line_is_cut = False

    # --- what the run calls -----------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        if self._interval is not None:
            if self._gpus.is_fault and self._gpus.note:
                self._notify(f"There will be {self._gpus.note}.")
            if self._earlier:
                self._go_on()
            self._thread = threading.Thread(target=self._run, name="system-samples", daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _go_on(self) -> None:
        """Keep the samples of the run until the moment where it goes on."""
        samples, _ = read_samples(self._path.parent)
        kept = [one for one in samples if one["elapsed_seconds"] <= self._earlier and isinstance(one.get("phase"), str)]
        for one in kept:
            self._statistics.add(one)
        self._statistics.begin_attempt()
        try:
            write_atomically(self._path, "".join(f"{to_json(one)}\n" for one in kept))
        except UserError as error:
            self._later("file", f"{error.message} The training and its record go on.")

    def _elapsed(self) -> float:
        return self._earlier + process_seconds()

    def enter(self, phase: str) -> None:
        """Say which phase begins: start, features, train, validation or end."""
        with self._changed:
            if phase == self._entered:
                return
            self._entered = phase
            self._changes.append((self._elapsed(), phase))
            self._changed.notify()
        self._tell()

    def close(self) -> None:
        """Take the last sample and end the thread."""
        thread, self._thread = self._thread, None
        if thread is not None:
            with self._changed:
                self._closing = True
                self._changed.notify()
            thread.join(PATIENCE_SECONDS)
            if thread.is_alive():  # NVML stays open: closing it would hang as well
                self._later("hang", "A reading of the system metrics hangs in its driver; the run ends without it.")
            else:
                self._gpus.close()
            self._tell()

    def section(self) -> dict[str, Any]:
        """What the record's section `system` holds; empty where nothing is sampled."""
        if self._interval is None:
            return {}
        images = self.count_images() if self.count_images is not None else None
        return {
            "interval_seconds": self._interval,
            "node": platform.node(),
            "gpu": self._gpus.in_words(),
            "gpu_indices": list(self._gpus.indices),
            "gpu_note": self._gpus.note,
            **self._statistics.section(images),
        }

    def means(self) -> dict[str, float]:
        """The mean of each metric, by `PHASE/METRIC`."""
        return self._statistics.means()

    def _tell(self) -> None:
        """Pass on the notices of the thread: who is told of them need not be safe for threads."""
        while self._notices:
            self._notify(self._notices.pop(0))

    # --- the thread -------------------------------------------------------------------------------------------------

    def _later(self, subject: str, text: str) -> None:
        if subject not in self._told:
            self._told.add(subject)
            self._notices.append(text)

    def _run(self) -> None:
        try:
            self._host = self._make_host()
            earliest = due = time.monotonic()
            while not self._wait(earliest, due):
                started = time.monotonic()
                self._sample()
                finished = time.monotonic()
                took = finished - started
                earliest = finished + max(CLOSEST_SECONDS, took / READING_SHARE)
                due = max(started + (self._interval or math.inf), finished + took)
            self._sample()
        except Exception as error:
            self._later("thread", f"The system metrics cannot be sampled ({type(error).__name__}: {error}).")
        finally:
            with contextlib.suppress(OSError):
                if self._file is not None:
                    self._file.close()

    def _wait(self, earliest: float, due: float) -> bool:
        """Wait until a sample is due, or until `earliest` where the phase has changed; whether it is the last one."""
        with self._changed:
            self._changed.wait_for(lambda: self._closing or bool(self._changes), max(0.0, due - time.monotonic()))
            until = min(earliest, due)
            self._changed.wait_for(lambda: self._closing, max(0.0, until - time.monotonic()))
            return self._closing

    def _sample(self) -> None:
        # What begins while the sample is read gets one of its own.
        with self._changed:
            now = self._elapsed()
            changes, self._changes = self._changes, []
        try:
            sample = self._read(now)
            for elapsed, phase in changes:
                self._add(sample, elapsed)
                self._phase = phase
                self._add(sample, elapsed)
            if not changes or self._closing:
                self._add(sample, now)
        except Exception as error:
            self._later("sample", f"A sample of the system metrics failed ({type(error).__name__}: {error}).")
            self._phase = changes[-1][1] if changes else self._phase

    def _add(self, sample: dict[str, Any], elapsed: float) -> None:
        earlier = sample["elapsed_seconds"] - elapsed
        line = {**sample, "elapsed_seconds": elapsed, "time": sample["time"] - earlier, "phase": self._phase}
        self._statistics.add(line)
        self._write(line)

    def _read(self, elapsed: float) -> dict[str, Any]:
        assert self._host is not None
        sample = {
            "elapsed_seconds": elapsed,
            "time": time.time(),
            "node": platform.node(),
            "phase": None,
            **self._host.read(),
            "gpus": self._gpus.read(),
        }
        for subject, reader in (("host", self._host), ("GPU", self._gpus)):
            if reader.problem is not None:
                text = f"Some {subject} samples are missing ({reader.problem}); the training is not affected."
                self._later(subject, text)
        return sample

    def _write(self, line: dict[str, Any]) -> None:
        try:
            if self._file is None:
                self._file = self._path.open("a", encoding="utf-8", buffering=1)
            text = ("\n" if self._line_is_cut else "") + to_json(line) + "\n"
            self._line_is_cut = True
            self._file.write(text)
            self._line_is_cut = False
        except OSError as error:
            # What could not be written would be tried again with every later line, and at closing.
            with contextlib.suppress(Exception):
                if self._file is not None:
                    self._file.close()
            self._file = None
            self._later(
                "file",
                f"{self._path} cannot be written ({error.strerror or error}); the training and its record go on.",
            )
