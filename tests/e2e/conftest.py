"""The scripts in processes of their own, and the trained run that many tests look at."""

import contextlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from manyfit.command import repository_root
from manyfit.report.images import BROWSERS

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # where the stand-ins of servers are

SECONDS = 400
"""Longest that a script may take on a busy machine."""


def start(script: str, *arguments: object, cwd: Path, **environment: str) -> subprocess.Popen[str]:
    """A script of src/, running in `cwd`."""
    return subprocess.Popen(
        [sys.executable, str(repository_root() / "src" / script), *map(str, arguments)],
        cwd=cwd,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> subprocess.CompletedProcess[str]:
    """What came of a script; its output lands in the report of a test that fails."""
    try:
        stdout, stderr = process.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    print(f"{process.args} ended with {process.returncode}\n{stdout}\n--- stderr\n{stderr}")
    return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)


@pytest.fixture(scope="session")
def start_script(tmp_path_factory):
    """`start_script("train.py", "epochs=1", ..., cwd=folder, NAME="value")` -> the running process."""

    def run(script, *arguments, cwd=None, **environment):
        return start(script, *arguments, cwd=cwd or tmp_path_factory.mktemp("launch"), **environment)

    return run


@pytest.fixture(scope="session")
def script(start_script):
    """`script("train.py", "epochs=1", ...)` -> the finished process."""
    return lambda *arguments, **keywords: finish(start_script(*arguments, **keywords))


@pytest.fixture(scope="session")
def finish_script():
    """Waits for what `start_script` started."""
    return finish


@dataclass(frozen=True)
class TrainedRun:
    """A finished run: its folder, its record, and the process that made it."""

    folder: Path
    record: dict
    done: subprocess.CompletedProcess


@pytest.fixture(scope="session")
def trained(script, tmp_path_factory) -> TrainedRun:
    """Two logical CPU replicas, numbers of examples that no batch divides, W&B offline, TensorBoard."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    done = script(
        "train.py",
        *("strategy=mirrored", "strategy.device=cpu", "strategy.replicas=2"),
        *("data=synthetic", "data.num_train=61", "data.num_validation=23", "data.num_classes=3", "data.image_size=14"),
        *("model=small_cnn", "model.filters=4", "model.units=8", "batch.per_replica_batch_size=8", "epochs=3"),
        *("optimizer.learning_rate=0.004", "schedule.scale_with=linear", "schedule.reference_batch_size=32"),
        *("tracker.mode=offline", "tracker.tensorboard=true", "tracker.tags=[e2e]", "tracker.group=tests"),
        "tracker.log_mistakes=0",  # auto depends on how fast the machine is
        f"hydra.run.dir={folder}",
        WANDB_MODE="",
    )
    assert done.returncode == 0, done.stderr
    return TrainedRun(folder, json.loads((folder / "record.json").read_text()), done)


def draw(folder: Path, num_files: int, grey: int) -> None:
    """Small noisy JPEG files of about one grey level."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(grey)
    for index in range(num_files):
        levels = rng.integers(grey, grey + 60, (20, 24, 3)).astype(np.uint8)
        Image.fromarray(levels).save(folder / f"{index}.jpg")


@pytest.fixture
def two_hosts():
    """Two hosts with a network between them, as network namespaces: their names and addresses."""
    names = [f"manyfit{os.getpid()}{letter}" for letter in "ab"]
    addresses = ["10.77.31.1", "10.77.31.2"]
    words = [f"link add v{names[0]} netns {names[0]} type veth peer name v{names[1]} netns {names[1]}"]
    for name, address in zip(names, addresses, strict=True):
        words += [f"-n {name} addr add {address}/24 dev v{name}", f"-n {name} link set lo up"]
        words += [f"-n {name} link set v{name} up"]
    made = []
    try:
        for name in names:
            subprocess.run(["ip", "netns", "add", name], check=True, capture_output=True, text=True)
            made.append(name)
        for line in words:
            subprocess.run(["ip", *line.split()], check=True, capture_output=True, text=True)
        yield dict(zip(names, addresses, strict=True))
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no network namespaces here: {getattr(error, 'stderr', None) or error}")
    finally:
        for name in made:
            subprocess.run(["ip", "netns", "del", name], check=False)


