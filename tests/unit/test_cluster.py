"""Which processes train together: TF_CONFIG, Slurm or this machine, and what is wrong with what they say."""

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyfit import slurm
from manyfit.cluster import Cluster, from_tf_config, resolve, split_address, stray
from manyfit.config import MultiWorkerConfig
from manyfit.errors import ConfigError


def tf_config(cluster=None, task=None, **more):
    cluster = {"worker": ["n1:2222", "n2:2222"]} if cluster is None else cluster
    return json.dumps({"cluster": cluster, "task": task or {"type": "worker", "index": 0}, **more})


def a_slurm_step(monkeypatch, num_workers, rank=0):
    workers = tuple(f"n{number}:{20000 + number}" for number in range(num_workers))
    found = Cluster("Slurm", workers, rank, job="17")
    monkeypatch.setattr(slurm, "from_environment", lambda environ: found)
    return found


# --- what is found ----------------------------------------------------------------------------------------------------


def test_a_list_of_workers():
    cluster = from_tf_config(tf_config(task={"type": "worker", "index": 1}))
    assert cluster.workers == ("n1:2222", "n2:2222")
    assert (cluster.source, cluster.num_workers, cluster.rank, cluster.is_chief) == ("TF_CONFIG", 2, 1, False)
    assert cluster.describe() == "2 workers (TF_CONFIG): n1:2222, n2:2222; this is rank 1"


def test_a_chief_is_rank_0():
    jobs = {"worker": ["w0:1", "w1:1"], "chief": ["c:1"]}
    chief = from_tf_config(tf_config(jobs, {"type": "chief", "index": 0}))
    assert (chief.workers, chief.rank, chief.is_chief) == (("c:1", "w0:1", "w1:1"), 0, True)
    worker = from_tf_config(tf_config(jobs, {"type": "worker", "index": 1}))
    assert (worker.workers, worker.rank, worker.is_chief) == (chief.workers, 2, False)
    assert from_tf_config(tf_config({"chief": ["c:1"]}, {"type": "chief", "index": 0})).num_workers == 1


def test_what_others_add_to_tf_config_is_no_mistake():
    """Kubeflow adds `environment`; some write the index as text."""
    cluster = from_tf_config(tf_config(task={"type": "worker", "index": "1"}, environment="cloud"))
    assert cluster.rank == 1


hosts = st.from_regex(r"[a-z][a-z0-9-]{0,8}(\.[a-z]{1,3})?", fullmatch=True) | st.just("[fe80::1%eth0]")
addresses = st.tuples(hosts, st.integers(1, 65535)).map(lambda pair: f"{pair[0]}:{pair[1]}")


@given(st.lists(addresses, min_size=1, max_size=6, unique_by=str.lower), st.booleans(), st.data())
def test_what_tensorflow_is_told_reads_back_as_the_same_cluster(workers, has_chief_task, data):
    rank = data.draw(st.integers(0, len(workers) - 1))
    cluster = Cluster("TF_CONFIG", tuple(workers), rank, has_chief_task=has_chief_task)
    assert from_tf_config(json.dumps(cluster.tf_config())) == cluster


def test_tensorflow_is_told_the_form_that_came():
    text = tf_config({"chief": ["c:1"], "worker": ["w:1"]}, {"type": "worker", "index": 0})
    assert from_tf_config(text).tf_config() == json.loads(text)


def test_addresses_are_taken_apart():
    assert split_address("10.0.0.1:80") == ("10.0.0.1", 80)
    assert split_address("a-b.c:65535") == ("a-b.c", 65535)
    assert split_address("[::1]:2222") == ("::1", 2222)
    cluster = Cluster("TF_CONFIG", ("n1:1", "[::1]:2"), 1)
    assert (cluster.host(1), cluster.port(1), cluster.name(1)) == ("::1", 2, "rank 1 ([::1]:2)")


