"""On a real Slurm of two nodes (both of them this machine): who is which rank, jobs that go on, sweeps as arrays."""

import io
import json
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import zipfile
from pathlib import Path

import h5py
import numpy as np
import pytest

from manyfit import slurm_hosts
from manyfit.command import repository_root
from manyfit.record import RunRecord
from slurm_cluster import KILL_WAIT, SlurmCluster, missing, slurm_cluster, wait_until

pytestmark = pytest.mark.slow

SBATCH = repository_root() / "deploy/slurm/train.sbatch"
TRAIN = repository_root() / "src/train.py"
TINY = (
    "data=synthetic", "data.num_train=40", "data.num_validation=12", "data.image_size=10", "data.num_classes=3",
    "model=small_cnn", "model.filters=2", "model.units=4", "epochs=1",
)  # fmt: skip


@pytest.fixture(scope="module")
def slurm():
    if reason := missing():
        pytest.skip(reason)
    # Not pytest's own folder: the path of munge's socket may have 107 characters.
    with tempfile.TemporaryDirectory(prefix="slurm-", ignore_cleanup_errors=True) as folder:
        with slurm_cluster(Path(folder) / "cluster") as cluster:
            yield cluster
        assert not cluster.processes(), "something outlived Slurm"


@pytest.fixture
def script(tmp_path):
    """`script("name", code)` -> a Python script that can be executed, and finds this project."""

    def write(name, code):
        path = tmp_path / name
        begin = f"#!{sys.executable}\nimport sys\nsys.path.insert(0, {str(repository_root() / 'src')!r})\n"
        path.write_text(begin + textwrap.dedent(code))
        path.chmod(0o755)
        return path

    return write


# --- which process is which rank --------------------------------------------------------------------------------------

WHO = """
    import json, os
    from manyfit import slurm
    from manyfit.errors import ConfigError
    try:
        found = slurm.from_environment(os.environ)
        told = found and [found.rank, found.workers]
    except ConfigError as error:
        told = str(error)
    print(json.dumps([int(os.environ["SLURM_PROCID"]), os.environ["SLURMD_NODENAME"], told]))
"""


@pytest.mark.parametrize(
    ("layout", "places"), [((), "aaabb"), (("-m", "block:cyclic"), "aaabb"), (("-m", "cyclic"), "ababa")]
)
def test_every_task_finds_all_ranks_where_slurm_put_them(slurm, script, layout, places):
    done = slurm.run("srun", "-N2", "-n5", "--overcommit", *layout, script("who.py", WHO))
    told = sorted(json.loads(line) for line in done.stdout.splitlines())
    assert [name for _, name, _ in told] == [{"a": "n1", "b": "n2"}[place] for place in places]
    workers = told[0][2][1]
    ports = [int(address.removeprefix("127.0.0.1:")) for address in workers]  # n1 does not resolve: its NodeAddr
    assert ports == list(range(ports[0], ports[0] + 5)) and 20_000 <= ports[0] < 32_000
    assert [found for _, _, found in told] == [[rank, workers] for rank in range(5)]


def test_a_layout_that_cannot_be_told_from_outside_is_refused_by_every_task(slurm, script, tmp_path):
    (tmp_path / "hosts").write_text("n2\nn1\nn2\n")
    hosts = {"SLURM_HOSTFILE": str(tmp_path / "hosts")}
    done = slurm.run("srun", "-n3", "-m", "arbitrary", "--overcommit", script("who.py", WHO), **hosts)
    assert [json.loads(line)[2].count("'arbitrary'") for line in done.stdout.splitlines()] == [1, 1, 1]


@pytest.mark.parametrize("hosts", ["n1", "n[8-11]", "n[08-11,3],x", "rack[1-2]n[1-3]", "gpu-a[001-003],b-[7,9]"])
def test_lists_of_hosts_are_read_as_scontrol_reads_them(slurm, hosts):
    assert slurm_hosts.expand_hosts(hosts) == slurm.said("scontrol", "show", "hostnames", hosts).split()


def test_several_nodes_without_srun_are_refused_before_any_work(slurm):
    asked = (sys.executable, TRAIN, "strategy=multi_worker", *TINY, "tracker=none")
    for words, why in ((("salloc", "-N2"), "without srun"), (("salloc", "-N2", "srun", "-N1", "-n1"), "has one task")):
        done = slurm.run(*words, *asked)
        assert done.returncode == 2 and "Traceback" not in done.stderr
        assert why in done.stderr and "srun --nodes=2 --ntasks-per-node=1 python" in done.stderr


# --- deploy/slurm/train.sbatch ----------------------------------------------------------------------------------------

