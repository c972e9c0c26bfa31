"""What ranks say to each other, and each way in which one of them can fail: real processes and sockets on loopback."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import closing, suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manyfit.cluster import Cluster
from manyfit.errors import ConfigError
from manyfit.local_places import free_ports
from manyfit.peers import PeerError, alone, assemble
from manyfit.peers.lines import Connection, decoded, encoded
from manyfit.peers.meeting import differences
from manyfit.peers.names import PORT_TAKEN_CODE, Names, listening_socket
from manyfit.peers.visit import Visit
from manyfit.peers.waiting import Waiting

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals")

WORKER = Path(__file__).with_name("peer_worker.py")
UNKNOWN_HOST = "no..host"
"""A name that no resolver has to be asked about."""


class Rank:
    """One started rank; `said` has its lines."""

    def __init__(self, options, **variables):
        self.began = time.monotonic()
        command = [sys.executable, str(WORKER), json.dumps(options)]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        self.process = subprocess.Popen(command, env={**os.environ, **variables}, **pipes)
        self.lines, self.seen = [], threading.Condition()
        self.reader = threading.Thread(target=self._read)
        self.reader.start()

    def _read(self):
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self.seen:
                self.lines.append(line.rstrip("\n"))
                self.seen.notify_all()
        with self.seen:
            self.lines.append("EOF")
            self.seen.notify_all()

    def wait_for(self, beginning):
        with self.seen:
            assert self.seen.wait_for(lambda: any(one.startswith((beginning, "EOF")) for one in self.lines), 20)
            assert any(one.startswith(beginning) for one in self.lines), self.lines

    @property
    def said(self):
        return "\n".join(self.lines)

    def end(self, timeout=20):
        """The exit code."""
        code = self.process.wait(timeout)
        self.reader.join(timeout)
        return code


@pytest.fixture
def start():
    """`start(["code of rank 0", "code of rank 1"], ...)` -> the ranks; None for one that never comes."""
    started = []

    def run(codes, *, workers=None, facts=None, variables=None, **options):
        workers = workers or [f"127.0.0.1:{port}" for port in free_ports(len(codes))]
        defaults = {"job": "", "seconds": 10.0, "lost_after": 10.0, "leave_seconds": 0.3, "starting_seconds": 60.0}
        ranks = []
        for rank, code in enumerate(codes):
            if code is None:
                ranks.append(None)
                continue
            own = {"workers": workers, "rank": rank, "code": code, "facts": (facts or {}).get(rank, {"seed": 0})}
            ranks.append(Rank({**defaults, **options, **own}, **(variables or {})))
            started.append(ranks[-1])
        return ranks

    yield run
    for one in started:
        one.process.kill()
        one.end()
        one.process.stdout.close()


def ports_of(ranks):
    return [json.loads(rank.process.args[2])["workers"] for rank in ranks][0]


def visit(cluster, seconds=5.0):
    """Go to rank 0 as another rank from this process, without a look at this one's own port."""
    until = time.monotonic() + seconds
    names = Names({cluster.host(rank) for rank in range(cluster.num_workers)})
    try:
        return Visit(cluster, names, seconds, {"seed": 0}).run(until, Waiting(lambda text: None, until))
    finally:
        names.stop()


# --- values -----------------------------------------------------------------------------------------------------------

TALK = """
say("gather", peers.gather("loss", {"rank": peers.rank, "loss": float("nan")}))
say("broadcast", peers.broadcast("steps", [7, None] if peers.is_chief else "ignored"))
peers.agree("data", {"fingerprint": "abc"})
"""


def test_values_of_all_ranks_arrive_on_all_ranks(start):
    ranks = start([TALK] * 3)
    assert [rank.end() for rank in ranks] == [0, 0, 0]
    for rank in ranks:
        assert f"gather {[{'rank': r, 'loss': float('nan')} for r in range(3)]}" in rank.lines
        assert "broadcast [7, None]" in rank.lines


@pytest.mark.slow
def test_many_and_large_values_keep_their_order(start):
    code = """
for number in range(150):
    assert peers.gather("number", [peers.rank, number]) == [[rank, number] for rank in range(3)]
    assert peers.broadcast("number", number) == number
texts = peers.gather("text", str(peers.rank) * 1_000_000)
assert [(text[0], len(text)) for text in texts] == [("0", 1_000_000), ("1", 1_000_000), ("2", 1_000_000)]
"""
    assert [rank.end() for rank in start([code] * 3)] == [0, 0, 0]


