"""conf/experiment/: each file composes as its own command asks, and is headed by what it costs and should give."""

import re
import shlex

import pytest

from manyfit import multirun, scaling
from manyfit.command import repository_root
from manyfit.config import EMNIST_CLASSES, check
from manyfit.overrides import long_form
from manyfit.scaling_plan import make_plan

FILES = sorted((repository_root() / "conf/experiment").glob("*.yaml"))
PARTS = ("Costs", "Should give", "Last measured")
HARDWARE = re.compile(r"\d+ CPU cores|GPU|Tesla|A100|H100|H200|V100|T4|L4")


def heading(text):
    """The comment above a file's values: its first sentence, its commands, and its parts by their names."""
    lines = []
    for line in text.splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.removeprefix("#").removeprefix(" "))
    assert lines[0] == "@package _global_"
    title = lines[1]
    commands = [line.strip() for line in lines if re.match(r" {2}(uv run|python) ", line)]
    parts, name = {}, None
    for line in lines[2:]:
        if found := re.match(r"([A-Z][a-z ]+): (.+)", line):
            name = found[1]
            parts[name] = found[2]
        elif name and line.startswith("  "):
            parts[name] += " " + line.strip()
        else:
            name = None
    return title, commands, parts


def faults(text, stem):
    """What the heading of an experiment lacks."""
    title, commands, parts = heading(text)
    found = [] if len(title) > 20 and title[-1] in ".:" else ["a sentence that says what it is"]
    found += [] if any(f"experiment={stem}" in command.split() for command in commands) else ["its command"]
    found += [name for name in PARTS if len(parts.get(name, "")) < 10]
    measured = parts.get("Last measured", "")
    if not re.match(r"[Nn]ot measured", measured) and not (re.search(r"\d", measured) and HARDWARE.search(measured)):
        found.append("the figure last measured and on what, or 'not measured'")
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_experiment_is_headed_by_what_it_costs_and_gives(path):
    assert faults(path.read_text(), path.stem) == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_experiment_composes_by_its_own_commands(path):
    for command in heading(path.read_text())[1]:
        words = [long_form(word) for word in shlex.split(command) if word not in ("uv", "run", "python")]
        script, *words = words
        with multirun.composing():
            if script == "src/scale.py":
                own, words = scaling.take_words(words)
                assert make_plan(own, check(multirun.composed(words)), words).points()
            elif "-m" in words:
                jobs = multirun._expanded([word for word in words if word != "-m"])
                assert len(jobs) > 1 and all(check(multirun.composed(job)) for job, _ in jobs)
            else:
                assert script == "src/train.py"
                check(multirun.composed(words))


def test_the_known_recipes_are_there():
    wanted = {"cats_dogs_frozen", "cats_dogs_finetuned", "mnist_tutorial", "emnist", "flowers", "scaling_study"}
    assert wanted <= {path.stem for path in FILES}


def composed(*words):
    with multirun.composing():
        return check(multirun.composed(words))


def test_the_seed_experiments_are_what_their_write_ups_say():
    for name, trainable in (("cats_dogs_frozen", "none"), ("cats_dogs_finetuned", "all")):
        config = composed(f"experiment={name}")
        assert (config.epochs, config.batch.per_replica_batch_size, config.model.trainable) == (10, 16, trainable)
        assert (config.model.head.units, config.model.head.dropout) == (512, 0.5)
        # On four replicas the ramp goes from 1e-5 to 5e-5 a replica.
        highest = config.optimizer.learning_rate * 4
        assert (highest, highest * config.schedule.start_factor) == pytest.approx((2e-4, 1e-5))
        assert (config.schedule.ramp_up_epochs, config.schedule.decay) == (5, 0.8)
    tutorial = composed("experiment=mnist_tutorial")
    assert (tutorial.epochs, tutorial.batch.per_replica_batch_size) == (12, 64)
    assert (tutorial.optimizer.learning_rate, tutorial.schedule.boundaries) == (1e-3, [3, 7])


@pytest.mark.parametrize("variant", EMNIST_CLASSES)
def test_emnist_goes_by_its_variants(variant):
    assert composed("experiment=emnist", f"data.variant={variant}").data.variant == variant


@pytest.mark.parametrize(
    ("old", "new", "lacking"),
    [
        ("# Costs: much work.\n#", "#", ["Costs"]),
        ("experiment=one", "experiment=other", ["its command"]),
        ("not measured on anything", ".98 (best)", ["the figure last measured and on what, or 'not measured'"]),
        ("not measured on anything", ".98 on 2 CPU cores", []),
        ("", "", []),
    ],
)
def test_a_heading_that_lacks_something_is_found(old, new, lacking):
    text = (
        "# @package _global_\n# One experiment of many, in a sentence.\n#\n#   uv run src/train.py experiment=one\n#\n"
        "# Costs: much work.\n#   And more of it.\n# Should give: a good result.\n"
        "# Last measured: not measured on anything\nepochs: 3\n"
    )
    assert faults(text.replace(old, new), "one") == lacking
