"""A real Slurm on this machine: one controller, and as many nodes as asked for, each a slurmd of its own.

Debian's `slurmctld`, `slurmd`, `slurm-client` and `munge` are all it takes: it listens on loopback alone, and its keys,
configuration, state and logs lie in one folder; nothing below /etc is read or written, and no systemd is needed.
"""

import contextlib
import getpass
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "scontrol", "scancel", "squeue", "sinfo")
PACKAGES = "slurmctld slurmd slurm-client munge"
PLACES = os.pathsep.join(("/usr/sbin", "/usr/local/sbin", "/sbin"))
"""Where the daemons are, which the PATH of a plain user lacks."""

DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random")
"""What the nodes claim to be GPUs."""

ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "OUT_OF_MEMORY")
"""The states of a job that is over."""

KILL_WAIT = 5
"""Seconds from SIGTERM to SIGKILL of a job that is cancelled (30 where nothing else is configured)."""

CONFIGURATION = """
ClusterName=tests
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
# Loopback only.
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
# No cgroups, no accounting, no binding to cores: what a container may lack.
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=bf_interval=5,sched_min_interval=100000
JobRequeue=1
ReturnToService=2
KillWait={kill_wait}
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmdSpoolDir={folder}/spool.%n
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
# More cores in all than the machine may have.
SlurmdParameters=config_overrides
GresTypes=gpu
{nodes}
PartitionName=gpu Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=YES:4
"""


def missing() -> str | None:
    """Why no Slurm can be started here; None where it can."""
    lacking = [program for program in PROGRAMS if program_path(program) is None]
    if lacking:
        return f"no Slurm here ({', '.join(lacking)} missing): apt-get install --no-install-recommends {PACKAGES}"
    try:
        socket.getaddrinfo(socket.gethostname(), None)
    except OSError:
        return f"Slurm needs this machine's own name, {socket.gethostname()}, to be resolvable (/etc/hosts)"
    return None


def program_path(program: str) -> str | None:
    """The full path of one of Slurm's programs."""
    return shutil.which(program) or shutil.which(program, path=PLACES)