def test_a_run_of_one_process_needs_no_branches():
    with alone() as peers:
        assert (peers.rank, peers.num_workers, peers.is_chief, peers.cluster) == (0, 1, True, None)
        assert peers.gather("a", (1, 2)) == [[1, 2]]  # what JSON makes of it, as with others
        assert peers.broadcast("a", {"b": 1}) == {"b": 1}
        peers.agree("a", {"b": 1})
        peers.watch(lambda message: None)


def test_a_cluster_of_one_worker_assembles_at_once():
    [port] = free_ports(1)
    with assemble(Cluster("TF_CONFIG", (f"localhost:{port}",), 0), seconds=5, facts={}) as peers:
        assert peers.gather("a", 1) == [1]
        assert peers.cluster is not None


def test_a_signal_interrupts_a_rank_that_waits(start):
    code = """
import signal
class Stop(Exception): pass
def stop(number, frame):
    raise Stop
signal.signal(signal.SIGTERM, stop)
try:
    say("waits")
    peers.gather("never", 0)
except Stop:
    say("stopped")
"""
    _, other = start(["import time; time.sleep(60)", code])
    other.wait_for("waits")
    other.process.send_signal(signal.SIGTERM)
    assert other.end() == 0 and "stopped" in other.lines


def test_ranks_that_went_apart_are_told_where_each_is(start):
    chief, other, third = start(['peers.gather("epoch 3", 0)', 'peers.broadcast("stop")', 'peers.gather("epoch 3", 0)'])
    for rank in (chief, other, third):
        assert rank.end() == 1
        assert re.search(
            r"rank 0 \(127.0.0.1:\d+\) is at gather 'epoch 3', rank 1 \(.*\) at broadcast 'stop'", rank.said
        )


def test_facts_that_differ_later_are_a_mistake_on_all_ranks(start):
    for rank in start(['peers.agree("data", {"examples": 100 + peers.rank})'] * 2):
        assert rank.end() == 2
        assert re.search(r"examples is 100 on rank 0 \(.*\), 101 on rank 1 \(.*\)", rank.said)


# --- assembling -------------------------------------------------------------------------------------------------------


def test_a_rank_that_never_comes_is_named_on_all_that_did(start):
    chief, _, third = start(["", None, ""], seconds=1.0)
    missing = ports_of([chief])[1]
    for rank in (chief, third):
        assert rank.end() == 75
        assert f"2 of 3 workers assembled within 1 s. Missing: rank 1 ({missing})." in rank.said
        assert "strategy.assemble_seconds" in rank.said
        assert time.monotonic() - rank.began < 4
    assert any(line.startswith(f"Waiting for rank 1 ({missing})") for line in chief.lines)


def test_a_chief_that_never_comes_is_named(start):
    _, other = start([None, ""], seconds=1.0)
    assert other.end() == 75
    assert re.search(
        r"rank 0 \(127.0.0.1:\d+\) did not appear within 1 s, says rank 1 .*Connection refused", other.said
    )


@pytest.mark.slow
def test_a_late_rank_is_waited_for(start):
    workers = [f"127.0.0.1:{port}" for port in free_ports(2)]
    _, other = start([None, 'say(peers.gather("a", 1))'], workers=workers)
    time.sleep(0.5)
    chief, _ = start(['peers.gather("a", 0)', None], workers=workers)
    assert (chief.end(), other.end()) == (0, 0)
    assert "[0, 1]" in other.lines


@pytest.mark.slow
def test_a_chief_that_starts_again_while_others_wait_is_met(start):
    workers = [f"127.0.0.1:{port}" for port in free_ports(3)]
    first, other, _ = start(["", 'say(peers.gather("a", 1))', None], workers=workers)
    first.wait_for("Waiting for rank 2")
    first.process.kill()
    first.end()
    chief, _, third = start(['peers.gather("a", 0)', None, 'peers.gather("a", 2)'], workers=workers)
    assert (chief.end(), other.end(), third.end()) == (0, 0, 0)
    assert "[0, 1, 2]" in other.lines


