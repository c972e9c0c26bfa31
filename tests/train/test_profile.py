"""The profiler: its summary on traces with known numbers, and a training that is really traced."""

import gzip
import io
import json
from pathlib import Path

import keras
import pytest
import tensorflow as tf
from tensorflow.tsl.profiler.protobuf import xplane_pb2

from manyfit import fit
from manyfit.callbacks.profiler import Profile, read_trace, steps_to_trace
from manyfit.config import (
    BatchConfig,
    ProfileConfig,
    RunConfig,
    SmallCNNConfig,
    StrategyConfig,
    SyntheticConfig,
    TrackerConfig,
)
from manyfit.console import Console, as_text
from manyfit.errors import ConfigError
from manyfit.record import RunRecord
from manyfit.report.profile import COMPUTE, COPIES, IDLE, INPUT, PARTS, STEPS, SYNCHRONISATION, sentence, summary
from manyfit.report.profile_text import terminal
from manyfit.report.profile_trace import write_trace

# Keras' own saving, NumPy 2
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

MS = 10**9
"""A millisecond in the trace's unit."""


def add_plane(space, name, lines, operations=None):
    """A plane whose lines are {name: [(event, begin, end), ...]} in milliseconds, begun 5 ms after the trace.

    `operations` names the TensorFlow operation of an event, as the GPU's planes do: by a reference to a name.
    """
    plane = space.planes.add(name=name)
    ids = {}

    def identity(text, table):
        key = ids.setdefault((table, text), len(ids) + 1)
        getattr(plane, table)[key].id, getattr(plane, table)[key].name = key, text
        return key

    for line_name, events in lines.items():
        line = plane.lines.add(name=line_name, timestamp_ns=5_000_000)
        for event_name, begin, end in events:
            event = line.events.add(metadata_id=identity(event_name, "event_metadata"))
            event.offset_ps, event.duration_ps = round((begin - 5) * MS), round((end - begin) * MS)
            if operations and event_name in operations:
                stat = event.stats.add(metadata_id=identity("tf_op", "stat_metadata"))
                stat.ref_value = identity(operations[event_name], "stat_metadata")
    return plane


@pytest.fixture
def on_a_cpu():
    """Two calls, together 100 ms from 100 to 200: 60 computing, 10 synchronising, 20 waiting for input, 10 nothing."""
    space = xplane_pb2.XSpace()
    add_plane(
        space,
        "/host:CPU",
        {
            "python": [(STEPS, 100, 140), ("EagerExecute", 100, 139), (STEPS, 150, 200)],
            "tf_Compute/1": [
                ("warm/conv/Conv2D:_MklNativeFusedConv2D", 50, 90),  # before the steps
                ("ExecutorState::Process", 100, 140),  # no operation
                ("while/conv/Conv2D:_MklNativeFusedConv2D", 110, 140),  # 30 ms, 5 of them inside
                ("while/conv/inner:BiasAdd", 115, 120),
                ("while/dense/MatMul:_MklMatMul", 160, 170),
            ],
            "tf_Compute/2": [
                ("while/replica_1/conv/Conv2D:_MklNativeFusedConv2D", 130, 150),  # 10 ms at the same time
                ("while/adam/ResourceApplyAdam:ResourceApplyAdam", 190, 200),
            ],
            "collective_ops/3": [("while/CollectiveReduceV2:CollectiveReduceV2", 140, 160)],  # 10 ms beside the other
            "tf_data_iterator_get_next/4": [
                ("IteratorGetNextOp::DoCompute", 165, 190),  # 20 ms in which nothing else runs
                ("Iterator::Root::Prefetch", 166, 189),
            ],
            "tf_data_private_threadpool/5": [("map/decode/DecodeJpeg:DecodeJpeg", 120, 180)],  # in the background
        },
    )
    return space


def test_the_time_of_the_steps_is_shared_out(on_a_cpu):
    section = summary(on_a_cpu, epoch=1, first_step=10, last_step=19)
    assert section["shares"] == pytest.approx({COMPUTE: 0.6, SYNCHRONISATION: 0.1, COPIES: 0, INPUT: 0.2, IDLE: 0.1})
    assert section["seconds"] == pytest.approx(0.1) and section["milliseconds_a_step"] == pytest.approx(10)
    assert section["devices"] == [{"name": "CPU", "idle_share": pytest.approx(0.3)}]
    assert section["host_seconds"] == pytest.approx(0.07) and section["device_seconds"] is None
    assert (section["epoch"], section["first_step"], section["last_step"]) == (1, 10, 19)