@dataclass
class SlurmCluster:
    """A Slurm that is running.

    Attributes:
        folder: Its configuration, state and logs.
        environment: Variables that a command needs to reach it.
    """

    folder: Path
    environment: dict[str, str]
    daemons: list[subprocess.Popen] = field(default_factory=list)

    def start(self, *words: object, cwd: Path | None = None, **variables: str) -> subprocess.Popen[str]:
        """One of Slurm's commands, running: `start("srun", "-n2", "hostname")`."""
        program, *rest = map(str, words)
        return subprocess.Popen(
            [program_path(program) or program, *rest],
            cwd=cwd or self.folder,
            env={**os.environ, **self.environment, **variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(
        self, *words: object, seconds: float = 300, cwd: Path | None = None, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """One of Slurm's commands, ended; its output lands in the report of a test that fails."""
        process = self.start(*words, cwd=cwd, **variables)
        try:
            stdout, stderr = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            process.terminate()  # srun ends its tasks
            stdout, stderr = process.communicate(timeout=30)
            raise AssertionError(f"{words} was at it after {seconds} s\n{stdout}\n--- stderr\n{stderr}") from None
        said = "\n".join(text for text in (stdout, stderr) if text.strip())
        print(f"$ {' '.join(map(str, words))}\n{said}\n-> {process.returncode}")
        return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)

    def said(self, *words: object) -> str:
        """What a command that has to work wrote."""
        done = self.run(*words)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def submit(self, *words: object, cwd: Path | None = None, **variables: str) -> str:
        """The number of the job that `sbatch` makes of `words`."""
        done = self.run("sbatch", "--parsable", *words, cwd=cwd, **variables)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def facts(self, job: str) -> dict[str, str]:
        """What Slurm knows of a job: `JobState`, `ExitCode`, `Restarts`, ..."""
        told, errors = self.start("scontrol", "--oneliner", "show", "job", job).communicate(timeout=60)
        assert told, errors
        return dict(word.split("=", 1) for word in told.split() if "=" in word)

    def node_states(self) -> set[str]:
        """The states of the nodes: `idle`, `completing`, ..."""
        return set(self.said("sinfo", "--noheader", "--Node", "--format=%T").split())

    def wait(self, job: str, *states: str, seconds: float = 300) -> dict[str, str]:
        """The facts of a job once it is in one of `states`; without any, once it has ended."""
        wanted = states or ENDED
        until = time.monotonic() + seconds
        while (facts := self.facts(job))["JobState"] not in wanted:
            assert time.monotonic() < until, f"job {job} is {facts['JobState']} after {seconds} s"
            time.sleep(0.1)
        return facts

    def start_again(self, job: str, restarts: int = 1) -> None:
        """Let a job that goes back into the queue start at once: Slurm would keep it there for two minutes.

        Args:
            restarts: How often it will then have gone back.
        """

        def is_waiting() -> bool:
            facts = self.facts(job)
            return int(facts["Restarts"]) >= restarts and facts["JobState"] == "PENDING"

        wait_until(is_waiting, lambda: str(self.facts(job)), seconds=120)
        # The two minutes are for this: a job whose last start has not been cleaned up fails. Each node forgets it when
        # it is idle again, and refuses a new start whose credential is of the same second.
        wait_until(lambda: not self.tasks(job), lambda: str(self.tasks(job)))
        wait_until(lambda: self.node_states() == {"idle"}, lambda: str(self.node_states()))
        time.sleep(2.0)
        self.said("scontrol", "update", f"JobId={job}", "StartTime=now")
        wait_until(lambda: self.facts(job)["JobState"] != "PENDING", lambda: str(self.facts(job)))

    def processes(self) -> list[psutil.Process]:
        """Every process that was started under this Slurm, its own included."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.status() != psutil.STATUS_ZOMBIE and self._owns(process):
                    found.append(process)
        return found

    def _owns(self, process: psutil.Process) -> bool:
        if process.name() == "slurmstepd":  # takes no variables over, but writes slurmd's log
            return any(Path(file.path).is_relative_to(self.folder) for file in process.open_files())
        return process.environ().get("SLURM_CONF") == self.environment["SLURM_CONF"]

    def tasks(self, job: str | None = None) -> list[psutil.Process]:
        """The processes of jobs, or of one, and those that Slurm has for them: what is left then is an orphan."""
        found = []
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                if process.name() == "slurmstepd":
                    title = re.search(r"\[(\d+)\.", " ".join(process.cmdline()))
                    owner = title[1] if title else ""
                else:
                    owner = process.environ().get("SLURM_JOB_ID")
                if owner is not None and job in (None, owner):
                    found.append(process)
        return found


@contextlib.contextmanager
def slurm_cluster(
    folder: Path, nodes: Sequence[str] = ("n1", "n2"), gpus: int = len(DEVICES)
) -> Iterator[SlurmCluster]:
    """A Slurm with these nodes, all of them this machine; it and all that was started under it end with the block.

    Args:
        gpus: How many each node claims to have; there is nothing behind them.
    """
    folder.mkdir(parents=True, mode=0o700)
    _configure(folder, nodes, gpus)
    cluster = SlurmCluster(folder, {"SLURM_CONF": str(folder / "slurm.conf")})
    try:
        _start(cluster, nodes)
        yield cluster
    finally:
        _stop(cluster)


def _configure(folder: Path, nodes: Sequence[str], gpus: int) -> None:
    key = folder / "munge.key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o400)
    host = socket.gethostname()
    ports = _free_ports(1 + len(nodes))
    described = [
        f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=32 RealMemory=4000 "
        f"Gres=gpu:{gpus} State=UNKNOWN"
        for name, port in zip(nodes, ports[1:], strict=True)
    ]
    (folder / "slurm.conf").write_text(
        CONFIGURATION.format(
            host=host,
            port=ports[0],
            user=getpass.getuser(),
            folder=folder,
            kill_wait=KILL_WAIT,
            nodes="\n".join(described),
        )
    )
    # A GPU is a file that exists; with nothing but a count, slurmd 22.05 reports none.
    (folder / "gres.conf").write_text(
        "AutoDetect=off\n" + "".join(f"Name=gpu File={file}\n" for file in DEVICES[:gpus])
    )
    # Nothing may be looked for in /sys/fs/cgroup: with nothing said, slurmd 22.05 does, and ends where it fails.
    (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
    (folder / "state").mkdir()
    for name in nodes:
        (folder / f"spool.{name}").mkdir()


def _free_ports(count: int) -> list[int]:
    """Ports that nobody listens on, below those that the system gives out by itself."""
    found: list[int] = []
    start = 10_000 + os.getpid() % 9_000
    for port in range(start, start + 1000):
        with socket.socket() as probe:
            if len(found) < count and probe.connect_ex(("127.0.0.1", port)) != 0:
                found.append(port)
    return found


def _start(cluster: SlurmCluster, nodes: Sequence[str]) -> None:
    folder = cluster.folder
    munge = [f"--{name}={folder}/munge.{name}" for name in ("socket", "pid-file", "log-file", "seed-file")]
    # --force: the folders above may be anybody's (/tmp), the key's own is ours alone.
    _daemon(cluster, "munged", "--foreground", "--force", f"--key-file={folder}/munge.key", *munge)
    _until(lambda: (folder / "munge.socket").exists(), cluster, "munged")
    _daemon(cluster, "slurmctld", "-D", "-c")
    for name in nodes:
        _daemon(cluster, "slurmd", "-D", "-N", name)
    _until(lambda: _idle(cluster) == len(nodes), cluster, "slurmd")


def _daemon(cluster: SlurmCluster, program: str, *arguments: str) -> None:
    path = program_path(program)
    assert path is not None
    output = (cluster.folder / f"{program}.out").open("a")
    environ = {**os.environ, **cluster.environment}
    with output:
        process = subprocess.Popen(
            [path, *arguments], env=environ, stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )
    cluster.daemons.append(process)


def _idle(cluster: SlurmCluster) -> int:
    process = cluster.start("sinfo", "--noheader", "--Node", "--format=%N %t")
    lines = process.communicate(timeout=60)[0].splitlines()
    return len({line for line in lines if line.endswith(" idle")})


def wait_until(condition: Callable[[], bool], report: Callable[[], str], seconds: float = 60) -> None:
    """Wait for a condition; where it does not come, fail with the report."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, report()
        time.sleep(0.05)


def _until(condition: Callable[[], bool], cluster: SlurmCluster, what: str, seconds: float = 30) -> None:
    until = time.monotonic() + seconds
    while not condition():
        ended = [process.args for process in cluster.daemons if process.poll() is not None]
        if ended or time.monotonic() > until:
            logs = [path.read_text(errors="replace")[-2000:] for path in sorted(cluster.folder.glob("*.out"))]
            raise AssertionError(f"{what} did not come up; ended: {ended}\n" + "\n".join(logs))
        time.sleep(0.05)


def _stop(cluster: SlurmCluster) -> None:
    with contextlib.suppress(Exception):
        if cluster.tasks():
            cluster.run("scancel", "--user", getpass.getuser(), seconds=20)
            until = time.monotonic() + KILL_WAIT + 5
            while cluster.tasks() and time.monotonic() < until:
                time.sleep(0.1)
    for process in reversed(cluster.daemons):
        process.send_signal(signal.SIGTERM)
    for process in reversed(cluster.daemons):
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    for process in cluster.processes():
        with contextlib.suppress(psutil.Error):
            process.kill()
