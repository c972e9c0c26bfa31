"""The plan of the house: who imports whom, who may import TensorFlow, what scripts and conf/ look like."""

import ast
import dataclasses
import doctest
import importlib
import importlib.metadata
import subprocess
import sys
from functools import cache

import pytest
from omegaconf import OmegaConf

from manyfit.command import repository_root
from manyfit.config import CHOICE_KEY, SCHEMAS, RunConfig

ROOT = repository_root()
SOURCE = ROOT / "src"
PACKAGE = SOURCE / "manyfit"
HEAVY = {"tensorflow", "keras", "tensorflow_datasets"}
LIGHT = (
    "schema",
    "config",
    "batch",
    "record",
    "schedule",
    "phases",
    "errors",
    "files",
    "overrides",
    "command",
    "console",
    "report",
    "processes",
    "study",
    "points",
    "launcher",
    "submitted",
    "submitted_job",
    "slurm",
    "slurm_hosts",
    "ablation",
    "batch_search",
    "batch_child",
    "scaling",
    "scaling_plan",
    "scaling_report",
    "scaling_workers",
    "tpu_address",
    "wandb_file",
    "wandb_segments",
    "masking",
    "script",
    "code_state",
    "trained_run",
    "export_names",
    "show",
    "system",
    "killed",
    "multirun",
    "sweep_arguments",
    "sweep_check",
    "sweep_command",
    "sweep_file",
    "sweep_local",
    "sweep_report",
    "sweep_search",
    "sweep_structure",
    "sweep_run",
    "verbs",
)
"""The modules that answer in about a second: neither they nor what they import may import TensorFlow."""

RANKS = {
    **dict.fromkeys(("errors", "files", "processes", "schema", "config", "batch", "schedule", "record"), 0),
    "masking": 0,
    **dict.fromkeys(("evaluation", "fit", "self_check", "study", "ablation", "batch_probe"), 2),
    **dict.fromkeys(("scaling", "scaling_plan", "scaling_report", "scaling_workers"), 2),
    **dict.fromkeys(("evaluation_data", "prediction", "prediction_workers", "explain", "export"), 2),
    "learning_rate_range": 2,
    **dict.fromkeys(("prediction_command", "export_command", "evaluation_command"), 3),
    **dict.fromkeys(("sweep_local", "sweep_run", "submitted", "submitted_job"), 2),
    **dict.fromkeys(("command", "overrides", "multirun", "sweep_check", "sweep_command"), 3),
    **dict.fromkeys(("verbs", ""), 3),
}
"""Imports point to the same rank or a lower one: 0 what was asked and what happened, 1 (the rest) the parts of a
run, 2 what puts them in order, 3 how scripts call it."""

SCRIPTS = sorted(SOURCE.glob("*.py"))
CHOICES = [(group, choice) for group, choices in SCHEMAS.items() for choice in choices]


@cache
def modules():
    """Every module of the package by its name below `manyfit`, the package itself as ''."""
    found = {}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def imports(name):
    """All that a module imports, anywhere in it: dotted names, those of the package in full."""
    path = modules()[name]
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                inside = ["manyfit", *name.split(".")] if name else ["manyfit"]
                inside = inside if path.name == "__init__.py" else inside[:-1]
                base = ".".join([*inside[: len(inside) - node.level + 1], *base.split(".")]).rstrip(".")
            found |= {base, *(f"{base}.{alias.name}" for alias in node.names)}
    return found


def inner_imports(name):
    """The modules of the package that a module imports, by their names below `manyfit`; a package only where a name
    of its own is meant."""
    named = {other.removeprefix("manyfit.") for other in imports(name) if other.startswith("manyfit.")}
    found = {other for other in named if other in modules()} - {name}
    below = {other.rpartition(".")[0] for other in found}
    return {other for other in found if other not in below or modules()[other].name != "__init__.py"}


def reached(*names, packages=True):
    """The modules and all that they import in the end, with or without the packages around each."""
    seen, waiting = set(), list(names)
    while waiting:
        current = waiting.pop()
        if current not in seen:
            seen.add(current)
            waiting += inner_imports(current)
            waiting += [current.rpartition(".")[0]] if packages and "." in current else []
    return seen


def is_heavy(name):
    return any({other.partition(".")[0] for other in imports(module)} & HEAVY for module in reached(name))


def light_modules():
    return [name for name in modules() if name.partition(".")[0] in LIGHT]


