"""Workers on this machine: how they start, how they end, and that none of them outlives the one that started them."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import deque
from contextlib import ExitStack, closing
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from manyfit import local_places, local_workers
from manyfit.errors import ConfigError
from manyfit.local_places import FIRST_PORT, LAST_PORT, free_ports, gpu_shares
from manyfit.peers.names import listening_socket

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="process groups")

PARENT = Path(__file__).with_name("local_parent.py")


@pytest.fixture
def start(tmp_path):
    """`start("code of every worker", workers=2)` -> the process that the user started, in a folder of its own."""
    started = []

    def run(code, **options):
        defaults = {"workers": 2, "grace_seconds": 5.0, "stop_seconds": 20.0, "kill_seconds": 0.5}
        command = [sys.executable, str(PARENT), json.dumps({**defaults, **options}), code]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        process = subprocess.Popen(command, cwd=tmp_path, stdin=subprocess.DEVNULL, **pipes)
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.communicate()


def ended(process, timeout=30):
    """The exit code, standard output and standard error."""
    out, err = process.communicate(timeout=timeout)
    return process.returncode, out, err


def wait_for_files(folder, *names):
    """Wait until each is there and has its content: the text of each."""
    until = time.monotonic() + 20
    while not all((folder / name).exists() and (folder / name).read_text() for name in names):
        assert time.monotonic() < until, names
        time.sleep(0.02)
    return [(folder / name).read_text() for name in names]


def wait_for_the_end_of(pids):
    until = time.monotonic() + 10
    for pid in pids:
        while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
            assert time.monotonic() < until, "a worker is still there"
            time.sleep(0.02)


NOTE = 'Path(f"pid-{rank}").write_text(str(os.getpid()))\n'
"""A worker that says by a file that it runs."""


# --- a normal end -----------------------------------------------------------------------------------------------------


def test_all_workers_run_and_rank_0_has_the_screen(start, tmp_path):
    code = """
say("rank", rank, "of", cluster.num_workers, cluster.source, sys.stdin is not None)
print("to stderr", rank, file=sys.stderr)
Path(f"worker-{rank}").write_text(" ".join([word, *cluster.workers, os.environ["PYTHONUNBUFFERED"]]))
"""
    code, out, err = ended(start(code, workers=3))
    assert (code, out, err) == (0, "rank 0 of 3 local True\n", "to stderr 0\n")
    told = [(tmp_path / f"worker-{rank}").read_text().split() for rank in range(3)]
    assert told[0] == told[1] == told[2]
    word, *addresses, unbuffered = told[0]
    ports = [int(address.removeprefix("127.0.0.1:")) for address in addresses]
    assert len(set(ports)) == 3 and all(FIRST_PORT <= port < LAST_PORT for port in ports)
    assert unbuffered == "1"


@pytest.mark.slow
def test_a_worker_that_ends_before_the_others_ends_nobody(start):
    code, out, _ = ended(start('time.sleep(0.8 if rank == 0 else 0); say("the chief saves")', grace_seconds=0.1))
    assert (code, out) == (0, "the chief saves\n")


# --- failures ---------------------------------------------------------------------------------------------------------


def test_the_first_failure_is_shown_and_its_code_is_that_of_all(start):
    code = """
if rank == 1:
    print("line", 1, file=sys.stderr)
    for number in range(300): print("number", number)
    print("Error: no luck")
    sys.exit(7)
say("waits")
time.sleep(60)
"""
    began = time.monotonic()
    code, out, err = ended(start(code, workers=3, grace_seconds=0.3))
    lines = err.splitlines()
    assert code == 7
    assert lines[-2:] == ["[rank 1] Error: no luck", "Rank 1 ended with exit code 7; its last lines are above."]
    assert len(lines) == 201 and "[rank 1] line 1" not in lines
    assert time.monotonic() - began < 10


def test_others_have_time_to_say_why_they_end(start, tmp_path):
    code = """
if rank == 0:
    Path("leaving").touch()
    sys.exit(5)
while not Path("leaving").exists():
    time.sleep(0.05)