def test_operations_are_ranked_by_their_own_time(on_a_cpu):
    section = summary(on_a_cpu, epoch=1, first_step=10, last_step=19)
    own = {one["operation"]: (one["seconds"], one["calls"]) for one in section["operations"]}
    assert own == {
        "FusedConv2D": (pytest.approx(0.045), 2),  # (30 - 5) + 20, both replicas; not what ran before the steps
        "CollectiveReduceV2": (pytest.approx(0.02), 1),
        "MatMul": (pytest.approx(0.01), 1),
        "ResourceApplyAdam": (pytest.approx(0.01), 1),
        "BiasAdd": (pytest.approx(0.005), 1),
    }
    assert list(own) == ["FusedConv2D", "CollectiveReduceV2", "MatMul", "ResourceApplyAdam", "BiasAdd"]
    assert sum(one["share"] for one in section["operations"]) == pytest.approx(1)
    assert [one["operation"] for one in section["input_operations"]] == ["DecodeJpeg"]
    assert section["input_operations"][0]["seconds"] == pytest.approx(0.06)


def test_gpus_are_told_apart_and_their_kernels_bear_the_names_of_operations():
    """On a trace made as CUPTI's collector makes them; no such trace of a real GPU was at hand."""
    space = xplane_pb2.XSpace()
    add_plane(
        space,
        "/host:CPU",
        {
            "python": [(STEPS, 0, 100)],
            "tf_Compute/1": [("while/conv:Conv2D", 0, 4)],  # launching it
            "tf_data_iterator_get_next/2": [("IteratorGetNextOp::DoCompute", 0, 20)],
        },
    )
    kernels = {"volta_sgemm": "model/dense/MatMul:MatMul", "implicit_gemm": "model/conv/Conv2D:Conv2D"}
    add_plane(
        space,
        "/device:GPU:0",
        {
            "Stream #13(Compute)": [
                ("implicit_gemm", 20, 60),
                ("volta_sgemm", 60, 70),
                ("ncclDevKernel_AllReduce", 70, 90),
            ],
            "Stream #14(MemcpyH2D)": [("MemcpyH2D", 10, 25)],
            "TensorFlow Ops": [("model/conv/Conv2D:Conv2D", 20, 60)],  # the same once more
        },
        kernels,
    )
    add_plane(
        space,
        "/device:GPU:1",
        {"Stream #13(Compute)": [("implicit_gemm", 20, 30), ("unnamed_kernel", 30, 50)]},
        kernels,
    )
    section = summary(space, epoch=2, first_step=2, last_step=2)
    assert [one["name"] for one in section["devices"]] == ["GPU:0", "GPU:1"]
    # GPU 0: 50 computing, 20 NCCL, 10 copying alone, 10 waiting alone, 10 idle; GPU 1: 30, 0, 0, 20, 50.
    assert section["shares"] == pytest.approx(
        {COMPUTE: 0.4, SYNCHRONISATION: 0.1, COPIES: 0.05, INPUT: 0.15, IDLE: 0.3}
    )
    assert [one["idle_share"] for one in section["devices"]] == pytest.approx([0.2, 0.7])
    assert section["device_seconds"] == pytest.approx(0.055) and section["host_seconds"] == pytest.approx(0.004)
    own = {one["operation"]: one["seconds"] for one in section["operations"]}
    assert own["Conv2D"] == pytest.approx(0.05) and own["MatMul"] == pytest.approx(0.01)
    assert own["unnamed_kernel"] == pytest.approx(0.02) and "TensorFlow Ops" not in own
    shown = "\n".join(as_text(part) for part in terminal(section, Path("profile")))
    assert "GPU:0 20 %, GPU:1 70 %" in shown and "host 4.00 ms, device 55.00 ms" in shown


def test_a_trace_without_the_steps_is_an_error():
    with pytest.raises(ValueError, match=STEPS):
        summary(xplane_pb2.XSpace(), epoch=1, first_step=2, last_step=3)


def test_the_trace_for_perfetto_keeps_names_and_times(on_a_cpu, tmp_path):
    write_trace(on_a_cpu, tmp_path / "trace.json.gz")
    events = json.loads(gzip.decompress((tmp_path / "trace.json.gz").read_bytes()))["traceEvents"]
    [decode] = [event for event in events if event["name"] == "map/decode/DecodeJpeg:DecodeJpeg"]
    assert (decode["ts"], decode["dur"]) == (120_000, 60_000)
    threads = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert threads[decode["tid"]] == "tf_data_private_threadpool/5"


@pytest.mark.parametrize(
    ("asked", "steps_per_epoch", "expected"),
    [(None, 9, None), (True, 500, (10, 20)), (True, 20, (10, 20)), (True, 19, (2, 19)), ([2, 2], 2, (2, 2))],
)
def test_which_steps_are_traced(asked, steps_per_epoch, expected):
    assert steps_to_trace(ProfileConfig(asked), steps_per_epoch, 1) == expected


@pytest.mark.parametrize(("asked", "steps_per_epoch"), [(True, 1), ([2, 3], 1), ([10, 21], 20)])
def test_steps_that_an_epoch_does_not_have_are_refused(asked, steps_per_epoch):
    with pytest.raises(ConfigError) as error:
        steps_to_trace(ProfileConfig(asked), steps_per_epoch, 1)
    assert error.value.remedy