@pytest.mark.parametrize("name", sorted(light_modules()))
def test_a_light_module_reaches_no_tensorflow(name):
    for module in reached(name):
        roots = {other.partition(".")[0] for other in imports(module)}
        assert not roots & HEAVY, f"manyfit.{name} imports manyfit.{module}, which imports {roots & HEAVY}"


def test_importing_the_light_half_loads_no_tensorflow():
    names = ", ".join(f"manyfit.{name}" for name in sorted(light_modules()))
    code = f"import sys, {names}; print(sorted(set(sys.modules) & {HEAVY | {'wandb'}!r}))"
    environ = {"PYTHONPATH": str(SOURCE), "PATH": ""}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.stderr) == ("[]\n", "")


@pytest.mark.parametrize("name", sorted(modules()))
def test_imports_point_one_way(name):
    def rank(module):
        return RANKS.get(module.partition(".")[0], 1)

    for other in inner_imports(name):
        assert rank(other) <= rank(name), f"manyfit.{name} imports manyfit.{other}"
    assert name not in reached(*inner_imports(name), packages=False), f"manyfit.{name} imports itself in the end"


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_a_script_is_a_table_of_contents(script):
    assert len(script.read_text().splitlines()) <= 65
    tree = ast.parse(script.read_text())
    assert ast.get_docstring(tree)
    assert any(isinstance(node, ast.FunctionDef) and node.name == "main" for node in tree.body)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_a_script_hides_no_module(script):
    """src/ is first on sys.path: `import inspect` there must never find a script."""
    installed = set(importlib.metadata.packages_distributions()) - {"manyfit"}
    assert script.stem not in set(sys.stdlib_module_names) | installed


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_every_module_says_what_it_owns(path):
    assert ast.get_docstring(ast.parse(path.read_text()))


def as_plain(schema, choice, group):
    """The values of a choice's dataclass where only its own name is given."""
    values = {CHOICE_KEY[group]: choice}
    if choice == "application":
        values = {}  # its name is the network's, a key of its own
    return dataclasses.asdict(schema(**values, **({"factory": "a:b"} if choice == "module" else {})))


@pytest.mark.parametrize(("group", "choice"), CHOICES)
def test_a_choice_and_its_dataclass_agree(group, choice):
    written = OmegaConf.to_container(OmegaConf.load(ROOT / "conf" / group / f"{choice}.yaml"))
    assert isinstance(written, dict)
    expected = as_plain(SCHEMAS[group][choice], choice, group)
    if choice == "module":
        assert written.pop("factory") == "???"
        del expected["factory"]
    assert list(written) == sorted(expected, key=list(written).index)
    assert written == expected


def test_every_file_in_conf_is_a_choice():
    groups = {path.name for path in (ROOT / "conf").iterdir() if path.is_dir()} - {"hydra", "experiment"}
    assert groups == set(SCHEMAS)
    written = {(path.parent.name, path.stem) for group in groups for path in (ROOT / "conf" / group).glob("*")}
    assert written == set(CHOICES)


def test_the_root_of_conf_and_its_dataclass_agree():
    written = OmegaConf.to_container(OmegaConf.load(ROOT / "conf/config.yaml"))
    assert isinstance(written, dict)
    defaults = [next(iter(entry.items())) for entry in written.pop("defaults") if isinstance(entry, dict)]
    assert {group for group, _ in defaults} == {*SCHEMAS, "hydra", "experiment"}
    plain = dataclasses.asdict(RunConfig())
    assert written == {key: value for key, value in plain.items() if key not in SCHEMAS}
    for group, choice in defaults:
        if group in SCHEMAS:
            assert getattr(RunConfig(), group) == SCHEMAS[group][choice](**{CHOICE_KEY[group]: choice})


def with_doctests(heavy):
    named = sorted(name for name, path in modules().items() if ">>> " in path.read_text())
    return [name for name in named if is_heavy(name) == heavy]


@pytest.mark.parametrize(
    "name", [*with_doctests(False), *(pytest.param(name, marks=pytest.mark.slow) for name in with_doctests(True))]
)
def test_the_examples_in_docstrings_run(name):
    failed, tried = doctest.testmod(importlib.import_module(f"manyfit.{name}"))
    assert tried and not failed


def test_batch_and_schedule_show_their_numbers():
    assert {"batch", "schedule"} <= set(with_doctests(False))