time.sleep(2)
Path("said").write_text("rank 0 is lost")
sys.exit(75)
"""
    code, _, err = ended(start(code))
    assert (code, err) == (5, "")
    assert (tmp_path / "said").exists()


@pytest.mark.parametrize(("codes", "expected"), [((75, 3), 3), ((3, 75), 3), ((75, 75), 75), ((0, -9), 137)])
def test_of_two_that_end_at_once_the_one_with_the_reason_counts(codes, expected):
    """The other one only noticed that it had gone."""
    processes = [SimpleNamespace(returncode=code, poll=lambda code=code: code) for code in codes]
    workers = [local_workers._Worker(rank, process) for rank, process in enumerate(processes)]
    assert local_workers._Watch(workers, deque(), lambda text: None, 1.0, 1.0).wait() == expected


def test_a_worker_that_is_killed_is_named(start, tmp_path):
    process = start(NOTE + "time.sleep(60)", grace_seconds=0.2)
    pids = [int(text) for text in wait_for_files(tmp_path, "pid-0", "pid-1")]
    os.kill(pids[1], signal.SIGKILL)
    code, _, err = ended(process)
    assert (code, err) == (137, "Rank 1 was ended by SIGKILL (out of memory?).\n")
    wait_for_the_end_of(pids)


def test_workers_that_hang_are_ended_by_force_with_all_that_they_started(start, tmp_path):
    code = (
        NOTE
        + """
import subprocess
signal.signal(signal.SIGTERM, lambda number, frame: Path(f"term-{rank}").write_text("got it"))
if rank == 1:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    Path("pid-child").write_text(str(child.pid))
while True:
    time.sleep(0.02)
    if rank == 0 and Path("pid-child").exists() and Path("pid-1").exists():
        sys.exit(9)
"""
    )
    process = start(code, grace_seconds=0.3)
    pids = [int(text) for text in wait_for_files(tmp_path, "pid-0", "pid-1", "pid-child")]
    code, _, _ = ended(process)
    assert code == 9
    assert (tmp_path / "term-1").exists()
    wait_for_the_end_of(pids)


# --- signals ----------------------------------------------------------------------------------------------------------

SAVES = (
    """
def stop(number, frame):
    with Path(f"got-{rank}").open("a") as file:
        file.write(f"{number} ")
    time.sleep(0.3)
    sys.exit(143 if number == signal.SIGTERM else 128 + number)
signal.signal(signal.SIGTERM, stop)
signal.signal(signal.SIGINT, stop)
"""
    + f"{NOTE}time.sleep(60)"
)


@pytest.mark.parametrize(("number", "expected"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_reaches_every_worker_once_and_they_may_save(start, tmp_path, number, expected):
    process = start(SAVES)
    wait_for_files(tmp_path, "pid-0", "pid-1")
    process.send_signal(number)
    code, _, err = ended(process)
    assert (code, err) == (expected, "")
    assert [(tmp_path / f"got-{rank}").read_text() for rank in (0, 1)] == [f"{int(number)} "] * 2


@pytest.mark.slow
def test_workers_that_take_no_notice_of_a_signal_are_ended(start, tmp_path):
    process = start("signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + NOTE + "time.sleep(60)", stop_seconds=0.5)
    pids = [int(text) for text in wait_for_files(tmp_path, "pid-0", "pid-1")]
    began = time.monotonic()
    process.terminate()
    assert ended(process)[0] == 143
    assert time.monotonic() - began < 8
    wait_for_the_end_of(pids)


@pytest.mark.slow
def test_a_second_signal_is_passed_on_and_then_there_is_little_time(start, tmp_path):
    code = (
        """
def stop(number, frame):
    with Path(f"got-{rank}").open("a") as file:
        file.write("x")
signal.signal(signal.SIGINT, stop)
"""
        + f"{NOTE}while True: time.sleep(0.02)"
    )
    process = start(code, stop_seconds=60.0)
    wait_for_files(tmp_path, "pid-0", "pid-1")
    process.send_signal(signal.SIGINT)
    wait_for_files(tmp_path, "got-0", "got-1")
    process.send_signal(signal.SIGINT)
    assert ended(process)[0] == 130
    assert (tmp_path / "got-0").read_text() == "xx"


@pytest.mark.slow
def test_a_run_that_finishes_in_spite_of_a_signal_has_finished(start, tmp_path):
    code = (
        NOTE
        + 'signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\nPath(f"set-{rank}").write_text("x")\ntime.sleep(60)'
    )
    process = start(code)
    wait_for_files(tmp_path, "set-0", "set-1")
    process.terminate()
    assert ended(process)[0] == 0


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux for a signal at the parent's end")
def test_no_worker_outlives_a_parent_that_is_killed(start, tmp_path):
    code = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + NOTE + "time.sleep(60)"
    process = start(code)
    pids = [int(text) for text in wait_for_files(tmp_path, "pid-0", "pid-1")]
    process.kill()
    process.wait()
    wait_for_the_end_of(pids)


# --- ports ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("clash", ["sys.exit(76)", 'sys.exit("UnknownError: Could not start gRPC server")'])
def test_after_a_clash_of_ports_all_start_again_on_others(start, tmp_path, clash):
    code = f"""