def test_a_name_that_does_not_resolve_is_named(start):
    ports = free_ports(2)
    chief, _ = start(["", None], workers=[f"127.0.0.1:{ports[0]}", f"{UNKNOWN_HOST}:{ports[1]}"], seconds=1.0)
    assert chief.end() == 75
    assert f"rank 1 ({UNKNOWN_HOST}:{ports[1]}), whose name does not resolve here" in chief.said

    _, other = start([None, ""], workers=[f"{UNKNOWN_HOST}:{ports[0]}", f"127.0.0.1:{ports[1]}"], seconds=1.0)
    assert other.end() == 75
    assert f"rank 0 ({UNKNOWN_HOST}:{ports[0]}) did not appear" in other.said
    assert "its name does not resolve here" in other.said


@pytest.mark.slow
def test_a_name_that_one_rank_cannot_resolve_is_told_to_all(start, tmp_path):
    """The tables of hosts of two machines may differ: rank 1 gets a resolver that does not know rank 2."""
    (tmp_path / "sitecustomize.py").write_text(
        "import json, socket, sys\n"
        "original = socket.getaddrinfo\n"
        "def ask(host, *rest, **more):\n"
        "    if host == 'localhost' and json.loads(sys.argv[1])['rank'] == 1:\n"
        "        raise socket.gaierror(-2, 'Name or service not known')\n"
        "    return original(host, *rest, **more)\n"
        "socket.getaddrinfo = ask\n"
    )
    ports = free_ports(3)
    workers = [f"127.0.0.1:{ports[0]}", f"127.0.0.1:{ports[1]}", f"localhost:{ports[2]}"]
    ranks = start([""] * 3, workers=workers, seconds=1.0, variables={"PYTHONPATH": str(tmp_path)})
    for rank in ranks:
        assert rank.end() == 75
        text = f"localhost, which rank 1 ({workers[1]}) cannot resolve: Name or service not known"
        assert text in rank.said


@pytest.mark.parametrize(("variables", "code"), [({}, 75), ({"MANYFIT_LOCAL_WORKER": "x"}, PORT_TAKEN_CODE)])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_port_that_is_taken_is_named_at_once(start, rank, variables, code):
    workers = [f"127.0.0.1:{port}" for port in free_ports(2)]
    port = int(workers[rank].partition(":")[2])
    with closing(listening_socket(port)):
        ranks = start([None] * rank + [""] + [None] * (1 - rank), workers=workers, variables=variables)
        assert ranks[rank].end() == code
    expected = f"Rank {rank} (127.0.0.1:{port}) cannot listen on its port {port}: Address already in use."
    assert expected in ranks[rank].said
    assert time.monotonic() - ranks[rank].began < 5


def test_two_processes_of_one_rank_are_refused_and_named(start):
    workers = [f"127.0.0.1:{port}" for port in free_ports(3)]
    chief, first, _ = start(['say(peers.gather("a", 0))', 'peers.gather("a", 1)', None], workers=workers)
    chief.wait_for("Waiting for rank 2")  # rank 1 has come
    with pytest.raises(ConfigError) as refused:  # from another host, where its port is free
        visit(Cluster("TF_CONFIG", tuple(workers), 1))
    text = f"rank 0 ({workers[0]}) refuses rank 1 ({workers[1]}): another process, at 127.0.0.1, is rank 1"
    assert text in str(refused.value)
    *_, third = start([None, None, 'peers.gather("a", 2)'], workers=workers)
    assert (chief.end(), first.end(), third.end()) == (0, 0, 0)
    assert "[0, 1, 2]" in chief.lines


def test_facts_that_differ_at_the_start_are_a_mistake_on_all_ranks(start):
    facts = {
        rank: {"optimizer": {"learning_rate": 0.1 if rank < 2 else 0.2}, "version of keras": "3.15.1"}
        for rank in range(3)
    }
    facts[1]["version of keras"] = "3.15.0"
    ranks = start([""] * 3, facts=facts)
    workers = ports_of(ranks)
    for rank in ranks:
        assert rank.end() == 2
        assert "here" not in rank.said
        for rank_there, there in ((1, "version of keras is 3.15.1"), (2, "optimizer.learning_rate is 0.1")):
            assert f"{there} on rank 0 ({workers[0]}), " in rank.said
            assert f" on rank {rank_there} ({workers[rank_there]})" in rank.said


