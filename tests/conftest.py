"""What every test stands on: no account, no network, no cache of the user's."""

import os
import tempfile

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


@pytest.fixture(autouse=True)
def _surroundings_are_restored():
    """A test that sets a variable by hand leaves no trace for the next one."""
    before = dict(os.environ)
    yield
    for name in set(os.environ) - set(before):
        del os.environ[name]
    os.environ.update(before)
