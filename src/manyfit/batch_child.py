"""The process in which `batch=auto` tries sizes (`manyfit.batch_probe`): what it is asked, and what its end means."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from manyfit.cluster import LOCAL_WORKER, TF_CONFIG
from manyfit.config import RunConfig, to_yaml
from manyfit.errors import UserError
from manyfit.processes import end_processes, start_process

RESULT = "RESULT "
"""The beginning of the child's lines that are meant for this process."""

MULTIPLE = 8
"""Every size is a multiple of this, the first one that is tried."""


def _alone(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of a process that is none of the workers of a run."""
    return {name: value for name, value in environ.items() if name not in (TF_CONFIG, LOCAL_WORKER)}


class Child:
    """The process that measures: started at the first size, and again after it ran out of memory."""

    def __init__(self, config: RunConfig, command: Sequence[str] = (sys.executable, "-m", "manyfit.batch_probe")):
        self._config = config
        self._command = command
        self._process: subprocess.Popen | None = None
        self._used = False
        self._files: tempfile.TemporaryDirectory | None = None

    def close(self) -> None:
        """End it."""
        self._end()
        if self._files is not None:
            self._files.cleanup()

    def measure(self, size: int) -> float | None:
        """Images a second at `size`; None if it does not fit. A process that has grown is not the judge of that."""
        answer = self._ask(size)
        if answer is None and self._used:
            self._end()
            answer = self._ask(size)
        self._used = True
        if answer is None:
            self._end()
        return answer

    def _start(self) -> subprocess.Popen:
        if self._files is None:
            self._files = tempfile.TemporaryDirectory(prefix="manyfit-batch-")
            (self._folder / "config.yaml").write_text(to_yaml(self._config), encoding="utf-8")
        source = str(Path(__file__).resolve().parents[1])
        paths = os.pathsep.join(path for path in (source, os.environ.get("PYTHONPATH", "")) if path)
        self._used = False
        with (self._folder / "stderr.txt").open("wb") as stderr:
            return start_process(
                [*self._command, str(self._folder / "config.yaml")],
                dies_by=getattr(signal, "SIGKILL", signal.SIGTERM),
                env={**_alone(os.environ), "PYTHONPATH": paths},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
            )

    @property
    def _folder(self) -> Path:
        assert self._files is not None
        return Path(self._files.name)

    def _ask(self, size: int) -> float | None:
        process = self._process = self._process or self._start()
        assert process.stdin is not None and process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(f"{size}\n")
            process.stdin.flush()
        for line in process.stdout:
            if line.startswith(RESULT):
                answer = json.loads(line.removeprefix(RESULT))
                if "error" in answer:
                    raise UserError(f"batch=auto: a step of {size} examples a replica failed.", answer["error"])
                return answer["images_per_second"]
        self._explain_death(size, process.wait())
        return None

    def _explain_death(self, size: int, code: int) -> None:
        """Raise unless the system ended the process as it does where memory runs out."""
        killed = {-int(getattr(signal, name)) for name in ("SIGKILL", "SIGABRT", "SIGBUS") if hasattr(signal, name)}
        if code in killed and (self._used or size > MULTIPLE):
            return
        lines = (self._folder / "stderr.txt").read_text(encoding="utf-8", errors="replace").strip().splitlines()
        raise UserError(
            f"batch=auto: the process that tries batch sizes ended with code {code}.",
            "\n".join(lines[-8:]) or "Give batch.per_replica_batch_size=N instead.",
        )

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        end_processes([process], grace_seconds=0.0)
