"""The pictures that a command line names: files, folders and patterns, in a fixed order."""

import glob
import os
from collections.abc import Iterator, Sequence

from manyfit.data.listing import reason_by_name
from manyfit.errors import ConfigError


def find_pictures(asked: Sequence[str]) -> list[str]:
    """The files behind what was asked, each once: files as given, folders with all below them, patterns expanded.

    Nothing is opened. In folders, hidden files and those of the operating system are no pictures; links to folders are
    not followed.

    Args:
        asked: Paths of files or folders, or patterns such as `photos/**/*.jpg`.

    Raises:
        ConfigError: one of them is not there or matches nothing, or there is no file at all.
    """
    found: dict[str, None] = {}
    for one in asked:
        before = len(found)
        known = [path for path in _files_of(one) if not _is_noise(path) or path == one]
        found.update(dict.fromkeys(known))
        if not known and len(found) == before:
            raise _nothing(one)
    return list(found)


def _files_of(asked: str) -> Iterator[str]:
    path = os.path.expanduser(asked)
    if os.path.isdir(path):
        yield from _below(path)
    elif os.path.lexists(path):
        yield path
    elif glob.has_magic(path):
        for match in sorted(glob.iglob(path, recursive=True)):
            yield from _below(match) if os.path.isdir(match) else (match,)


def _below(folder: str) -> Iterator[str]:
    for here, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith((".", "__MACOSX")))
        for name in sorted(names):
            yield os.path.join(here, name)


def _is_noise(path: str) -> bool:
    return reason_by_name(os.path.basename(path)) is not None


def _nothing(asked: str) -> ConfigError:
    if os.path.isdir(os.path.expanduser(asked)):
        return ConfigError(
            f"The folder {asked} holds no file.", "Give files, folders that hold pictures, or a pattern."
        )
    if glob.has_magic(asked):
        return ConfigError(f"No file matches {asked}.", "Quote a pattern, and use ** for folders: 'photos/**/*.jpg'.")
    return ConfigError(f"{asked} does not exist.", "Give files, folders that hold pictures, or a pattern.")