def test_an_epoch_that_the_run_does_not_have_is_refused():
    with pytest.raises(ConfigError, match="profile.epoch=3, but epochs=2"):
        steps_to_trace(ProfileConfig(True, epoch=3), 20, 2)


def run(folder, **changes):
    asked = {
        "data": SyntheticConfig(num_train=240, num_validation=8, num_classes=3, image_size=16),
        "model": SmallCNNConfig(filters=8, units=16),
        "strategy": StrategyConfig(name="one_device", device="cpu"),
        "batch": BatchConfig(per_replica_batch_size=8),
        "tracker": TrackerConfig(log_mistakes=0),
        "epochs": 2,
        "steps_per_execution": 16,
        "probe": False,
    }
    screen = io.StringIO()
    config = RunConfig(**(asked | changes))
    return fit.run(config, outputs=folder, folder=folder / "run", console=Console(stdout=screen)), screen.getvalue()


def test_a_training_is_traced_where_it_was_asked_for(tmp_path, monkeypatch):
    calls = []
    made = keras.callbacks.CallbackList.on_train_batch_end
    monkeypatch.setattr(
        keras.callbacks.CallbackList,
        "on_train_batch_end",
        lambda self, batch, logs=None: (calls.append(batch + 1), made(self, batch, logs)),
    )
    record, shown = run(tmp_path, profile=ProfileConfig([20, 26]))
    section = record.data["profile"]
    assert calls == [16, 19, 26, 30, 16, 30]  # the calls of the first epoch end where the trace begins and ends
    assert (section["epoch"], section["first_step"], section["last_step"]) == (1, 20, 26)
    own = {one["operation"]: one for one in section["operations"]}
    convolution = next(one for name, one in own.items() if "Conv2D" in name)
    assert convolution["calls"] == 7  # once a step
    assert any("MatMul" in name for name in own) and any("Conv2DBackprop" in name for name in own)
    assert 0 < convolution["seconds"] < section["seconds"] < record.data["epochs"][0]["train_seconds"]
    assert set(section["shares"]) == set(PARTS) and sum(section["shares"].values()) == pytest.approx(1)
    assert all(0 <= share <= 1 for share in section["shares"].values()) and section["shares"][COMPUTE] > 0.05
    folder = record.folder / section["folder"]
    assert read_trace(folder).planes and (record.folder / section["trace"]).stat().st_size > 100
    # The speed of the traced epoch is left out everywhere, and the words say so.
    first, second = record.data["epochs"]
    assert first["images_per_second"] is None and second["images_per_second"] > 0
    assert record.data["throughput"]["images_per_second"] == pytest.approx(second["images_per_second"])
    [said] = [notice for notice in record.data["notices"] if "profiled" in notice]
    assert said.startswith("Epoch 1 is profiled (steps 20 to 26)") and "not comparable" in said
    assert sentence(section) in shown and "ui.perfetto.dev" in shown and f"xprof --logdir {folder}" in shown


def test_a_profiler_that_fails_costs_the_profile_alone(tmp_path):
    tf.profiler.experimental.start(str(tmp_path / "another"))  # there can be one
    try:
        record, _ = run(tmp_path, profile=ProfileConfig(True))
    finally:
        tf.profiler.experimental.stop(save=False)
    assert record.data["status"] == "finished" and "profile" not in record.data
    assert any(notice.startswith("There is no profile: ") for notice in record.data["notices"])
    assert record.data["epochs"][0]["images_per_second"] > 0


def test_a_run_that_ends_before_the_steps_says_so(tmp_path):
    told = []
    record = RunRecord.create(tmp_path)
    profile = Profile(record, (10, 20), None, Console(stdout=io.StringIO()), told.append)
    profile.set_model(keras.Model())
    profile.on_train_begin()
    profile.on_epoch_begin(0)
    assert profile.model.call_ends == (9, 20)
    profile.on_train_batch_begin(0)
    profile.on_train_batch_end(8)
    profile.set_model(keras.Model())  # another phase, which begins with a call that builds its function
    profile.on_epoch_begin(1)
    profile.on_train_batch_begin(9)
    profile.on_train_batch_end(19)
    profile.close()
    assert told == ["Nothing was profiled: no epoch went through steps 10 to 20 once warm."]
    assert not (tmp_path / "profile").exists()


def test_a_later_epoch_is_traced_where_it_is_asked_for(tmp_path):
    record, _ = run(tmp_path, profile=ProfileConfig([2, 30], epoch=2))
    section = record.data["profile"]
    assert (section["epoch"], section["first_step"], section["last_step"]) == (2, 2, 30)
    first, second = record.data["epochs"]
    assert first["images_per_second"] > 0 and second["images_per_second"] is None
