"""TensorFlow's other strategies: which are not offered, and a TPU where there is none."""

import socket

import pytest

from manyfit import tpu_address
from manyfit.command import repository_root
from manyfit.config import check
from manyfit.errors import ConfigError
from manyfit.overrides import group_choices
from manyfit.schema.place import NOT_OFFERED, TPUConfig
from manyfit.tpu_address import find


@pytest.mark.parametrize(("name", "instead"), [("parameter_server", "multi_worker"), ("central_storage", "mirrored")])
def test_what_is_not_offered_says_why_and_what_instead(name, instead):
    message, remedy = NOT_OFFERED[name]
    assert message.startswith(f"strategy={name} is not offered: ") and f"strategy={instead}" in remedy
    assert "\n" not in message + remedy
    assert name not in group_choices(repository_root() / "conf")["strategy"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"replicas": 4}, "strategy.replicas=4, but strategy=tpu takes every core"),
        ({"device": "gpu"}, "strategy.device=gpu, but"),
        ({"devices": [0]}, "names GPUs"),
        ({"cross_device_ops": "nccl"}, "strategy.cross_device_ops=nccl, but"),
        ({"tpu": " "}, "strategy.tpu is empty"),
    ],
)
def test_a_tpu_takes_no_choice_of_devices(changes, said):
    with pytest.raises(ConfigError) as found:
        TPUConfig(**changes)
    assert said in str(found.value)


def test_a_machine_without_a_tpu_is_told_so(tmp_path):
    with pytest.raises(ConfigError, match="found no TPU on this machine") as found:
        find(TPUConfig(), tmp_path)
    assert "strategy=mirrored" in found.value.remedy
    (tmp_path / "vfio").mkdir()
    (tmp_path / "vfio" / "vfio").touch()  # is there on machines without one as well
    with pytest.raises(ConfigError):
        find(TPUConfig(), tmp_path)
    (tmp_path / "vfio" / "0").touch()
    find(TPUConfig(), tmp_path)


def test_the_chips_of_older_kinds_are_found(tmp_path):
    (tmp_path / "accel0").touch()
    find(TPUConfig(), tmp_path)


def test_an_address_is_asked_before_tensorflow_waits_for_it():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        find(TPUConfig(tpu=f"grpc://127.0.0.1:{port}"))
    with pytest.raises(ConfigError, match=f"nothing answers at 127.0.0.1:{port}"):
        find(TPUConfig(tpu=f"grpc://127.0.0.1:{port}"))


@pytest.mark.parametrize("tpu", ["http://a:1", "grpc://", "grpc:/x", "grpc://a:port", "a:8470"])
def test_what_is_no_address_is_refused(tpu):
    with pytest.raises(ConfigError, match="is no address of a TPU"):
        find(TPUConfig(tpu=tpu))


def test_a_name_is_looked_up_on_google_cloud_alone(monkeypatch):
    def unknown(*arguments):
        raise socket.gaierror("Name or service not known")

    monkeypatch.setattr(tpu_address.socket, "getaddrinfo", unknown)
    with pytest.raises(ConfigError, match="is the name of a Cloud TPU"):
        find(TPUConfig(tpu="my-tpu"))
    monkeypatch.setattr(tpu_address.socket, "getaddrinfo", lambda *arguments: [])
    find(TPUConfig(tpu="my-tpu"))


def test_a_stored_configuration_with_such_a_name_gets_the_same_answer():
    from hydra import compose, initialize_config_dir

    with initialize_config_dir(str(repository_root() / "conf"), version_base="1.3"):
        composed = compose("config", overrides=["strategy.name=central_storage"])
    with pytest.raises(ConfigError, match="is not offered"):
        check(composed)
