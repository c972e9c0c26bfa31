"""The uncommitted changes of the code, as a file beside the record."""

import subprocess

import pytest

from manyfit.code_state import MOST_BYTES, MOST_NEW_BYTES, write_diff


def git(folder, *words):
    done = subprocess.run(["git", "-C", str(folder), *words], capture_output=True, text=True, check=True)
    return done.stdout


@pytest.fixture
def repository(tmp_path):
    folder = tmp_path / "repository"
    (folder / "src").mkdir(parents=True)
    git(folder, "init", "-q")
    (folder / "src/a.py").write_text("one = 1\n")
    (folder / ".gitignore").write_text("outputs\n")
    git(folder, "add", ".")
    git(folder, "-c", "user.name=n", "-c", "user.email=e", "commit", "-qm", "first")
    return folder


def test_changes_and_new_files_are_written_and_the_index_is_as_it_was(repository, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    assert write_diff(run, source=repository / "src") is None and list(run.iterdir()) == []
    (repository / "src/a.py").write_text("two = 2\napi_key = 'abcdefgh'\n")
    (repository / "new.py").write_text("three = 3\n")
    (repository / "data.bin").write_text("x" * (MOST_NEW_BYTES + 1))
    (repository / "outputs").write_text("ignored\n")
    before = git(repository, "status", "--porcelain")
    path = write_diff(run, source=repository / "src")
    assert path == run / "git.diff"
    text = path.read_text()
    assert "-one = 1\n+two = 2\n+api_key = '***'\n" in text and "+three = 3\n" in text
    assert "data.bin" not in text and "ignored" not in text
    assert git(repository, "status", "--porcelain") == before
    assert write_diff(run, attempt=2, source=repository / "src") == run / "git.2.diff"


def test_a_long_difference_is_cut_and_says_so(repository, tmp_path):
    (repository / "src/a.py").write_text("".join(f"line {number}\n" for number in range(200_000)))
    path = write_diff(tmp_path, source=repository / "src")
    assert path is not None
    text = path.read_text()
    assert len(text) < MOST_BYTES + 100 and text.splitlines()[-1].startswith("manyfit: cut here, ")


def test_what_git_does_not_track_has_none(repository, tmp_path):
    (repository / "elsewhere").mkdir()
    assert write_diff(tmp_path, source=tmp_path) is None
    assert write_diff(tmp_path, source=repository / "elsewhere") is None
