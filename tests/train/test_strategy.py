"""Which devices a strategy takes, and what it says where it cannot have them; the GPUs here are made up."""

import re
from dataclasses import dataclass

import pytest
import tensorflow as tf

from manyfit import strategy, tpu_strategy
from manyfit.config import StrategyConfig, TPUConfig
from manyfit.errors import ConfigError


@dataclass(frozen=True)
class FakeGPU:
    name: str
    device_type: str = "GPU"


class Machine:
    """Stands in for TensorFlow's device settings: `gpus` GPUs, and a note of what was set."""

    def __init__(self, monkeypatch, num_gpus: int, started: bool = False):
        self.gpus = [FakeGPU(f"/physical_device:GPU:{index}") for index in range(num_gpus)]
        self.visible, self.growth, self.started = list(self.gpus), [], started
        monkeypatch.setattr(tf.config, "list_physical_devices", self.list)
        monkeypatch.setattr(tf.config, "set_visible_devices", self.set_visible)
        monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind: self.visible)
        monkeypatch.setattr(tf.config.experimental, "set_memory_growth", lambda gpu, on: self.growth.append((gpu, on)))
        monkeypatch.setattr(
            tf.config.experimental, "get_device_details", lambda gpu: {"device_name": f"Card {gpu.name[-1]}"}
        )

    def list(self, kind):
        return self.gpus if kind == "GPU" else [FakeGPU("/physical_device:CPU:0", "CPU")]

    def set_visible(self, devices, kind):
        if self.started:
            raise RuntimeError("Visible devices cannot be modified after being initialized")
        self.visible = devices


@pytest.fixture
def machine(monkeypatch):
    return lambda *arguments, **keywords: Machine(monkeypatch, *arguments, **keywords)


def place(**keywords):
    return strategy.make(StrategyConfig(**keywords))


def refused(**keywords) -> str:
    with pytest.raises(ConfigError) as caught:
        place(**keywords)
    assert caught.value.exit_code == 2
    assert caught.value.remedy
    return str(caught.value)


def test_auto_takes_every_gpu_with_memory_growth(machine):
    four = machine(4)
    found = place()
    assert (found.num_replicas, found.on_gpu, found.notices) == (4, True, ())
    assert found.devices == tuple(f"GPU:{index} Card {index}" for index in range(4))
    assert isinstance(found.strategy, tf.distribute.MirroredStrategy)
    assert four.growth == [(gpu, True) for gpu in four.gpus]


def test_auto_without_a_gpu_is_one_cpu_replica_and_says_so(machine):
    machine(0)
    found = place()
    assert (found.num_replicas, found.on_gpu, found.devices) == (1, False, ("CPU:0",))
    assert found.notices == ("No GPU found: one CPU replica.",)
    assert place(device="cpu").notices == ()


def test_some_of_the_gpus(machine):
    four = machine(4)
    assert place(replicas=2).devices == ("GPU:0 Card 0", "GPU:1 Card 1")
    assert four.visible == four.gpus[:2]


def test_a_subset_of_the_gpus_is_named_as_the_machine_names_it(machine):
    four = machine(4)
    found = place(devices=[0, 2])
    assert found.num_replicas == 2
    assert four.visible == [four.gpus[0], four.gpus[2]]
    assert [gpu for gpu, _ in four.growth] == four.visible
    assert found.devices == ("GPU:0 Card 0", "GPU:2 Card 2")


@pytest.mark.parametrize("name", ["one_device", "default"])
def test_the_strategies_of_one_replica_take_one_gpu(machine, name):
    four = machine(4)
    found = place(name=name)
    assert (found.name, found.num_replicas, found.devices) == (name, 1, ("GPU:0 Card 0",))
    assert four.visible == four.gpus[:1]
    assert place(name=name, devices=[3]).devices == ("GPU:3 Card 3",)


def test_gpus_are_left_alone_by_cpu_replicas(machine):
    two = machine(2)
    assert place(device="cpu").devices == ("CPU:0",)
    assert two.visible == []


