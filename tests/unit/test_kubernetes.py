"""deploy/kubernetes/tfjob.yaml: a TFJob by its schema, whose command does what the operator expects of exit codes."""

import copy
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from manyfit import cluster
from manyfit.command import repository_root
from manyfit.config import MultiWorkerConfig, check
from manyfit.multirun import composed, composing

jsonschema = pytest.importorskip("jsonschema")

SCHEMA = json.loads(Path(__file__).parents[1].joinpath("tfjob_schema.json").read_text())
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)

STAND_IN = """#!{python}
import json, os, signal, sys, time
def stop(*_):
    print("saved", flush=True)
    sys.exit(143)
signal.signal(signal.SIGTERM, stop)
print(json.dumps(sys.argv[1:]), flush=True)
time.sleep(float(os.environ.get("SECONDS_OF_WORK", 0)))
sys.exit(int(os.environ["CODE"]))
"""


@pytest.fixture
def job():
    return yaml.safe_load((repository_root() / "deploy/kubernetes/tfjob.yaml").read_text())


@pytest.fixture
def container(job):
    [found] = job["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"]["containers"]
    return found


def test_it_is_a_tfjob(job):
    assert [error.message for error in VALIDATOR.iter_errors(job)] == []


@pytest.mark.parametrize(
    "change",
    [
        lambda job: job.update(kind="PyTorchJob"),
        lambda job: job["spec"].update(tfReplicaSpec={}),
        lambda job: job["spec"]["tfReplicaSpecs"].update(Workers=job["spec"]["tfReplicaSpecs"].pop("Worker")),
        lambda job: job["spec"]["tfReplicaSpecs"]["Worker"].update(replicas="2"),
        lambda job: job["spec"]["tfReplicaSpecs"]["Worker"].update(restartPolicy="onExit"),
        lambda job: job["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"].pop("containers"),
        lambda job: job["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0].update(env={"A": "b"}),
    ],
)
def test_the_schema_refuses_what_is_none(job, change):
    wrong = copy.deepcopy(job)
    change(wrong)
    assert list(VALIDATOR.iter_errors(wrong))


def test_what_the_operator_looks_for_is_there(job, container):
    """Its names (`tensorflow`, `tfjob-port`) are fixed in the operator; volumes have to be mounted by their names."""
    pod = job["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"]
    assert container["name"] == "tensorflow" and container["ports"][0]["name"] == "tfjob-port"
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
    assert job["spec"]["tfReplicaSpecs"]["Worker"]["restartPolicy"] == "ExitCode"


def test_what_it_asks_of_the_training_can_be_had(container):
    overrides = [word for word in container["args"][2:]]
    with composing():
        asked = check(composed(["resume.folder=auto" if word == "resume=auto" else word for word in overrides]))
    assert isinstance(asked.strategy, MultiWorkerConfig)
    told = {
        "cluster": {"worker": [f"manyfit-worker-{index}.ours.svc:2222" for index in range(2)]},
        "task": {"type": "worker", "index": 1},
        "environment": "cloud",
    }
    found = cluster.resolve(asked.strategy, {"TF_CONFIG": json.dumps(told)})  # as the operator writes it
    assert found is not None and (found.rank, found.num_workers, found.host(0)) == (1, 2, "manyfit-worker-0.ours.svc")


@pytest.fixture
def start(container, tmp_path):
    """`start(code)` -> the command of a pod, running, with a stand-in for the interpreter."""
    interpreter = tmp_path / ".venv/bin/python"
    interpreter.parent.mkdir(parents=True)
    interpreter.write_text(STAND_IN.format(python=sys.executable))
    interpreter.chmod(0o755)

    def run(code, seconds=0):
        return subprocess.Popen(
            [*container["command"], *container["args"]],
            cwd=tmp_path,
            env={**os.environ, "CODE": str(code), "SECONDS_OF_WORK": str(seconds)},
            stdout=subprocess.PIPE,
            text=True,
        )

    return run


@pytest.mark.parametrize(("code", "told"), [(0, 0), (1, 1), (2, 2), (75, 203), (137, 137)])
def test_only_what_may_be_tried_again_ends_with_a_code_from_128_on(start, container, code, told):
    process = start(code)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == told
    assert json.loads(out) == ["src/train.py", *container["args"][2:]]


def test_a_pod_that_is_told_to_end_lets_the_training_save(start):
    process = start(0, seconds=60)
    assert process.stdout.readline()
    began = time.monotonic()
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=30)
    assert (out, process.returncode) == ("saved\n", 143) and time.monotonic() - began < 30