is_first = not Path("clashed").exists()
Path(f"ports-{{rank}}-{{is_first}}").write_text(word + " " + " ".join(cluster.workers))
if is_first and rank == 1:
    while not Path("ports-0-True").exists(): time.sleep(0.01)
    Path("clashed").touch()
    {clash}
time.sleep(60 if is_first else 0)
say("trained")
"""
    began = time.monotonic()
    code, out, err = ended(start(code))
    assert (code, out) == (0, "trained\n")
    assert err == "A port was taken meanwhile: the workers start again on others (2 of 3).\n"
    assert time.monotonic() - began < 8  # nobody waited for the grace of those that can't assemble any more
    first, second = ((tmp_path / f"ports-1-{is_first}").read_text().split() for is_first in (True, False))
    assert not set(first) & set(second)


@pytest.mark.slow
def test_ports_that_are_always_taken_may_be_tried_again_later(start):
    code, _, err = ended(start("sys.exit(76 if rank == 0 else 0)"))
    assert code == 75
    assert err.count("A port was taken meanwhile") == 2


def test_free_ports_are_different_and_free():
    with ExitStack() as stack:
        ports = free_ports(40)
        assert len(set(ports)) == 40 and all(FIRST_PORT <= port < LAST_PORT for port in ports)
        for port in ports:
            stack.enter_context(closing(listening_socket(port)))


def test_a_port_on_which_somebody_listens_is_not_chosen(monkeypatch):
    [port] = free_ports(1)
    monkeypatch.setattr(local_places, "FIRST_PORT", port)
    monkeypatch.setattr(local_places, "LAST_PORT", port + 1)
    assert free_ports(1) == [port]
    with closing(listening_socket(port)), pytest.raises(ConfigError, match="1 workers need as many free ports"):
        free_ports(1)


# --- GPUs -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("num_workers", "visible", "shares"),
    [
        (2, "0,1,2,3", ["0,1", "2,3"]),
        (2, "3, 1", ["3", "1"]),
        (2, "GPU-8f,GPU-9a,GPU-7c", ["GPU-8f", "GPU-9a"]),
        (3, "", [None] * 3),
        (3, "-1", [None] * 3),
        (1, "0,-1,1", ["0"]),
    ],
)
def test_gpus_that_can_be_seen_are_shared_out(num_workers, visible, shares):
    assert gpu_shares(num_workers, {"CUDA_VISIBLE_DEVICES": visible}, "auto") == shares
    assert gpu_shares(num_workers, {"CUDA_VISIBLE_DEVICES": visible}, "cpu") == [None] * num_workers


def test_a_worker_without_a_gpu_is_refused():
    with pytest.raises(ConfigError, match=r"strategy.local_workers=3 needs a GPU for each worker, but 2 can be seen"):
        gpu_shares(3, {"CUDA_VISIBLE_DEVICES": "0,1"}, "auto")


@pytest.mark.slow
def test_gpus_of_the_machine_are_counted_where_none_is_hidden(nvml_stub):
    code = "from manyfit.local_places import gpu_shares; print(gpu_shares(2, {}, 'auto'))"
    environment = {**os.environ, **nvml_stub.environment(gpus=4), "PYTHONPATH": str(PARENT.parents[2] / "src")}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60)
    assert done.stdout == "['0,1', '2,3']\n", done.stderr


@pytest.mark.slow
def test_a_supervised_training_is_supervised_by_the_one_that_starts_it(start, monkeypatch):
    """A sweep agent's child starts this one; its workers must not take themselves for such children."""
    monkeypatch.setenv("MANYFIT_SUPERVISOR", "1")
    code, out, _ = ended(start('say(os.environ["MANYFIT_SUPERVISOR"] == str(os.getppid()))'))
    assert (code, out) == (0, "True\n")