STAND_IN = """
    # In the place of the interpreter: what a training does to its surroundings.
    import os, signal, time
    from pathlib import Path

    rank, start = int(os.environ["SLURM_PROCID"]), int(os.environ.get("SLURM_RESTART_COUNT", 0))
    [run] = [word.partition("=")[2].strip("'") for word in sys.argv if word.startswith("hydra.run.dir=")]
    print(f"rank {rank}:", *sys.argv[2:], os.environ["WANDB_MODE"], flush=True)
    plan = os.environ["PLAN"].split(",")[start]
    if rank == 0 and "further" in plan:
        (Path(run) / "checkpoints").mkdir(parents=True, exist_ok=True)
        (Path(run) / f"checkpoints/epoch-{start:05d}-step-000000000.0.npz").touch()
    if "wait" in plan:
        def stop(*_):
            time.sleep(0.5)
            print(f"saved by rank {rank}", flush=True)
            os._exit(143)
        signal.signal(signal.SIGTERM, stop)
        print("waiting", flush=True)
        time.sleep(60)
    codes = plan.split()[-1].split(":")
    sys.exit(int(codes[min(rank, len(codes) - 1)]))
"""


class Jobs:
    """Jobs of train.sbatch whose interpreter is the stand-in."""

    def __init__(self, slurm: SlurmCluster, folder: Path, interpreter: Path):
        self.slurm, self.folder, self.interpreter = slurm, folder, interpreter

    def submit(self, plan: str, *overrides: str, gpus: int = 0) -> str:
        """A job of two nodes; `plan` says what each start of it does."""
        options = (f"--output={self.folder}/%j.out", f"--gpus-per-node={gpus}", "--cpus-per-task=1")
        variables = {"PYTHON": str(self.interpreter), "MANYFIT_RUN": str(self.folder / f"run of {plan}")}
        return self.slurm.submit(*options, SBATCH, *overrides, cwd=repository_root(), PLAN=plan, **variables)

    def log(self, job: str) -> str:
        path = self.folder / f"{job}.out"
        return path.read_text() if path.exists() else ""

    def wait_for(self, job: str, text: str, count: int = 2) -> None:
        wait_until(lambda: self.log(job).count(text) >= count, lambda: self.log(job))


@pytest.fixture
def jobs(slurm, script, tmp_path):
    return Jobs(slurm, tmp_path, script("python", STAND_IN))


def test_the_script_as_it_is_fits_a_cluster_with_four_gpus_a_node(slurm):
    done = slurm.run("sbatch", "--test-only", SBATCH, "data=mnist", cwd=repository_root())
    assert done.returncode == 0 and "on nodes n[1-2]" in done.stderr


def test_every_sbatch_line_of_the_page_is_one_that_slurm_takes(slurm):
    page = (repository_root() / "docs/slurm.md").read_text().replace("\\\n", " ")
    lines = re.findall(r"^((?:[A-Z_]+=\S+ )*)sbatch (.+)$", page, re.MULTILINE)
    assert len(lines) >= 5
    for _, words in lines:
        done = slurm.run("sbatch", "--test-only", *shlex.split(words), cwd=repository_root())
        assert done.returncode == 0, done.stderr


def test_the_exit_code_decides_whether_a_job_goes_back_into_the_queue(jobs, slurm):
    ended = {plan: jobs.submit(plan) for plan in ("0", "2", "1", "130", "0:1")}
    again = {plan: jobs.submit(plan) for plan in ("75,75", "75:137,further 75,75", "further 75,further 75,0")}
    for plan, job in ended.items():
        facts = slurm.wait(job)
        assert (facts["ExitCode"], facts["Restarts"]) == (f"{max(map(int, plan.split(':')))}:0", "0")
    for plan, job in again.items():
        starts = plan.count(",") + 1
        for restarts in range(1, starts):
            slurm.start_again(job, restarts)
        slurm.wait(job)
    # No further than after the start before: a second try would only repeat it.
    facts = slurm.facts(again["75,75"])
    assert (facts["Restarts"], facts["ExitCode"]) == ("1", "75:0")
    assert "no further than after the start before: not tried again" in jobs.log(again["75,75"])
    facts = slurm.facts(again["further 75,further 75,0"])
    assert (facts["Restarts"], facts["JobState"]) == ("2", "COMPLETED")
    # A worker that was killed ends with the highest code of all, and the others with 75.
    facts = slurm.facts(again["75:137,further 75,75"])
    assert (facts["Restarts"], facts["ExitCode"]) == ("2", "75:0")


