"""What tells the code that runs: its commit, and what is not committed, as a file in the run folder."""

import os
import subprocess
import tempfile
from pathlib import Path

from manyfit.errors import TrainingError
from manyfit.files import write_atomically
from manyfit.masking import mask_text

DIFF_NAME = "git.diff"
MOST_BYTES = 1_000_000
MOST_NEW_BYTES = 100_000
"""Of one file that git doesn't know: what is larger is data."""
_SECONDS = 20


def write_diff(run_folder: Path, *, attempt: int = 1, source: Path | None = None) -> Path | None:
    """Write `git.diff` (`git.2.diff` in a second attempt), the difference of the code from its commit; None of none.

    New files are in it as well, unless they are large or ignored. It is cut after a million bytes, and says so; secrets
    are masked, so that it may not apply where it holds one.

    Args:
        source: A folder of the repository; this package's by default.
    """
    text = _difference(source or Path(__file__).resolve().parent)
    if not text:
        return None
    content = mask_text(text)
    if len(content.encode()) > MOST_BYTES:
        content = content.encode()[:MOST_BYTES].decode("utf-8", "ignore")
        content = f"{content.rpartition(chr(10))[0]}\n\nmanyfit: cut here, {len(text.encode()):,} bytes in all\n"
    path = run_folder / (DIFF_NAME if attempt == 1 else f"git.{attempt}.diff")
    try:
        write_atomically(path, content)
    except TrainingError:
        return None  # it must not cost a run; what really has no room is told by whoever needs it
    return path


def _difference(source: Path) -> str:
    # A git hook sets GIT_DIR and the like, which would name another repository.
    surroundings = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}

    def ask(*arguments: str, **more: str) -> bytes:
        words = ["git", "-c", "core.quotepath=off", "-C", str(root), *arguments]
        return subprocess.run(words, env=surroundings | more, capture_output=True, timeout=_SECONDS, check=True).stdout

    root = source
    try:
        if not ask("ls-files", "."):  # an installed copy inside somebody else's repository
            return ""
        root = Path(os.fsdecode(ask("rev-parse", "--show-toplevel")).strip())
        new = [os.fsdecode(name) for name in ask("ls-files", "-z", "-o", "--exclude-standard").split(b"\0") if name]
        small = [name for name in new if _size(root / name) <= MOST_NEW_BYTES]
        with tempfile.TemporaryDirectory() as folder:
            # An index of our own, so that the user's knows nothing of it.
            index = {"GIT_INDEX_FILE": str(Path(folder) / "index")}
            ask("read-tree", "HEAD", **index)
            if small:
                ask("add", "--intent-to-add", "--", *small[:500], **index)
            plain = ("--no-color", "--no-ext-diff", "--no-textconv")
            return ask("diff", *plain, "HEAD", **index).decode("utf-8", "replace")
    except (OSError, subprocess.SubprocessError):
        return ""


def _size(path: Path) -> float:
    try:
        return path.stat().st_size if path.is_file() and not path.is_symlink() else float("inf")
    except OSError:
        return float("inf")
