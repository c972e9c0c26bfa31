"""The cluster that Slurm's variables describe, and what is refused; the same on a real Slurm is in tests/e2e."""

import itertools
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyfit import cluster, slurm, slurm_hosts
from manyfit.errors import ConfigError
from manyfit.schema.place import MultiWorkerConfig

JOB = {"SLURM_JOB_ID": "17", "SLURM_JOB_NUM_NODES": "2"}
STEP = {
    **JOB,
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "1",
    "SLURM_NODEID": "1",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_STEP_NODELIST": "n[1-2]",
    "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
    "SLURMD_NODENAME": "n2",
}


@pytest.fixture(autouse=True)
def names(monkeypatch):
    """Every name resolves, and there is no scontrol; a test that wants otherwise says so."""
    monkeypatch.setattr(slurm_hosts, "_resolves", lambda name: True)
    monkeypatch.setattr(slurm_hosts, "_scontrol", lambda *arguments: None)


def step(**changes):
    return {name: value for name, value in {**STEP, **changes}.items() if value is not None}


def at(rank, nodes, per_node, distribution=None, **more):
    """The variables of a task that does not know where it is."""
    return step(
        SLURM_PROCID=str(rank), SLURM_NODEID=None, SLURMD_NODENAME=None, SLURM_STEP_NODELIST=nodes,
        SLURM_STEP_TASKS_PER_NODE=per_node, SLURM_STEP_NUM_TASKS=str(sum(slurm_hosts.expand_counts(per_node))),
        SLURM_DISTRIBUTION=distribution, **more,
    )  # fmt: skip


def hosts(environ):
    found = slurm.from_environment(environ)
    assert found is not None
    return [found.host(rank) for rank in range(found.num_workers)]


def test_a_task_of_a_step_is_a_rank_of_its_cluster():
    found = slurm.from_environment(STEP)
    assert found == cluster.Cluster("Slurm", ("n1:20272", "n2:20273"), 1, job="17.0")
    assert found.tf_config()["task"] == {"type": "worker", "index": 1}


def test_ranks_follow_slurms_order_not_the_alphabet():
    assert hosts(at(0, "n[8-11]", "1(x4)")) == ["n8", "n9", "n10", "n11"]
    assert hosts(at(0, "n[8-10]", "2,1(x2)")) == ["n8", "n8", "n9", "n10"]


@pytest.mark.parametrize(
    ("distribution", "expected"),
    [
        (None, "aaabb"),
        ("block", "aaabb"),
        ("block:cyclic", "aaabb"),
        ("*:cyclic", "aaabb"),
        ("cyclic", "ababa"),
        ("cyclic:block,nopack", "ababa"),
        ("plane", "aabba"),
    ],
)
def test_the_layout_of_tasks_over_nodes_is_slurms(distribution, expected):
    """What Slurm 22.05 did with `srun -N2 -n5 -m ...` (and plane=2)."""
    assert "".join(hosts(at(0, "a,b", "3,2", distribution, SLURM_DIST_PLANESIZE="2"))) == expected


@given(
    per_node=st.lists(st.integers(1, 6), min_size=1, max_size=6),
    distribution=st.sampled_from(["block", "cyclic", "plane=1", "plane=2", "plane=7"]),
)
def test_every_layout_gives_each_node_its_number_of_tasks(per_node, distribution):
    nodes = tuple(f"n{number}" for number in range(len(per_node)))
    places = slurm.Step(1, 0, 0, 0, sum(per_node), nodes, tuple(per_node), distribution).node_of_rank()
    assert [places.count(node) for node in range(len(per_node))] == per_node
    if distribution == "block":
        assert places == sorted(places)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"SLURM_NODEID": "0", "SLURMD_NODENAME": "n1"}, "rank 1 is on n2 (node 1), but Slurm says that it is on n1"),
        ({"SLURMD_NODENAME": "m2"}, "it is on m2"),
        ({"SLURM_DISTRIBUTION": "arbitrary"}, "'arbitrary'"),
        ({"SLURM_STEP_NUM_TASKS": "3"}, "contradicts itself"),
        ({"SLURM_STEP_TASKS_PER_NODE": "1"}, "contradicts itself"),
        ({"SLURM_STEP_TASKS_PER_NODE": "1(x"}, "SLURM_STEP_TASKS_PER_NODE=1(x cannot"),
        ({"SLURM_PROCID": "2"}, "SLURM_PROCID=2 is none of the 2 tasks"),
        ({"SLURM_PROCID": "x"}, "SLURM_PROCID=x is no whole number"),
        ({"SLURM_STEP_NODELIST": None}, "SLURM_STEP_NODELIST is not set"),
        ({"SLURM_STEP_NODELIST": "n[1-"}, "n[1- cannot be understood"),
        ({"SLURM_HET_SIZE": "2"}, "heterogeneous"),
    ],
)
def test_what_contradicts_itself_is_refused_in_words(changes, message):
    with pytest.raises(ConfigError) as refused:
        slurm.from_environment(step(**changes))
    assert message in refused.value.message and refused.value.remedy


@given(st.dictionaries(st.sampled_from(sorted(STEP)), st.text(alphabet="0123n[]-,(x)", max_size=12)))
def test_any_nonsense_ends_as_a_cluster_or_as_a_message(changes):
    try:
        found = slurm.from_environment({**STEP, **changes})
    except ConfigError as error:
        assert error.message and error.remedy
    else:
        assert found is None or found.num_workers >= 1


# --- outside of a step ------------------------------------------------------------------------------------------------

BATCH = {**JOB, "SLURM_PROCID": "0", "SLURM_NODEID": "0", "SLURM_NTASKS": "2"}  # in a batch script a rank, but no step