def test_where_slurm_gives_gpus_the_training_has_to_find_them(jobs, slurm):
    asked = {gpus: jobs.submit("0", gpus=gpus) for gpus in (0, 2)}
    for job in asked.values():
        assert slurm.wait(job)["JobState"] == "COMPLETED"
    assert {gpus: jobs.log(job).count("strategy.device=gpu") for gpus, job in asked.items()} == {0: 0, 2: 2}


def test_what_stops_the_tasks_alone_requeues_and_scancel_ends(jobs, slurm):
    job = jobs.submit("wait,wait", "epochs=3", "data=mnist")
    jobs.wait_for(job, "waiting")
    assert jobs.log(job).count("strategy=multi_worker hydra.run.dir='") == 2
    assert re.search(r"resume=auto epochs=3 data=mnist offline$", jobs.log(job), re.MULTILINE)
    slurm.said("scancel", "--signal=TERM", job)  # as before the end of the time, or at a preemption
    slurm.start_again(job)
    jobs.wait_for(job, "waiting", 4)
    log = jobs.log(job)
    assert log.count("saved by rank") == 2 and "it was stopped and has saved: back into the queue" in log
    slurm.said("scancel", job)
    facts = slurm.wait(job)
    assert (facts["JobState"], facts["Restarts"]) == ("CANCELLED", "1")
    jobs.wait_for(job, "saved by rank", 4)
    assert jobs.log(job).count("back into the queue") == 1


def test_a_mistake_of_the_surroundings_is_said_in_a_line(slurm, tmp_path):
    for cwd, variables, message in (
        (tmp_path, {}, "holds no src/train.py"),
        (repository_root(), {"PYTHON": "/nowhere/python"}, "there is no /nowhere/python on n1"),
    ):
        job = slurm.submit(f"--output={tmp_path}/%j.out", SBATCH, cwd=cwd, **variables)
        assert slurm.wait(job)["ExitCode"] == "2:0"
        assert message in (tmp_path / f"{job}.out").read_text()


