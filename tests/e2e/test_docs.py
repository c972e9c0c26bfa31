"""docs/: its commands run, its links lead somewhere, its messages are those of the code.

A command is run as it is written, in a folder with `src`, `conf` and `sweeps` of the repository, a few pictures and the
Python files of the page; `uv` is a stand-in that starts this environment's Python: the real one may ask a registry.
A comment `<!-- test: composed, WHY -->` before a block says that its commands are only composed and checked, as
`--cfg job` does (of scripts with plain flags: that the flags exist); `<!-- test: not run, WHY -->` that they are not
run; where these start a script of ours, they are composed as well.
"""

import ast
import os
import re
import shlex
import stat
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from manyfit import multirun, scaling
from manyfit.command import repository_root
from manyfit.config import check
from manyfit.overrides import launcher_overrides, long_form
from manyfit.record import RunRecord
from manyfit.scaling_plan import make_plan

ROOT = repository_root()
PAGES = sorted((ROOT / "docs").glob("*.md"))
MARKER = re.compile(r"<!-- test: (composed|not run), (.+) -->")
PLAIN = ("predict.py", "export.py", "evaluate.py", "show.py", "compare.py", "sweep.py")
"""The scripts that take flags and no overrides alone."""
OWN_FLAGS = {"find_lr.py": 2, "ablate.py": 0, "scale.py": 0, "check.py": 0, "train.py": 0}


@dataclass(frozen=True)
class Command:
    """A line of a page, and how it is tested: `run`, `composed` or `not run`."""

    page: str
    text: str
    how: str
    why: str = ""

    @property
    def words(self):
        """Without variables before it and without uv; the script or program is the first."""
        words = shlex.split(self.text, comments=True)
        while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
            words.pop(0)
        if words[:2] == ["uv", "run"]:
            words = words[2:]
            while words and words[0].startswith("--"):
                words = words[2:] if words[0] == "--extra" else words[1:]
        return words

    @property
    def script(self):
        """The name of the script in src/, if it is one."""
        return Path(self.words[0]).name if self.words and self.words[0].startswith("src/") else None


def blocks(page):
    """The fenced blocks of a page: language, lines, and the two lines of text before."""
    lines = page.read_text().splitlines()
    before, index = ["", ""], 0
    while index < len(lines):
        if lines[index].startswith("```"):
            end = lines.index("```", index + 1)
            yield lines[index].removeprefix("```").strip(), lines[index + 1 : end], before
            index = end
        elif lines[index].strip():
            before = [before[1], lines[index]]
        index += 1


def commands_of(page):
    found = []
    for language, lines, before in blocks(page):
        if language not in ("sh", "bash"):
            continue
        marker = MARKER.fullmatch(before[1])
        how, why = marker.groups() if marker else ("run", "")
        text = "\n".join(lines).replace("\\\n", " ")
        found += [Command(page.name, line, how, why) for line in text.splitlines() if line.split("#")[0].strip()]
    return found


COMMANDS = [command for page in PAGES for command in commands_of(page)]
OURS = [command for command in COMMANDS if command.script]


def test_there_are_commands_and_most_are_run():
    assert len(OURS) >= 30
    assert sum(command.how == "run" for command in COMMANDS) >= 10
    assert {"quickstart.md", "your-data.md", "your-model.md", "several-gpus.md", "sweeps.md", "offline.md"} <= {
        command.page for command in COMMANDS if command.how == "run"
    }


@pytest.mark.parametrize("command", OURS, ids=lambda command: f"{command.page}: {command.text[:70]}")
def test_a_command_composes(command, monkeypatch):
    monkeypatch.chdir(ROOT)
    script, words = ROOT / "src" / command.script, command.words[1:]
    assert script.exists()
    if command.script in PLAIN:
        flags = [word.partition("=")[0] for word in words if word.startswith("-")]
        assert not [flag for flag in flags if not re.search(rf"{flag}[ ,\n]", help_of(command.script))]
        return
    flags = [word for word in words if word.startswith("-")]
    overrides = [long_form(word) for word in words if not word.startswith("-")]
    if flags in (["--help"], ["--version"]):
        return
    with multirun.composing():
        if command.script == "scale.py":
            own, overrides = scaling.take_words(overrides)
            assert make_plan(own, check(multirun.composed(overrides)), overrides).points()
        elif flags == ["-m"]:
            _, overrides = launcher_overrides(overrides)
            assert multirun._planned(overrides, "config")[1]
        else:
            assert not flags
            check(multirun.composed(overrides))