def test_a_large_cluster_is_one_line():
    cluster = Cluster("Slurm", tuple(f"n{number}:20417" for number in range(64)), 3, job="17")
    expected = "64 workers (Slurm job 17): n0:20417, n1:20417, n2:20417, n3:20417, n4:20417, n5:20417, ..., n63:20417"
    assert cluster.describe() == f"{expected}; this is rank 3"


def test_starts_are_told_apart():
    one = Cluster("Slurm", ("a:1", "b:1"), 0, job="17")
    assert one.token() == Cluster("Slurm", ("a:1", "b:1"), 1, job="17").token()
    others = [Cluster("Slurm", ("a:1", "b:1"), 0, job="18"), Cluster("Slurm", ("a:1", "b:2"), 0, job="17")]
    assert len({cluster.token() for cluster in (one, *others)}) == 3


# --- who is asked, in which order -------------------------------------------------------------------------------------


def test_tf_config_comes_before_slurm(monkeypatch):
    a_slurm_step(monkeypatch, 4)
    found = resolve(MultiWorkerConfig(), {"TF_CONFIG": tf_config()})
    assert found is not None and found.source == "TF_CONFIG"


def test_slurm_comes_next(monkeypatch):
    step = a_slurm_step(monkeypatch, 4)
    assert resolve(MultiWorkerConfig(), {"TF_CONFIG": ""}) == step


def test_local_workers_have_to_be_started_and_then_know_that_they_are():
    config = MultiWorkerConfig(local_workers=2)
    assert resolve(config, {}) is None
    started = resolve(config, {"TF_CONFIG": tf_config(), "MANYFIT_LOCAL_WORKER": "x"})
    assert started is not None and started.source == "local"
    assert started.describe().startswith("2 workers (local): n1:2222")


def test_local_workers_may_be_rehearsed_in_a_step_of_one_task(monkeypatch):
    a_slurm_step(monkeypatch, 1)
    assert resolve(MultiWorkerConfig(local_workers=2), {}) is None


def test_local_workers_and_a_cluster_contradict_each_other(monkeypatch):
    config = MultiWorkerConfig(local_workers=2)
    with pytest.raises(ConfigError, match=r"local_workers=2 .* but TF_CONFIG is set: 2 workers \(TF_CONFIG\): n1:2222"):
        resolve(config, {"TF_CONFIG": tf_config()})
    a_slurm_step(monkeypatch, 2)
    with pytest.raises(ConfigError, match=r"local_workers=2 .* but Slurm has started this job step: 2 workers"):
        resolve(config, {})


def test_no_cluster_at_all_is_answered_with_the_three_ways():
    with pytest.raises(ConfigError, match="found no cluster") as error:
        resolve(MultiWorkerConfig(), {})
    for word in ("strategy.local_workers=N", "srun", "TF_CONFIG"):
        assert word in error.value.remedy


# --- mistakes ---------------------------------------------------------------------------------------------------------

