"""A scaling study over workers: its points, what it refuses, how Slurm starts them, and the words of its report."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import srun_stub
from manyfit import scaling_plan, scaling_workers
from manyfit.command import repository_root
from manyfit.config import BatchConfig, CostConfig, MultiWorkerConfig, RunConfig, StrategyConfig, TrackerConfig
from manyfit.errors import ConfigError
from manyfit.report.cost import cost_of
from manyfit.report.runs import Run
from manyfit.report.scaling_units import Unit
from manyfit.scaling import run_scaling, take_words
from manyfit.scaling_plan import make_plan
from manyfit.scaling_report import write_report

TRAIN = f"""
import os, sys
sys.path.insert(0, {str(repository_root() / "src")!r})
from pathlib import Path
from manyfit import slurm
from manyfit.record import RunRecord
asked = dict(text.split("=", 1) for text in sys.argv[1:])
folder, size = Path(asked["hydra.run.dir"]), int(asked["batch.global_batch_size"])
each = int(asked["strategy.replicas"])
cluster = slurm.from_environment(os.environ)
if cluster is not None and not cluster.is_chief:
    sys.exit(0)
local = range(int(asked.get("strategy.local_workers", 0)))
workers = cluster.workers if cluster else [f"127.0.0.1:{{20000 + rank}}" for rank in local]
count = each * len(workers)
folder.mkdir()
(folder / "config.yaml").write_text("precision: {{name: float32}}\\nepochs: 1\\n")
record = RunRecord.create(
    folder,
    batch={{"global_batch_size": size, "per_replica_batch_size": size // count, "gradient_accumulation": 1,
           "steps_per_epoch": 4, "padding_rows": 0}},
    strategy={{"num_replicas": count, "devices": [f"CPU:{{n}}" for n in range(each)], "num_workers": len(workers),
              "workers": list(workers)}},
    model={{"num_trainable_parameters": 1_000_000}},
    data={{"num_train": 4 * size, "fingerprint": "f"}},
    best={{"val_accuracy": 0.9}},
    timing={{"total_seconds": 36.0 / len(workers), "startup_seconds": 1.0}},
    throughput={{"images_per_second": 90.0 * len(workers) if len(workers) > 1 else 100.0}},
)
record.add_epoch({{"epoch": 1, "loss": 1.0, "val_loss": 1.0, "val_accuracy": 0.9, "train_seconds": 1.0}})
record.set_status("finished", exit_code=0)
"""

JOB = {"SLURM_JOB_ID": "17", "SLURM_JOB_NUM_NODES": "2"}
CPU = MultiWorkerConfig(device="cpu")


def plan(words=None, overrides=(), environ=None, **config):
    config = {"strategy": CPU, "tracker": TrackerConfig(), **config}
    return make_plan({"workers": "[1,2]", **(words or {})}, RunConfig(**config), list(overrides), environ or {})


def refused(*arguments, **keywords):
    with pytest.raises(ConfigError) as found:
        plan(*arguments, **keywords)
    return str(found.value)


@pytest.fixture
def gpus(monkeypatch):
    """Says how many GPUs this machine has."""

    def have(count):
        shares = [",".join(map(str, range(count)))] if count else [None]
        monkeypatch.setattr(scaling_workers, "gpu_shares", lambda *arguments: shares)
        monkeypatch.setattr(scaling_plan, "num_gpus", lambda: count or None)

    return have


# --- the points -------------------------------------------------------------------------------------------------------


def test_workers_need_a_strategy_of_several_processes_which_is_chosen_for_them():
    assert take_words(["workers=[1,2]", "epochs=2"])[1] == ["strategy=multi_worker", "epochs=2"]
    assert take_words(["workers=[1,2]", "strategy=mirrored"])[1] == ["strategy=mirrored"]
    assert "strategy=mirrored trains in one" in refused(strategy=StrategyConfig())


def test_a_point_is_a_training_with_that_many_processes_of_this_machine():
    found = plan({"workers": "[1,2,4]"}, ["strategy=multi_worker", "strategy.device=cpu", "data=mnist"])
    assert found.counts == (1, 2, 4) and found.unit == Unit("worker")
    assert [point.name for _, _, point in found.points()] == [f"workers-{n}_batch-128" for n in (4, 2, 1)]
    own = ("strategy.replicas=1", "strategy.local_workers=4", "batch.per_replica_batch_size=null")
    kept = ("strategy=multi_worker", "strategy.device=cpu", "data=mnist", "probe=true")
    assert found.points()[0][2].overrides == (*kept, *own, "batch.global_batch_size=128", "seed=0")
    assert found.says[0] == "Numbers of workers: 1, 2, 4; each has 1 replica and is a process of this machine."


def test_each_worker_keeps_its_replicas_and_the_counts_are_workers_times_replicas():
    found = plan({"mode": "weak"}, ["strategy.replicas=3"], strategy=MultiWorkerConfig(device="cpu", replicas=3))
    assert found.counts == (3, 6) and found.unit.words(6) == "2 workers with 6 replicas"
    assert found.sizes == {("weak", 3): 96, ("weak", 6): 192}
    assert found.points()[0][2].overrides[1:3] == ("strategy.replicas=3", "strategy.local_workers=2")


def test_the_gpus_of_the_machine_are_shared_out_so_that_each_worker_has_as_many_at_every_point(gpus):
    gpus(4)
    found = plan(strategy=MultiWorkerConfig())
    assert found.counts == (2, 4) and "each has 2 replicas" in found.says[0]
    assert "found 4.\nGive 'workers=[1,2,4]'" in refused({"workers": "[1,2,4,8]"}, strategy=MultiWorkerConfig())
    assert "with 3 GPUs each asks for 6" in refused(strategy=MultiWorkerConfig(replicas=3))
    chosen = plan(strategy=MultiWorkerConfig(devices=[1, 0]))
    assert chosen.points()[0][2].overrides[1:3] == ("strategy.devices=[1,0]", "strategy.local_workers=2")
    gpus(0)
    assert plan(strategy=MultiWorkerConfig()).counts == (1, 2)


@pytest.mark.parametrize(
    ("words", "config", "environ", "said"),
    [
        ({"replicas": "[1,2]"}, {}, {}, "counts the replicas of one process"),
        (
            {"workers": "[1,x]"},
            {},
            {},
            "workers=[1,x] is no list of worker counts.\nGive for example ",
        ),
        ({"workers": "[2]"}, {}, {}, "is one count: a study compares several.\nGive 'workers=[1,2]'."),
        ({}, {"strategy": MultiWorkerConfig(local_workers=3)}, {}, "Give 'workers=[1,3]'."),
        ({}, {"jit_compile": True}, {}, "jit_compile=true works on one replica alone"),
        ({"workers": "[1,3]"}, {"batch": BatchConfig(global_batch_size=8)}, {}, "Give batch.global_batch_size=6 or 9."),
        ({}, {}, {"TF_CONFIG": "{}"}, "describes one cluster"),
        ({"workers": "[1,4]"}, {}, JOB, "asks for 4 nodes, but Slurm job 17 has 2.\nGive numbers up to 2"),
        ({}, {}, {**JOB, "SLURM_STEP_ID": "0"}, "without srun"),
        ({}, {}, {**JOB, "PATH": ""}, "no srun on the PATH"),
        ({"microseconds": "5"}, {}, {}, "Give gigabits=N as well"),
        ({"gigabits": "fast"}, {}, {}, "gigabits=fast is no number"),
        ({"gigabits": "0"}, {}, {}, "gigabits=0.0 is out of range"),
        ({"gigabits": "nan"}, {}, {}, "gigabits=nan is out of range"),
    ],
)
def test_mistakes_are_refused_before_anything_runs(words, config, environ, said):
    assert said in refused(words, environ=environ, **config)


def test_a_strategy_of_several_processes_needs_their_numbers():
    with pytest.raises(ConfigError, match="needs the numbers of workers"):
        make_plan({}, RunConfig(strategy=CPU), [], {})


# --- Slurm ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [{}, {"SLURM_STEP_ID": "0"}])
def test_in_a_job_of_one_node_the_workers_are_processes_of_it(step):
    workers = plan(environ={"SLURM_JOB_ID": "17", "SLURM_JOB_NUM_NODES": "1", **step}).workers
    assert workers is not None and not workers.by_slurm


def in_slurm(folder, monkeypatch, **words):
    """A finished study in a job of two nodes, whose `srun` is a stand-in; what was asked of that."""
    log = folder / "srun.txt"
    path = f"{srun_stub.put(folder / 'bin', log)}:/usr/bin:/bin"
    environ = {**JOB, "PATH": path, "SLURM_CPUS_PER_TASK": "3"}
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(
        scaling_workers,
        "train_command",
        lambda point, run: [sys.executable, "-c", TRAIN, *point.overrides, f"hydra.run.dir={run}"],
    )
    config = RunConfig(strategy=CPU, tracker=TrackerConfig(), cost=CostConfig(price_per_hour=10.0))
    asked = make_plan({"workers": "[1,2]", **words}, config, ["data=mnist"], environ).of_folder(folder / "study")
    results = run_scaling(asked, folder / "study")
    return asked, results, write_report(folder / "study", asked, results, config), log.read_text().splitlines()


def test_in_a_job_of_several_nodes_each_point_is_a_step_of_as_many(tmp_path, monkeypatch):
    asked, results, done, options = in_slurm(tmp_path, monkeypatch, gigabits="100")
    assert [result.error for result in results] == [None, None]
    assert options == [
        f"--nodes={n} --ntasks={n} --ntasks-per-node=1 --kill-on-bad-exit=0 --cpus-per-task=3" for n in (2, 1)
    ]
    assert not any("local_workers" in word for _, _, point in asked.points() for word in point.overrides)
    written = json.loads((tmp_path / "study" / "scaling.json").read_text())
    assert written["counts"] == "workers" and written["across_machines"] and not written["measures_gpus"]
    assert [point["num_workers"] for point in written["points"]] == [1, 2]
    # Two machines: the sentence is an answer and no rehearsal, and each machine has its price.
    assert done.advice.sentence.startswith("More workers pay: 2 workers run at 1.80x the speed of 1 (90% efficient)")
    assert [point["cost"] for point in written["points"]] == pytest.approx([10 / 100, 20 / 200])
    assert "measure no" not in done.markdown and "| workers | batch |" in done.markdown


def test_an_outlook_starts_from_the_one_worker_and_is_called_a_prediction(tmp_path, monkeypatch):
    _, _, done, _ = in_slurm(tmp_path, monkeypatch, gigabits="100", microseconds="20")
    outlook = done.found.outlook
    assert outlook is not None
    # 64 examples at 100 images/s: 0.64 s. 1e6 gradients of 4 bytes: 2 x 7/8 x 4 MB at 12.5 GB/s, 28 messages of 20 µs.
    assert outlook.step_seconds == pytest.approx(0.64)
    eight = outlook.predictions[0]
    assert (eight.num_machines, eight.sum_seconds) == (8, pytest.approx(28 * 20e-6 + 7e6 / 12.5e9))
    assert eight.efficiency == pytest.approx(0.64 / (0.64 + eight.sum_seconds))
    written = json.loads((tmp_path / "study" / "scaling.json").read_text())
    assert written["outlook"]["PREDICTION"] == "not measured"
    for text in (done.markdown, (tmp_path / "study" / "report.html").read_text()):
        assert "Several machines: PREDICTION" in text and "hidden behind nothing" in text


# --- the words --------------------------------------------------------------------------------------------------------


def test_workers_of_one_machine_are_a_rehearsal_and_are_called_workers(tmp_path):
    asked = plan({"workers": "[1,2]"}, ["data=mnist"])
    config = RunConfig(strategy=CPU, tracker=TrackerConfig())
    command = lambda point, run: [sys.executable, "-c", TRAIN, *point.overrides, f"hydra.run.dir={run}"]  # noqa: E731
    shown = []
    results = run_scaling(asked, tmp_path, command=command, show=shown.append)
    done = write_report(tmp_path, asked, results, config)
    assert shown[0] == "[1/2] 2 workers, global batch 64 ..."
    assert done.advice.num_replicas is None and done.found.outlook is None
    assert done.advice.sentence.startswith("A rehearsal on one CPU, which measures no network. Here: more workers pay")
    page = (tmp_path / "report.html").read_text()
    for text in (done.markdown, page):
        assert "talk over loopback" in text and "measure no GPU and no network" in text
        assert "NO GPU, NO NETWORK" in text
    assert "Speed-up against workers" in page and "replicas axis" not in page
    assert "2 workers: the same result as 1 worker" in done.markdown


@pytest.mark.parametrize(
    ("workers", "devices", "per", "per_hour"),
    [
        (["a:1", "b:1"], ["GPU:0", "GPU:1"], "device", 4 * 3.0),
        (["a:1", "b:1"], ["GPU:0", "GPU:1"], "machine", 2 * 3.0),
        (["a:1", "a:2"], ["GPU:0"], "machine", 3.0),
        (["a:1", "a:2"], ["CPU:0"], "device", 3.0),
        (["a:1", "b:2"], ["CPU:0"], "device", 2 * 3.0),
        (None, ["GPU:0", "GPU:1"], "device", 2 * 3.0),
    ],
)
def test_the_price_counts_the_devices_and_machines_of_all_workers(workers, devices, per, per_hour):
    strategy = {"num_replicas": 4, "devices": devices}
    if workers is not None:
        strategy |= {"workers": workers, "num_workers": len(workers)}
    record = {"strategy": strategy, "timing": {}, "epochs": [], "throughput": {}, "batch": {}, "data": {}, "best": {}}
    cost = cost_of(Run(Path("a"), "a", record), CostConfig(price_per_hour=3.0, per=per))
    assert cost is not None and cost.per_hour == pytest.approx(per_hour)


def test_the_place_of_a_study_is_kept_when_the_plan_gets_its_folder(tmp_path):
    asked = plan({"gigabits": "10"})
    moved = replace(asked, group="").of_folder(tmp_path)
    assert (moved.workers, moved.link) == (asked.workers, asked.link)
