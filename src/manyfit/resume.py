"""A run that goes on: which one, with which configuration, and that nobody else is at it."""

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from manyfit.config import CHOICE_KEY, RESUME_AUTO, SCHEMAS, AutoBatchConfig, RunConfig, check
from manyfit.errors import ConfigError, UserError
from manyfit.locks import FileLock
from manyfit.record import LOCK_NAME, RECORD_NAME, RunRecord

CONFIG_NAME = "config.yaml"

OF_THE_PROCESS = ("resume", "checkpoint", "watchdog", "max_minutes", "probe", "profile", "verbose")
"""Keys that say how a process works on a run: each process has its own."""

FREE = (
    *OF_THE_PROCESS,
    "cost",
    "tracker",
    "strategy",
    "steps_per_execution",
    "data.root",
    "data.cache",
    "data.cache_dir",
    "data.cache_gb",
    "data.parallel_map",
    "data.prefetch",
)
"""Keys that change nothing of what is learned: a run goes on with whatever they are given now.

That the data are the same is checked by their fingerprint, and another number of replicas shares the same batches.
"""


class Finished(UserError):
    """The run that was to go on has ended; nothing is left to do."""

    exit_code = 0


def resolve(
    config: RunConfig, composed: Any, run_dir: Path | None, asked: Sequence[str] | None
) -> tuple[RunConfig, Path | None]:
    """The configuration and the folder of the run that `config` asks for: as they are, or those of one that goes on.

    A run goes on with the configuration that it began with. What is asked on top must be the same, or belong to the
    keys that change nothing of what is learned (`FREE`), or to `resume.allow`.

    Args:
        config: What was asked, checked.
        composed: The composed mapping that `config` was checked from.
        run_dir: The folder of hydra.run.dir, if it was given.
        asked: The overrides of the command line; None where everything in `config` is meant.

    Raises:
        ConfigError: there is nothing to go on with, or other values than before.
        Finished: that run has finished.
    """
    if config.resume.folder is None:
        return config, run_dir
    folder = _folder(config.resume.folder, run_dir)
    if config.resume.folder == RESUME_AUTO and not (folder / RECORD_NAME).exists():
        return dataclasses.replace(config, resume=dataclasses.replace(config.resume, folder=None)), folder
    record = RunRecord.load(folder)
    before = _stored(folder)
    now = OmegaConf.to_container(composed, resolve=True) if asked is not None else dataclasses.asdict(config)
    now = {str(key): value for key, value in dict(now).items() if key != "hydra"}
    if config.phases:  # as they are kept, with what they did not name
        now |= {key: dataclasses.asdict(config)[key] for key in ("epochs", "phases")}
    wanted = _leaves(now)
    keys = list(wanted) if asked is None else [key for key in wanted if _is_asked(key, asked)]
    if isinstance(config.batch, AutoBatchConfig):  # what it found is in the stored configuration
        keys = [key for key in keys if not _below(key, ("batch",))]
    known = _leaves(before)
    free = (*FREE, *config.resume.allow)
    if config.phases and "phases" in keys:  # which say how many epochs there are
        keys = list(dict.fromkeys([*keys, "epochs"]))
        free = (*free, "epochs") if "phases" in free else free
    changed = [key for key in keys if known.get(key, wanted[key]) != wanted[key] or key not in known]
    refused = [key for key in changed if not _below(key, free)]
    if refused:
        raise _changed(folder, refused, known, wanted)
    if record.data["status"] == "finished" and not any(_below(key, config.resume.allow) for key in changed):
        more = "phases=[...] resume.allow=[phases]" if before.get("phases") else "epochs=N resume.allow=[epochs]"
        raise Finished(f"{folder} is finished; nothing is left to do.", f"For more epochs: {more}.")
    merged = _merged(before, now, keys, free) | {key: now[key] for key in OF_THE_PROCESS if key in now}
    merged["resume"] = {"folder": str(folder), "allow": list(config.resume.allow)}
    return check(OmegaConf.create(merged)), folder


@contextlib.contextmanager
def one_process(folder: Path) -> Iterator[None]:
    """Inside, no other process works on the run in `folder`.

    Raises:
        ConfigError: another one does.
    """
    lock = FileLock(folder / LOCK_NAME)
    if not lock.take(exclusive=True):
        lock.release()
        raise ConfigError(
            f"Another process is working on the run in {folder}.", "Wait for it, or end it, before the run can go on."
        )
    try:
        yield
    finally:
        lock.release()


def _folder(asked: str, run_dir: Path | None) -> Path:
    if asked == RESUME_AUTO:
        if run_dir is None:
            raise ConfigError("resume=auto does not say which run.", "Give hydra.run.dir=PATH as well.")
        return run_dir
    folder = Path(asked)
    if run_dir is not None and run_dir != folder:
        raise ConfigError(
            f"hydra.run.dir={run_dir} is another folder than resume={folder}.",
            "A run goes on in its own folder: leave hydra.run.dir out, or give resume=auto.",
        )
    return folder


def _stored(folder: Path) -> dict[str, Any]:
    path = folder / CONFIG_NAME
    try:
        stored = OmegaConf.to_container(OmegaConf.create(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise ConfigError(f"There is no {path}.", "That run ended before it began: start it anew.") from None
    except Exception as error:  # whatever YAML and OmegaConf raise for bytes that are no configuration
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ConfigError(f"{path} cannot be read: {reason}.", "Restore it.") from error
    if not isinstance(stored, dict):
        raise ConfigError(f"{path} is not the configuration of a run.", "Restore it.")
    return {str(key): value for key, value in stored.items()}


def _leaves(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    leaves: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            leaves |= _leaves(value, f"{prefix}{key}.")
        else:
            leaves[f"{prefix}{key}"] = value
    return leaves


def _below(key: str, owners: Sequence[str]) -> bool:
    return any(key == owner or key.startswith(f"{owner}.") for owner in owners)


def _is_asked(key: str, overrides: Sequence[str]) -> bool:
    names = [text.partition("=")[0].lstrip("+~").partition("@")[0] for text in overrides]
    # An experiment sets keys all over the configuration.
    return "experiment" in names or _below(key, names)


def _merged(before: dict[str, Any], now: dict[str, Any], keys: Sequence[str], free: Sequence[str]) -> dict[str, Any]:
    """The stored configuration with the values of `keys` that are free to change."""
    merged = OmegaConf.create(before)
    for key in keys:
        if _below(key, free):
            OmegaConf.update(merged, key, OmegaConf.select(OmegaConf.create(now), key), force_add=True)
    plain = OmegaConf.to_container(merged)
    assert isinstance(plain, dict)
    # Another choice of a group has other keys: the whole group is the new one.
    for group in {key.partition(".")[0] for key in keys} & SCHEMAS.keys():
        name = CHOICE_KEY[group]
        if _below(f"{group}.{name}", free) and before.get(group, {}).get(name) != now[group].get(name):
            plain[group] = now[group]
    return {str(key): value for key, value in plain.items()}


def _changed(folder: Path, keys: list[str], before: dict[str, Any], now: dict[str, Any]) -> ConfigError:
    shown = ", ".join(f"{key}={now[key]} (was {before.get(key, 'not there')})" for key in keys[:6])
    more = f" and {len(keys) - 6} more" if len(keys) > 6 else ""
    return ConfigError(
        f"The run in {folder} was begun with another configuration: {shown}{more}.",
        f"Leave them out, or start a new run. To go on all the same: resume.allow=[{','.join(keys[:6])}].",
    )