@pytest.mark.parametrize(
    ("num_gpus", "asked", "said"),
    [
        (0, {"replicas": 4}, "Asked for 4 GPU replicas, found no GPU .* strategy.device=cpu"),
        (0, {"device": "gpu"}, "Asked for GPUs, found no GPU .* uv sync --extra gpu"),
        (0, {"devices": [0, 2]}, r"Asked for 2 GPU replicas, found no GPU"),
        (2, {"replicas": 4}, "strategy.replicas=4 asks for 4 GPUs; found 2.*strategy.replicas=2 or fewer"),
        (2, {"devices": [0, 2]}, r"strategy.devices=\[0, 2\] asks for GPU 2; found 2 GPUs.*from 0 to 1"),
        (3, {"cross_device_ops": "hierarchical"}, "sums wrongly over an odd number of replicas .3."),
        (0, {"device": "cpu", "devices": [0]}, r"strategy.devices=\[0\] names GPUs, but strategy.device=cpu"),
        (0, {"device": "cpu", "cross_device_ops": "nccl"}, "nccl needs GPUs, but the replicas are CPUs.*hierarchical"),
    ],
)
def test_what_cannot_be_had_is_refused_with_asked_and_found(machine, num_gpus, asked, said):
    machine(num_gpus)
    assert re.search(said, refused(**asked), re.DOTALL)


@pytest.mark.parametrize("asked", [{}, {"device": "cpu"}])
def test_devices_that_have_started_are_refused(machine, asked):
    machine(2, started=True)
    message = refused(**asked)
    assert "already started its devices" in message and "new process" in message


def test_too_few_logical_devices_in_a_started_process_are_refused():
    started = len(tf.config.list_logical_devices("CPU"))
    message = refused(device="cpu", replicas=started + 3)
    assert f"strategy.replicas={started + 3} needs {started + 3} logical CPU devices" in message
    assert f"already started {started}" in message


@pytest.mark.parametrize(
    ("asked", "kind"),
    [
        ("nccl", tf.distribute.NcclAllReduce),
        ("hierarchical", tf.distribute.HierarchicalCopyAllReduce),
        ("one_device", tf.distribute.ReductionToOneDevice),
    ],
)
def test_cross_device_ops(machine, asked, kind):
    machine(2)
    found = place(cross_device_ops=asked)
    assert type(found.strategy.extended._cross_device_ops) is kind


# --- a TPU, which is made up as well ----------------------------------------------------------------------------------


class FakeTPU:
    """Stands in for TensorFlow's TPU functions: eight cores, and a note of what was called in which order."""

    def __init__(self, monkeypatch, error: Exception | None = None):
        self.calls: list[str] = []
        self.num_replicas_in_sync = 8

        def called(name, result=None, error=None):
            def call(*arguments, **keywords):
                self.calls.append(name)
                if error is not None:
                    raise error
                return result

            return call

        monkeypatch.setattr(tpu_strategy, "find", called("find"))
        monkeypatch.setattr(tf.distribute.cluster_resolver, "TPUClusterResolver", called("resolver", object()))
        monkeypatch.setattr(tf.config, "experimental_connect_to_cluster", called("connect"))
        monkeypatch.setattr(tf.tpu.experimental, "initialize_tpu_system", called("initialize", error=error))
        monkeypatch.setattr(tf.distribute, "TPUStrategy", called("strategy", self))


@pytest.mark.parametrize(("tpu", "connects"), [("local", []), ("grpc://10.0.0.2:8470", ["connect"])])
def test_a_tpu_is_made_as_tensorflows_guide_says_and_is_marked_as_not_run(monkeypatch, tpu, connects):
    fake = FakeTPU(monkeypatch)
    place = strategy.make(TPUConfig(tpu=tpu))
    assert fake.calls == ["find", "resolver", *connects, "initialize", "strategy"]
    assert place.on_tpu and not place.on_gpu and place.num_replicas == 8 and place.gpu_numbers == ()
    assert place.devices == tuple(f"TPU:{index}" for index in range(8))
    [notice] = place.notices
    assert "has never been run on a TPU" in notice


def test_a_tpu_that_tensorflow_cannot_use_is_an_error_in_words(monkeypatch):
    FakeTPU(monkeypatch, tf.errors.NotFoundError(None, None, "TPUs not found in the cluster.\nNo OpKernel"))
    with pytest.raises(ConfigError, match=r"strategy.tpu=local \(TPUs not found in the cluster\).") as found:
        strategy.make(TPUConfig())
    assert "tensorflow-tpu" in found.value.remedy