@pytest.mark.parametrize("words", [("bash", "-n"), ("shellcheck",)], ids=" ".join)
def test_the_script_has_nothing_that_a_reader_of_scripts_finds(words):
    if shutil.which(words[0]) is None:
        pytest.skip(f"{words[0]} is not installed")
    done = subprocess.run([*words, SBATCH], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


# --- hydra/launcher=submitit_slurm ------------------------------------------------------------------------------------

MANY = """
    import json, os, signal, time
    from pathlib import Path

    if "-m" in sys.argv:
        from manyfit.command import hydra_command, outputs_folder
        from manyfit.multirun import run_many
        hydra_command(many=lambda arguments: run_many(arguments, outputs_folder()))(lambda config: None)()

    # A job: a training of no time, which can be told to wait.
    from manyfit.record import RunRecord
    given = dict(word.split("=", 1) for word in sys.argv[1:] if "=" in word)
    folder = Path(given["hydra.run.dir"].strip('"'))
    goes_on = folder.exists()
    folder.mkdir(exist_ok=True)
    record = RunRecord.load(folder) if goes_on else RunRecord.create(folder)
    if goes_on:
        record.go_on(0, 0)
    print(json.dumps([goes_on, sys.argv[1:], os.environ.get("SLURM_ARRAY_TASK_ID"), os.environ.get("WANDB_RUN_ID")]))

    def stop(*_):
        record.set_status("stopped", exit_code=143, error="stopped by SIGTERM")
        sys.exit(143)

    signal.signal(signal.SIGTERM, stop)
    print("ready", flush=True)
    if given["seed"] == "1":
        record.set_status("failed", exit_code=1, error="seed 1 has no luck")
        sys.exit(1)
    if given["seed"] == "60" and not goes_on:
        time.sleep(60)
    record.update("best", val_accuracy=0.5, val_loss=0.25, epoch=1)
    record.set_status("finished", exit_code=0)
"""


def job_of(folder: Path) -> str:
    return json.loads((folder / "run.job.json").read_text())["job"]


def test_a_sweep_is_an_array_of_trainings_with_folders_and_runs_of_their_own(slurm, tmp_path):
    folder = tmp_path / "sweep"
    asked = ("-m", "seed=0,1", "hydra/launcher=submitit_slurm", f"hydra.sweep.dir={folder}", "hydra.launcher.name=two")
    done = slurm.run(sys.executable, TRAIN, *asked, *TINY, "tracker.mode=offline", "tracker.log_mistakes=0")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == str(folder) and "2 of 2 finished." in done.stdout
    first, second = (folder / f"{seed}_seed={seed}" for seed in (0, 1))
    array = job_of(first).removesuffix("_0")
    assert job_of(second) == f"{array}_1" and slurm.facts(array)["JobName"] == "two"
    records = [RunRecord.load(one / "run").data for one in (first, second)]
    assert [record["status"] for record in records] == ["finished"] * 2
    # A task of a Slurm step, under a strategy that knows nothing of Slurm.
    assert [record["strategy"]["num_replicas"] for record in records] == [1, 1]
    assert len({record["tracker"]["run_id"] for record in records}) == 2
    assert all(list((one / "run/wandb").glob("offline-run-*")) for one in (first, second))


def test_jobs_that_fail_are_scancelled_or_run_on_are_told_apart(slurm, script, tmp_path):
    many, folder = script("many.py", MANY), tmp_path / "sweep"
    asked = ("-m", "seed=0,1,60", "hydra/launcher=submitit_slurm", f"hydra.sweep.dir={folder}", "tracker=none")
    waiting = slurm.start(many, *asked, WANDB_RUN_ID="one-for-all")
    log = folder / "2_seed=60/run.txt"
    wait_until(lambda: log.exists() and "ready" in log.read_text(), lambda: str(list(folder.rglob("*"))))
    # What a shell starts in the background takes no Ctrl-C, nor does what that starts.
    number = signal.SIGTERM if signal.getsignal(signal.SIGINT) == signal.SIG_IGN else signal.SIGINT
    waiting.send_signal(number)
    out, err = waiting.communicate(timeout=60)
    job = job_of(folder / "2_seed=60")
    array = job.partition("_")[0]
    assert (waiting.returncode, err) == (128 + number, "")
    assert f"scancel {array} ends them" in out and re.search(r"2 +seed=60 +submitted", out)
    assert slurm.facts(job)["JobState"] == "RUNNING"

    waiting = slurm.start(many, *asked)  # waits for it again, and trains anew only what failed
    wait_until(lambda: (folder / "1_seed=1/run-2.txt").exists(), lambda: str(list(folder.rglob("*"))))
    slurm.said("scancel", job)
    out, err = waiting.communicate(timeout=60)
    assert (waiting.returncode, err) == (1, "")
    assert f"seed=60: {job}, which is there already" in out and "job 1 (seed=1): seed 1 has no luck" in out
    assert re.search(r"0 +seed=0 +kept", out) and "job 2 (seed=60): stopped by SIGTERM" in out

    done = slurm.run(many, *asked)  # goes on with what was stopped
    assert done.returncode == 1 and re.search(r"2 +seed=60 +finished", done.stdout)
    lines = [json.loads(line) for line in log.read_text().splitlines() if line.startswith("[")]
    assert [(goes_on, run_id) for goes_on, _, _, run_id in lines] == [(False, None), (True, None)]
    assert all("resume=auto" in words and "seed=60" in words for _, words, _, _ in lines)


def test_a_job_whose_time_is_up_saves_and_goes_on_in_its_folder(slurm, script, tmp_path):
    many, folder = script("many.py", MANY), tmp_path / "sweep"
    asked = ("-m", "seed=60", "hydra/launcher=submitit_slurm", "hydra.launcher.max_num_timeout=1", "tracker=none")
    waiting = slurm.start(many, *asked, f"hydra.sweep.dir={folder}")
    log = folder / "0_/run.txt"
    wait_until(lambda: log.exists() and "ready" in log.read_text(), lambda: str(list(folder.rglob("*"))))
    job = job_of(folder / "0_")
    slurm.said("scancel", "--signal=USR2", job)  # submitit's warning, signal_delay_s before the end
    slurm.start_again(job)
    out, err = waiting.communicate(timeout=60)
    assert (waiting.returncode, err) == (0, ""), out
    assert log.read_text().count("ready") == 2 and slurm.facts(job)["Restarts"] == "1"
    assert [attempt["status"] for attempt in RunRecord.load(folder / "0_/run").data["attempts"]] == [
        "stopped",
        "finished",
    ]


def test_what_slurm_does_not_accept_is_one_message(slurm, tmp_path):
    asked = ("-m", "seed=0,1", "hydra/launcher=submitit_slurm", "hydra.launcher.partition=nowhere", "tracker=none")
    done = slurm.run(sys.executable, TRAIN, *asked, f"hydra.sweep.dir={tmp_path / 'sweep'}")
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "Error: The jobs were not accepted: sbatch: error: invalid partition specified: nowhere" in done.stderr


# --- trainings on two nodes -------------------------------------------------------------------------------------------

LONG = (
    "strategy.device=cpu", "data=synthetic", "data.num_train=3200", "data.num_validation=40", "data.image_size=10",
    "model=small_cnn", "model.filters=2", "model.units=4", "batch.global_batch_size=16", "epochs=12", "tracker=none",
    "checkpoint.every_steps=20", "probe=false",
)  # fmt: skip


def weights(run: Path) -> dict[str, np.ndarray]:
    """The arrays of a run's model, without Keras."""
    found = {}
    with zipfile.ZipFile(run / "model.keras") as archive, h5py.File(io.BytesIO(archive.read("model.weights.h5"))) as h5:
        h5.visititems(lambda name, item: found.update({name: item[()]}) if isinstance(item, h5py.Dataset) else None)
    return found


def furthest(run: Path) -> str:
    """The name of the last checkpoint; empty where there is none."""
    return max((path.name for path in (run / "checkpoints").glob("epoch-*.npz")), default="")


@pytest.fixture(scope="module")
def uninterrupted(slurm, tmp_path_factory):
    folder = tmp_path_factory.mktemp("uninterrupted") / "run"
    asked = ("strategy=multi_worker", *LONG, f"hydra.run.dir={folder}")
    done = slurm.run("srun", "-N2", "-n2", sys.executable, TRAIN, *asked)
    assert done.returncode == 0, done.stderr
    return folder, done


def test_two_nodes_make_one_run_that_the_chief_writes(uninterrupted):
    folder, done = uninterrupted
    lines = done.stdout.splitlines()
    assert re.match(r"2 workers \(Slurm job \d+\.0\): 127\.0\.0\.1:\d+, 127\.0\.0\.1:\d+; this is rank 0", lines[0])
    assert lines[-1] == str(folder) and done.stdout.count("--- run finished ---") == 1
    record = RunRecord.load(folder).data
    assert (record["status"], record["strategy"]["name"], record["strategy"]["num_replicas"]) == (
        "finished",
        "multi_worker",
        2,
    )
    assert len(record["epochs"]) == 12
    assert "--- run finished ---" in (folder / "workers/rank-1/log.txt").read_text()


def test_scancel_saves_and_a_lost_worker_requeues_and_the_weights_are_those_of_a_quiet_run(
    slurm, uninterrupted, tmp_path
):
    run = tmp_path / "run"

    def submit():
        options = (f"--output={tmp_path}/%j.out", "--gpus-per-node=0", "--cpus-per-task=1")
        variables = {"MANYFIT_RUN": str(run), "PYTHON": sys.executable}
        return slurm.submit(*options, SBATCH, *LONG, cwd=repository_root(), **variables)

    def log():
        return "\n".join(path.read_text() for path in sorted(tmp_path.glob("*.out")))

    # scancel: the tasks save, and nothing is left over.
    job = submit()
    wait_until(lambda: furthest(run) != "", log, seconds=200)
    slurm.said("scancel", job)
    assert slurm.wait(job)["JobState"] == "CANCELLED"
    wait_until(lambda: not slurm.tasks(), lambda: str(slurm.tasks()), seconds=KILL_WAIT + 5)
    record = RunRecord.load(run).data
    assert (record["status"], record["exit_code"]) == ("stopped", 143) and "back into the queue" not in log()

    # The same command goes on. A worker is killed: the others say which, and the job goes back into the queue.
    before = furthest(run)
    job = submit()
    wait_until(lambda: furthest(run) > before, log, seconds=200)
    [lost] = [
        process
        for process in slurm.tasks()
        if process.name() != "slurmstepd"
        and process.environ().get("SLURM_PROCID") == "1"
        and process.environ()["SLURM_JOB_ID"] == job
        and "train.py" in " ".join(process.cmdline())
    ]
    lost.kill()
    wait_until(lambda: slurm.facts(job)["Restarts"] == "1", log, seconds=40)
    assert re.search(r"rank 1 \(.*127\.0\.0\.1:\d+\)", log()) and "may be tried again: back into the queue" in log()
    slurm.start_again(job)
    facts = slurm.wait(job)
    assert (facts["JobState"], facts["Restarts"]) == ("COMPLETED", "1"), log()

    quiet, made = weights(uninterrupted[0]), weights(run)
    assert quiet.keys() == made.keys() and len(quiet) >= 6
    for name, array in quiet.items():
        np.testing.assert_allclose(made[name], array, rtol=0, atol=1e-6, err_msg=name)
    attempts = [attempt["status"] for attempt in RunRecord.load(run).data["attempts"]]
    assert attempts == ["stopped", "failed", "finished"]
    wait_until(lambda: not slurm.tasks(), lambda: str(slurm.tasks()), seconds=KILL_WAIT + 5)