@pytest.fixture(scope="session")
def draw_pictures():
    """`draw_pictures(folder, num_files, grey)` makes a folder of small pictures."""
    return draw


@pytest.fixture(scope="session")
def photos(tmp_path_factory) -> Path:
    """Two classes that can be told apart, as `train` and `validation` folders."""
    root = tmp_path_factory.mktemp("photos")
    for split, num_files in (("train", 14), ("validation", 5)):
        draw(root / split / "cats", num_files, grey=10)
        draw(root / split / "dogs", num_files + 1, grey=150)
    return root


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real photos beside the repository."""
    folder = repository_root().parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"no real photos: {folder} is missing")
    return folder


@dataclass
class Runner:
    """Starts runs in forks of a process that has imported TensorFlow."""

    process: subprocess.Popen
    log: Path

    def run(
        self,
        *overrides: object,
        kill: tuple[str, float] | None = None,
        signal_number: int = signal.SIGKILL,
        script: str = "train",
    ) -> int:
        """The exit code of a run, or minus the signal that ended it."""
        assert self.process.stdin and self.process.stdout
        request = {
            "script": script,
            "overrides": [str(word) for word in overrides],
            "kill": None if kill is None else {"at": kill[0], "count": kill[1]},
            "log": str(self.log),
            "signal": signal_number,
        }
        self.log.write_text("")
        return self._ask(request)

    def run_workers(
        self,
        num_workers: int,
        *overrides: object,
        kill: tuple[str, float] | None = None,
        rank: int = 0,
        signal_number: int = signal.SIGKILL,
        own: dict[int, list[str]] | None = None,
        late: dict[int, float] | None = None,
        script: str = "train",
    ) -> list[int | None]:
        """What the processes of a run of several workers ended with, by rank; None for one that had to be ended.

        Their logs are `worker_log(rank)`.
        """
        for number in range(num_workers):
            self.worker_log(number).unlink(missing_ok=True)
        request = {
            "script": script,
            "overrides": [*(["strategy=multi_worker"] if script == "train" else []), *map(str, overrides)],
            "kill": None if kill is None else {"at": kill[0], "count": kill[1]},
            "log": str(self.log),
            "signal": signal_number,
            "rank": rank,
            "own": own or {},
            "late": late or {},
            "workers": [f"127.0.0.1:{port}" for port in free_ports(num_workers)],
        }
        return self._ask(request)

    def worker_log(self, rank: int) -> Path:
        """What a worker printed."""
        return self.log.with_name(f"{self.log.name}.{rank}")

    def _ask(self, request):
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())


def free_ports(count: int) -> list[int]:
    """Ports of this machine that nobody has, below those that outgoing connections take."""
    found, order = [], random.sample(range(20000, 32000), 400)
    for port in order:
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            found.append(port)
        if len(found) == count:
            return found
    raise OSError("no free ports")


@pytest.fixture(scope="module")
def runner(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kills")
    source = Path(__file__).resolve().parents[2] / "src"
    with (folder / "worker.txt").open("w") as errors:
        process = subprocess.Popen(
            [sys.executable, Path(__file__).with_name("kill_worker.py")],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=folder,
            env={**os.environ, "PYTHONPATH": str(source), "MANYFIT_CACHE": str(folder / "cache")},
        )  # fmt: skip
        yield Runner(process, folder / "log.txt")
        process.stdin.close()
        process.stdout.close()
        assert process.wait(60) == 0


@pytest.fixture(scope="module")
def chromium():
    """A browser that is not asked for the network; skipped where there is none."""
    playwright = pytest.importorskip("playwright.sync_api", reason="the package playwright is not installed")
    path = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if path is None:
        pytest.skip("no Chromium or Chrome on PATH: apt-get install chromium")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()