@pytest.mark.parametrize(
    ("environ", "remedy"),
    [
        (BATCH, "srun --nodes=2 --ntasks-per-node=1 python"),
        (JOB, "srun --nodes=2"),
        ({**BATCH, "SLURM_JOB_NUM_NODES": "1"}, "srun --ntasks=2 python"),
        ({**BATCH, "SLURM_STEP_ID": "4294967291"}, "srun --nodes=2"),  # the batch step
        ({**STEP, "SLURM_STEP_ID": "4294967290"}, "srun --nodes=2"),  # salloc's interactive step
        (step(SLURM_STEP_NUM_TASKS="1", SLURM_PROCID="0", SLURM_STEP_NODELIST="n1", SLURM_STEP_TASKS_PER_NODE="1"),
         "strategy=mirrored"),
    ],
)  # fmt: skip
def test_a_job_of_several_is_never_trained_on_by_one_in_silence(environ, remedy):
    with pytest.raises(ConfigError) as refused:
        slurm.from_environment(environ)
    assert "job 17 has 2" in refused.value.message and remedy in refused.value.remedy


def test_a_shell_on_one_node_is_a_machine_like_any_other():
    assert slurm.from_environment({}) is None
    assert slurm.from_environment({"SLURM_CONF": "/etc/slurm/slurm.conf"}) is None
    shell = {"SLURM_JOB_ID": "17", "SLURM_JOB_NUM_NODES": "1", "SLURM_NTASKS": "1"}
    assert slurm.from_environment(shell) is None
    assert cluster.resolve(MultiWorkerConfig(local_workers=2), shell) is None


def test_a_step_of_one_task_is_a_cluster_of_one():
    alone = {
        **at(0, "n1", "1"),
        "SLURM_JOB_NUM_NODES": "1",
    }
    found = slurm.from_environment(alone)
    assert found is not None and found.workers == ("n1:20272",) and found.is_chief
    assert cluster.resolve(MultiWorkerConfig(local_workers=2), alone) is None


# --- lists of nodes, addresses, ports ---------------------------------------------------------------------------------

WORDS = st.text(alphabet="abn-", min_size=1, max_size=4).filter(lambda text: not text.startswith("-"))
NUMBERS = st.lists(st.integers(0, 120), min_size=1, max_size=4, unique=True)


@given(prefix=WORDS, numbers=NUMBERS, width=st.integers(1, 4), others=st.lists(WORDS, max_size=2))
def test_a_short_form_is_written_out(prefix, numbers, width, others):
    ranges = ",".join(f"{number:0{width}d}-{number + 2:0{width}d}" for number in numbers)
    written = [f"{prefix}{n:0{width}d}" for number in numbers for n in range(number, number + 3)]
    assert slurm_hosts.expand_hosts(",".join([f"{prefix}[{ranges}]", *others])) == [*written, *others]


@pytest.mark.parametrize("text", ["n[1-2", "n]", "n[a-b]", "n[2-1]", "n[]", ",n1", "n1,", "n[1-99999999]", "a b", ""])
def test_what_has_no_simple_form_is_left_to_scontrol(text, monkeypatch):
    with pytest.raises(ConfigError, match="cannot be understood"):
        slurm_hosts.expand_hosts(text)
    monkeypatch.setattr(slurm_hosts, "_scontrol", lambda *words: "x1\nx2\n" if words[-1] == text else None)
    assert slurm_hosts.expand_hosts(text) == ["x1", "x2"]


def test_a_name_that_does_not_resolve_has_the_address_that_slurm_knows(monkeypatch):
    asked = []

    def scontrol(*words):
        asked.append(words)
        return (
            "NodeName=n2 Arch=x86_64 NodeAddr=10.0.0.2 NodeHostName=n2 Version=22.05.8\n"
            "NodeName=n3 Arch=x86_64 NodeAddr=fd00::3 NodeHostName=n3\n"
        )

    monkeypatch.setattr(slurm_hosts, "_scontrol", scontrol)
    monkeypatch.setattr(slurm_hosts, "_resolves", lambda name: name not in ("n2", "n3"))
    found = slurm.from_environment(at(0, "n[1-3]", "1(x3)"))
    assert found is not None and found.workers == ("n1:20272", "10.0.0.2:20273", "[fd00::3]:20274")
    assert asked == [("--oneliner", "show", "node", "n2,n3")]


def test_a_node_without_an_address_is_named(monkeypatch):
    monkeypatch.setattr(slurm_hosts, "_resolves", lambda name: name != "n2")
    with pytest.raises(ConfigError) as refused:
        slurm.from_environment(STEP)
    assert "node n2 cannot be found" in refused.value.message and socket.gethostname() in refused.value.message


def test_near_jobs_steps_and_restarts_share_no_port():
    taken = {}
    for job, number, restarts in itertools.product(range(990, 1021), range(2), range(2)):
        base = slurm.base_port(job, number, restarts, 8)
        assert base >= slurm.FIRST_PORT and base + 16 <= slurm.LAST_PORT + 1 <= 32_768
        for port in range(base, base + 16):
            assert taken.setdefault(port, (job, number, restarts)) == (job, number, restarts)


@given(job=st.integers(1, 2**31), number=st.integers(0, 10_000), tasks=st.integers(1, slurm.MOST_TASKS))
def test_all_ports_of_a_step_are_below_those_of_clients(job, number, tasks):
    base = slurm.base_port(job, number, 0, tasks)
    assert base >= slurm.FIRST_PORT and base + tasks - 1 <= slurm.LAST_PORT


def test_more_tasks_than_ports_are_refused():
    with pytest.raises(ConfigError, match="12001 tasks"):
        slurm.base_port(1, 0, 0, slurm.MOST_TASKS + 1)