@cache
def help_of(script):
    done = subprocess.run([sys.executable, ROOT / "src" / script, "--help"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """What a reader has: the repository, some photos, and the Python files that the pages show."""
    folder = tmp_path_factory.mktemp("docs")
    for name in ("src", "conf", "sweeps"):
        (folder / name).symlink_to(ROOT / name)
    for split, num_files in (("train", 12), ("validation", 4)):
        for grey, name in ((10, "cats"), (150, "dogs")):
            (folder / "photos" / split / name).mkdir(parents=True)
            for index in range(num_files):
                levels = np.random.default_rng(grey + index).integers(grey, grey + 60, (40, 48, 3)).astype(np.uint8)
                Image.fromarray(levels).save(folder / "photos" / split / name / f"{index}.jpg")
    for page in PAGES:
        for language, lines, before in blocks(page):
            if language == "python" and (
                name := re.search(r"`(\w+\.py)`", before[1]) or re.search(r"`(\w+\.py)`", before[0])
            ):
                (folder / name[1]).write_text("\n".join(lines) + "\n")
    uv = folder / "bin" / "uv"
    uv.parent.mkdir()
    uv.write_text(
        f'#!/bin/sh\n[ "$1" = run ] || exit 99\nshift\ncase "$1" in *.py) exec {sys.executable} "$@";; '
        f'*) exec {Path(sys.executable).parent}/"$@";; esac\n'
    )
    uv.chmod(uv.stat().st_mode | stat.S_IXUSR)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("page", sorted({command.page for command in COMMANDS if command.how == "run"}))
def test_the_commands_of_a_page_run(page, folder):
    environment = {**os.environ, "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"}
    environment["MANYFIT_OUTPUTS"] = str(folder / "outputs")
    for command in COMMANDS:
        if command.page == page and command.how == "run":
            done = subprocess.run(
                ["sh", "-c", command.text], cwd=folder, env=environment, capture_output=True, text=True, timeout=400
            )
            assert done.returncode == 0, f"{command.text}\n{done.stdout}\n{done.stderr}"
    if page in CLAIMS:
        CLAIMS[page](folder / "outputs")


# --- what a page says of the runs that it makes -----------------------------------------------------------------------


def losses(run):
    return [row["val_loss"] for row in RunRecord.load(run).data["epochs"]]


def both_runs_have_the_same_losses(outputs):
    assert losses(outputs / "two") == pytest.approx(losses(outputs / "one"), abs=1e-4)
    assert len((outputs.parent / "labels.csv").read_text().splitlines()) == 1 + 8
    assert "Plotly" in (outputs.parent / "comparison.html").read_text()


def the_trace_is_where_the_page_says(outputs):
    section = RunRecord.load(outputs / "traced").data["profile"]
    assert (section["epoch"], section["first_step"], section["last_step"]) == (1, 10, 20)
    assert any("Conv2D" in one["operation"] for one in section["operations"])
    assert (outputs / "traced/profile/trace.json.gz").exists() and (outputs / "traced/profile/plugins").is_dir()


def no_upload_was_tried(outputs):
    record = RunRecord.load(outputs / "offline").data
    assert record["tracker"]["mode"] == "offline" and "wandb sync" in record["tracker"]["sync_command"]


def the_others_have_their_logs(outputs):
    assert RunRecord.load(outputs / "workers").data["strategy"]["num_replicas"] == 2
    assert any((outputs / "workers/workers").iterdir())


CLAIMS = {
    "quickstart.md": both_runs_have_the_same_losses,
    "several-gpus.md": the_trace_is_where_the_page_says,
    "offline.md": no_upload_was_tried,
    "several-workers.md": the_others_have_their_logs,
}


# --- what else a page says --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", [*PAGES, ROOT / "README.md"], ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
        assert target.startswith("https://") or (page.parent / target).exists(), target


def test_every_page_is_in_the_index():
    index = (ROOT / "docs/README.md").read_text()
    assert [page.name for page in PAGES if page.name != "README.md" and f"({page.name})" not in index] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_in_a_page_can_be_read(page):
    for language, lines, _ in blocks(page):
        if language == "python":
            ast.parse("\n".join(lines))


def template(node):
    """The text of an expression, with a null character for each value that is filled in; None for anything else."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(part.value if isinstance(part, ast.Constant) else "\0" for part in node.values)
    return None


@pytest.fixture(scope="module")
def templates():
    found = set()
    for path in (ROOT / "src/manyfit").rglob("*.py"):
        found |= {text for node in ast.walk(ast.parse(path.read_text())) if (text := template(node))}
    return found


def quoted_messages(text):
    return re.findall(r"^\*\*`([^`]+)`\*\*", text, re.MULTILINE)


def is_said(message, templates):
    """Whether some text of the code says a message, whose `...` stand for anything."""
    pattern = re.compile(".*".join(re.escape(part) for part in message.split("...")), re.DOTALL)
    return any(pattern.fullmatch(text) for text in templates)


@pytest.mark.parametrize(("page", "count"), [("troubleshooting.md", 20), ("slurm.md", 7)])
def test_every_message_in_a_page_is_one_of_the_code(templates, page, count):
    messages = quoted_messages((ROOT / "docs" / page).read_text())
    assert len(messages) >= count
    assert [message for message in messages if not is_said(message, templates)] == []


def test_a_message_that_the_code_does_not_say_is_found(templates):
    assert is_said("batch.global_batch_size=... does not split evenly over ... replicas.", templates)
    assert not is_said("batch.global_batch_size=... splits evenly over ... replicas.", templates)
    assert quoted_messages("**`One.`** and **`not at the start`**\n**`Two ...`** text") == ["One.", "Two ..."]