@pytest.mark.slow
def test_strangers_on_the_port_are_sent_away_and_reported(start):
    workers = [f"127.0.0.1:{port}" for port in free_ports(3)]
    address = ("127.0.0.1", int(workers[0].partition(":")[2]))
    chief, first, _ = start(["", "", None], workers=workers, seconds=2.5)
    chief.wait_for("Waiting for rank 2")
    with socket.create_connection(address, 5) as web, socket.create_connection(address, 5) as silent:
        web.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert web.recv(100) == b""
        with pytest.raises(PeerError, match="refuses rank 2 .* it belongs to another job: 3 workers") as refused:
            visit(Cluster("TF_CONFIG", tuple(workers), 2, job="18"))
        assert refused.value.exit_code == 75
        for rank in (chief, first):
            assert rank.end() == 75
            assert "rank 2 of another job, at 127.0.0.1, knocked" in rank.said
            assert "something at 127.0.0.1 that is no run of this project knocked" in rank.said
        assert silent.recv(100) == b""


@pytest.mark.slow
def test_strangers_keep_nobody_from_assembling(start):
    workers = [f"127.0.0.1:{port}" for port in free_ports(3)]
    address = ("127.0.0.1", int(workers[0].partition(":")[2]))
    chief, first, _ = start(['say(peers.gather("a", 0))', 'peers.gather("a", 1)', None], workers=workers)
    chief.wait_for("Waiting for rank 2")
    strangers = [socket.create_connection(address, 5) for _ in range(50)]
    for number, stranger in enumerate(strangers):
        stranger.sendall(
            [b"", b"PRI * HTTP/2.0\r\n\r\n", b'{"manyfit": 1}\n', b"[1]\n", b"\xff\n", b"no end"][number % 6]
        )
    *_, third = start([None, None, 'peers.gather("a", 2)'], workers=workers)
    assert (chief.end(), first.end(), third.end()) == (0, 0, 0)
    assert "[0, 1, 2]" in chief.lines
    for stranger in strangers:
        stranger.close()


@pytest.mark.slow
def test_a_server_of_something_else_where_rank_0_should_be(start):
    workers = [f"127.0.0.1:{port}" for port in free_ports(2)]
    with closing(listening_socket(int(workers[0].partition(":")[2]))) as server:
        server.settimeout(0.1)
        _, other = start([None, ""], workers=workers, seconds=0.8)
        while other.process.poll() is None:
            with suppress(TimeoutError), server.accept()[0] as call:
                call.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")
                assert call.recv(10) == b'{"manyfit"'
    assert other.end() == 75
    assert f"rank 0 ({workers[0]}) did not appear within 0.8 s, says rank 1" in other.said
    assert "what answers there is no run of this project" in other.said


def test_tensorflow_can_take_the_port_while_the_connections_live(start):
    """gRPC sets SO_REUSEADDR, and SO_REUSEPORT unless TensorFlow forbids it."""
    code = """
import socket, time
for options in ([socket.SO_REUSEADDR], [socket.SO_REUSEADDR, socket.SO_REUSEPORT]):
    server = socket.socket(socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET)
    for option in options:
        server.setsockopt(socket.SOL_SOCKET, option, 1)
    server.bind(("", cluster.port(peers.rank)))
    server.listen()
    peers.gather("bound", 0)
    for rank in range(2):
        with socket.create_connection((cluster.host(rank), cluster.port(rank)), 5) as call:
            call.sendall(b"grpc")
    accepted = [server.accept()[0].recv(4) for _ in range(2)]
    assert accepted == [b"grpc"] * 2, accepted
    assert peers.gather("still there", peers.rank) == [0, 1]
    server.close()
    peers.gather("next", 0)
say("both")
"""
    for rank in start([code] * 2):
        assert rank.end() == 0, rank.said
        assert "both" in rank.lines


# --- losing each other ------------------------------------------------------------------------------------------------

TRAIN = """
import time
peers.watch(lambda message: say("lost:", message))
peers.gather("ready", 0)
say("trains")
time.sleep(60)
"""
"""A main thread that sees nothing, as in a call of TensorFlow."""


def trains(ranks):
    for rank in ranks:
        rank.wait_for("trains")
    return ranks


@pytest.mark.parametrize("killed", [0, 1])
def test_a_rank_that_is_killed_is_named_at_once_and_all_end(start, killed):
    ranks = trains(start([TRAIN] * 3))
    at = time.monotonic()
    ranks[killed].process.kill()
    for rank in (rank for rank in ranks if rank is not ranks[killed]):
        assert rank.end() == 75
        lost = [line for line in rank.lines if line.startswith("lost:")]
        assert len(lost) == 1, rank.said
        assert lost[0].startswith(f"lost: rank {killed} ({ports_of(ranks)[killed]}) is lost: its process or its host")
        assert (f"Error: {lost[0].removeprefix('lost: ')}" in rank.lines) == (rank is not ranks[0])
    assert time.monotonic() - at < 4