WORKER_0 = {"type": "worker", "index": 0}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{'cluster': 1}", "is no JSON"),
        ("[1]", "has no 'cluster'"),
        (json.dumps({"task": WORKER_0}), "has no 'cluster'"),
        (tf_config({}), "has no list of workers"),
        (tf_config({"worker": []}), "has no list of workers"),
        (tf_config({"worker": {"0": "n1:1"}}), "is no list of addresses"),
        (tf_config({"worker": "n1:1"}), "is no list of addresses"),
        (tf_config({"worker": ["n1:1"], "ps": ["p:1"]}), "has the job 'ps'"),
        (tf_config({"worker": ["n1:1"], "master": ["p:1"]}), "has the job 'master'"),
        (tf_config({"worker": ["n1:1"], "chief": ["a:1", "b:1"]}), "has 2 chiefs"),
        (tf_config(task={"type": "evaluator", "index": 0}), "makes this process the task 'evaluator'"),
        (tf_config(task={"type": "ps", "index": 0}), "makes this process the task 'ps'"),
        (tf_config(task={"type": "chief", "index": 0}), "makes this process chief 0, but its list 'chief' has 0"),
        (tf_config(task={"type": "worker", "index": 2}), "makes this process worker 2, but its list 'worker' has 2"),
        (tf_config(task={"type": "worker", "index": -1}), "makes this process worker -1"),
        (tf_config(task={"type": "worker", "index": True}), "which is no whole number"),
        (tf_config(task={"type": "worker", "index": "one"}), "which is no whole number"),
        (tf_config(task={"type": "worker"}), "does not say which task"),
        (json.dumps({"cluster": {"worker": ["n1:1"]}}), "does not say which task"),
        (tf_config({"worker": ["n1", "n2:1"]}), "'n1' is not HOST:PORT"),
        (tf_config({"worker": ["n1:0", "n2:1"]}), "'n1:0' is not HOST:PORT"),
        (tf_config({"worker": ["n1:70000"]}), "'n1:70000' is not HOST:PORT"),
        (tf_config({"worker": [":2222"]}), "':2222' is not HOST:PORT"),
        (tf_config({"worker": ["::1:2222"]}), "'::1:2222' is not HOST:PORT"),
        (tf_config({"worker": ["grpc://n1:2222"]}), "is not HOST:PORT"),
        (tf_config({"worker": ["n1:2222", "N1:2222"]}), "Ranks 0 and 1 have the same address N1:2222"),
    ],
)
def test_a_mistake_in_tf_config_is_named(text, said):
    with pytest.raises(ConfigError) as error:
        from_tf_config(text)
    assert error.value.message.startswith("TF_CONFIG")
    assert said in error.value.message
    assert error.value.remedy


@given(
    st.recursive(
        st.none() | st.integers() | st.text(),
        lambda inner: (
            st.lists(inner)
            | st.dictionaries(
                st.sampled_from(["cluster", "task", "worker", "chief", "type", "index"]) | st.text(), inner
            )
        ),
        max_leaves=12,
    )
)
def test_no_json_makes_anything_but_a_cluster_or_a_message(told):
    with contextlib.suppress(ConfigError):
        from_tf_config(json.dumps(told))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"local_workers": 0}, "strategy.local_workers=0"),
        ({"assemble_seconds": 0}, "strategy.assemble_seconds=0"),
        ({"lost_after_seconds": float("inf")}, "strategy.lost_after_seconds=inf"),
        ({"communication": "mpi"}, "strategy.communication=mpi"),
        ({"communication": "nccl", "device": "cpu"}, "strategy.communication=nccl needs GPUs"),
        ({"cross_device_ops": "nccl"}, "strategy.cross_device_ops=nccl"),
        ({"replicas": 0}, "strategy.replicas=0"),
    ],
)
def test_a_value_that_cannot_be_is_named(given, said):
    with pytest.raises(ConfigError, match=said):
        MultiWorkerConfig(**given)


def test_each_worker_may_have_several_replicas():
    assert MultiWorkerConfig(local_workers=2, replicas=4, device="cpu").replicas == 4


# --- a cluster that nobody asked for ----------------------------------------------------------------------------------


def test_a_stray_cluster_is_pointed_out():
    told = stray({"TF_CONFIG": tf_config(task={"type": "worker", "index": 1})}, "mirrored")
    assert told is not None
    assert "rank 1 of 2 workers, but strategy=mirrored trains in this process alone" in told
    assert "strategy=multi_worker" in told
    assert "TF_CONFIG is set, but strategy=one_device" in (stray({"TF_CONFIG": "{"}, "one_device") or "")
    assert "one of 4 tasks" in (stray({"SLURM_STEP_NUM_TASKS": "4"}, "mirrored") or "")


@pytest.mark.parametrize(
    ("environ", "strategy"),
    [
        ({}, "mirrored"),
        ({"TF_CONFIG": ""}, "mirrored"),
        ({"TF_CONFIG": tf_config({"worker": ["n1:1"]})}, "mirrored"),
        ({"SLURM_STEP_NUM_TASKS": "1"}, "mirrored"),
        ({"TF_CONFIG": tf_config()}, "multi_worker"),
    ],
)
def test_nothing_is_said_where_all_is_well(environ, strategy):
    assert stray(environ, strategy) is None
