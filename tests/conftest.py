"""What every test stands on: no account, no network, no cache of the user's."""

import importlib.util
import os
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest

LEAKS = ("WANDB_", "HYDRA_FULL_ERROR", "TF_CONFIG", "SLURM_", "CUDA_VISIBLE_DEVICES")
"""Beginnings of the variables that would let the user's own surroundings into a test or into a process it starts."""

CACHES = {
    "HOME": "home",
    "XDG_CACHE_HOME": "cache",
    "MANYFIT_CACHE": "cache/manyfit",
    "KERAS_HOME": "cache/keras",
    "TFDS_DATA_DIR": "cache/tfds",
    "WANDB_CACHE_DIR": "cache/wandb",
    "WANDB_CONFIG_DIR": "cache/wandb-config",
    "WANDB_DATA_DIR": "cache/wandb-data",
}
DEAD_PROXY = "http://127.0.0.1:9"

_session = pytest.MonkeyPatch()
_folder: tempfile.TemporaryDirectory | None = None


def pytest_configure() -> None:
    """Set the surroundings before any test module is imported: Keras reads its home when it is."""
    global _folder
    _folder = tempfile.TemporaryDirectory(prefix="manyfit-tests-", ignore_cleanup_errors=True)
    for name in list(os.environ):
        if name.startswith(LEAKS):
            _session.delenv(name)
    for name, place in CACHES.items():
        path = os.path.join(_folder.name, place)
        os.makedirs(path, exist_ok=True)
        _session.setenv(name, path)
    _session.setenv("WANDB_MODE", "offline")
    _session.setenv("WANDB_ERROR_REPORTING", "false")
    # pytest-socket guards this process; a process that a test starts meets a proxy that answers nothing.
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"):
        _session.setenv(name, DEAD_PROXY)
    for name in ("NO_PROXY", "no_proxy"):
        _session.setenv(name, "127.0.0.1,localhost,::1")


def pytest_unconfigure() -> None:
    """Give the surroundings back."""
    _session.undo()
    if _folder is not None:
        _folder.cleanup()


@pytest.fixture(scope="session")
def nvml_stub(tmp_path_factory):
    """GPUs where there are none: `nvml_stub.environment(gpus=2)` are the variables of a process that finds two.

    `nvml_stub.expected(index, time)` is what it reads of them; see `nvml_stub.py`.
    """
    spec = importlib.util.spec_from_file_location("nvml_stub", Path(__file__).with_name("nvml_stub.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if not module.has_compiler():
        pytest.skip("no C compiler for Linux: `cc` is missing")
    folder = tmp_path_factory.mktemp("nvml")
    module.build(folder)

    def environment(**variables):
        return module.environment(folder, **variables)

    return SimpleNamespace(folder=folder, environment=environment, expected=module.expected, name=module.NAME)


@pytest.fixture(scope="session")
def made_runs():
    """Run folders without a training: `made_runs.make_run(folder, replicas=2, speed=1800.0)`; see `made_runs.py`."""
    spec = importlib.util.spec_from_file_location("made_runs", Path(__file__).with_name("made_runs.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def _surroundings_are_restored():
    """A test that sets a variable by hand leaves no trace for the next one."""
    before = dict(os.environ)
    yield
    for name in set(os.environ) - set(before):
        del os.environ[name]
    os.environ.update(before)