@pytest.mark.parametrize("stopped", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_a_rank_that_stands_still_is_named_and_all_end(start, stopped):
    ranks = trains(start([TRAIN] * 3, lost_after=1.0))
    at = time.monotonic()
    ranks[stopped].process.send_signal(signal.SIGSTOP)
    others = [rank for rank in ranks if rank is not ranks[stopped]]
    for rank in others:
        assert rank.end() == 75
        assert f"lost: rank {stopped} ({ports_of(ranks)[stopped]}) is lost: not a sign of it for 1 s" in rank.said
    assert 0.8 < time.monotonic() - at < 6
    ranks[stopped].process.send_signal(signal.SIGCONT)  # it finds the others gone
    assert ranks[stopped].end() == 75
    assert "lost: rank" in ranks[stopped].said


@pytest.mark.slow
def test_a_rank_that_stands_still_for_a_moment_is_not_lost(start):
    code = """
import time
peers.watch(lambda message: say("lost:", message))
peers.gather("ready", 0)
say("trains")
time.sleep(2.5)
say(peers.gather("after", peers.rank))
"""
    ranks = trains(start([code] * 2, lost_after=2.0))
    for rank in (0, 1):
        ranks[rank].process.send_signal(signal.SIGSTOP)
        time.sleep(0.8)
        ranks[rank].process.send_signal(signal.SIGCONT)
    assert [rank.end() for rank in ranks] == [0, 0], [rank.said for rank in ranks]


HOLDS = """
import ctypes
{before}
peers.gather("ready", 0)
ctypes.PyDLL(None).usleep(2_000_000 if peers.rank else 0)
{after}
say(peers.gather("imported", peers.rank))
"""
"""A call that lets no other thread run, as the import of TensorFlow's library does."""


@pytest.mark.slow
def test_a_rank_that_still_imports_may_be_silent_for_longer(start):
    watch = 'peers.watch(lambda message: say("lost:", message))'
    ranks = start([HOLDS.format(before="", after=watch)] * 2, lost_after=0.6)
    assert [rank.end() for rank in ranks] == [0, 0], [rank.said for rank in ranks]

    chief, _ = start([HOLDS.format(before=watch, after="")] * 2, lost_after=0.6)
    assert chief.end() == 75
    assert "lost: rank 1" in chief.said


@pytest.mark.slow
def test_a_rank_that_is_lost_while_the_others_import_ends_them_too(start):
    code = 'import time; peers.gather("ready", 0); say("trains"); time.sleep(60)'
    ranks = trains(start([code] * 3))
    ranks[1].process.kill()
    for rank in (ranks[0], ranks[2]):
        assert rank.end() == 75
        assert "Error: rank 1 " in rank.said


def test_a_rank_that_waits_gets_the_loss_as_an_error(start):
    code = """
import time
say("trains")
peers.gather("never", 0) if peers.rank != 1 else time.sleep(60)
"""
    ranks = trains(start([code] * 3))
    ranks[1].process.kill()
    for rank in (ranks[0], ranks[2]):
        assert rank.end() == 75
        assert "PeerError: rank 1 " in rank.said


@pytest.mark.slow
def test_an_error_that_comes_from_a_loss_is_told_as_the_loss(start):
    """TensorFlow raises an error of its own about a rank that is gone, maybe before the news of it."""
    code = """
import time
peers.watch(lambda message: say("lost:", message))
peers.gather("ready", 0)
say("trains")
if peers.rank == 1: time.sleep(60)
if peers.rank == 2:
    time.sleep(0.5)
    raise RuntimeError("tasks are unhealthy")
time.sleep(60)
"""
    ranks = trains(start([code] * 3, leave_seconds=5.0))
    ranks[1].process.kill()
    assert ranks[2].end() == 75
    assert "PeerError: rank 1 " in ranks[2].said and "unhealthy" not in ranks[2].lines[-2]


def test_an_error_of_its_own_stays_what_it_is(start):
    ranks = start(["peers.gather('ready', 0); 1 / 0", "import time; peers.gather('ready', 0); time.sleep(60)"])
    assert [rank.end() for rank in ranks] == [1, 1]
    assert "ZeroDivisionError: division by zero" in ranks[0].lines
    assert "rank 0" in ranks[1].said and "has ended with an error: ZeroDivisionError: division by zero" in ranks[1].said


@pytest.mark.slow
def test_a_main_thread_that_ends_by_itself_has_its_own_exit_code(start):
    code = """
import time
peers.watch(lambda message: say("lost:", message))
peers.gather("ready", 0)
say("trains")
if peers.rank == 0:
    while "lost" not in state: time.sleep(0.01)
    peers.close()
    sys.exit(3)
time.sleep(60)
"""
    code = "state = []\n" + code.replace('say("lost:", message)', 'state.append("lost")')
    ranks = trains(start([code] * 2, leave_seconds=5.0))
    ranks[1].process.kill()
    assert ranks[0].end() == 3


def test_a_normal_end_is_no_loss(start):
    code = """
import time
peers.watch(lambda message: say("lost:", message))
peers.gather("ready", 0)
time.sleep(0 if peers.rank else 0.8)
"""
    for rank in start([code] * 3, lost_after=1.0):
        assert rank.end() == 0
        assert "lost" not in rank.said


@pytest.mark.parametrize("ended", [0, 1])
def test_waiting_for_a_rank_that_has_ended_is_an_error(start, ended):
    code = f"""
import time
if peers.rank != {ended}:
    time.sleep(0.3)
    peers.gather("more", 0)
"""
    ranks = start([code] * 2)
    assert ranks[ended].end() == 0
    other = ranks[1 - ended]
    assert other.end() == 1
    assert re.search(rf"PeerError: rank {ended} \(.*\) has ended, while .* at 'more'", other.said)


@pytest.mark.parametrize("failed", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_an_error_of_one_rank_ends_all_with_its_text_and_code(start, failed):
    code = f"""
import time
from manyfit.errors import DataError
peers.watch(lambda message: say("lost:", message))
peers.gather("ready", 0)
if peers.rank == {failed}:
    raise DataError("photo 7 is broken.", "Mend it.")
time.sleep(60)
"""
    ranks = start([code] * 3)
    assert ranks[failed].end() == 2
    for rank in (rank for rank in ranks if rank is not ranks[failed]):
        assert rank.end() == 2
        assert (
            f"lost: rank {failed} ({ports_of(ranks)[failed]}) has ended with an error: photo 7 is broken." in rank.said
        )


@pytest.mark.slow
def test_what_was_printed_is_not_lost_in_the_end(start):
    code = TRAIN.replace("time.sleep(60)", 'print("the last words", end="")\ntime.sleep(60)')
    ranks = trains(start([code] * 2))
    time.sleep(0.2)
    ranks[1].process.kill()
    assert ranks[0].end() == 75
    assert "the last words" in ranks[0].said


# --- lines ------------------------------------------------------------------------------------------------------------

messages = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)


@given(st.lists(messages, max_size=6), st.lists(st.integers(1, 40), min_size=1))
@settings(max_examples=60)
def test_messages_survive_however_they_are_cut(sent, cuts):
    left, right = socket.socketpair()
    with left, right:
        connection = Connection(0, right)
        connection.prepare()
        data, received = b"".join(map(encoded, sent)), []
        for number in range(len(data)):
            if not data:
                break
            cut = cuts[number % len(cuts)]
            left.sendall(data[:cut])
            data = data[cut:]
            found, ended = connection.read()
            assert ended is None
            received += found
        left.close()
        found, ended = connection.read()
        assert received + found == sent
        assert ended == "the connection was closed"


@given(st.binary())
def test_a_line_that_is_no_json_is_nothing(line):
    try:
        expected = json.loads(line)
    except ValueError:
        expected = None
    assert decoded(line) == expected or expected != expected


def test_facts_are_compared_leaf_by_leaf():
    names = ["rank 0 (a:1)", "rank 1 (b:1)"]
    assert differences(names, [{"a": {"b": 1, "c": [1]}}, {"a": {"b": 1, "c": [1]}}]) == ""
    assert differences(names, [{"a": {"b": 1}}, {"a": {"b": 2}, "d": True}]) == (
        "The workers differ: a.b is 1 on rank 0 (a:1), 2 on rank 1 (b:1); d is not there on rank 0 (a:1), True on "
        "rank 1 (b:1)."
    )
    many = [{str(key): rank for key in range(20)} for rank in range(2)]
    assert differences(names, many).count(" on rank 1") == 6
    assert differences(names, many).endswith("; and 14 more.")
