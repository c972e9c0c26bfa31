"""Samples of the machine: what they come to, their file, and the thread that takes them, whatever fails."""

import json
import math
import os
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manyfit.config import TrackerConfig, WandbConfig
from manyfit.errors import ConfigError
from manyfit.processes import process_seconds
from manyfit.report.system_samples import SAMPLES_NAME, read_samples
from manyfit.system import gpus as system_gpus
from manyfit.system import sampler as system_sampler
from manyfit.system.gpus import METRICS, Gpus
from manyfit.system.host import NAMES, Host
from manyfit.system.sampler import Sampler
from manyfit.system.statistics import Statistics, energy_of_all, gpus_in_words


def sample(elapsed, phase="train", watts=(), **values):
    gpus = [{"index": index, "name": "G", "power_watts": power} for index, power in enumerate(watts)]
    return {"elapsed_seconds": elapsed, "time": 1e9 + elapsed, "node": "here", "phase": phase, **values, "gpus": gpus}


def statistics(*samples):
    found = Statistics()
    for one in samples:
        found.add(one)
    return found


# --- what samples come to -------------------------------------------------------------------------------------------


def test_a_sample_weighs_as_much_as_the_time_that_it_describes():
    found = statistics(
        sample(10, "start", cpu_percent=1),
        sample(11, "start", cpu_percent=3),
        sample(11, "train", cpu_percent=3),  # the same, as the first of its phase
        sample(12, "train", cpu_percent=50),
        sample(15, "train", cpu_percent=90),
        sample(15, "validation", cpu_percent=90),
    )
    section = found.section()
    assert section["seconds"] == {"start": 1, "train": 4, "validation": 0}
    phases = section["phases"]
    assert phases["start"]["cpu_percent"] == {"mean": 3, "p95": 3}
    assert phases["train"]["cpu_percent"] == {"mean": (1 * 50 + 3 * 90) / 4, "p95": 90}
    assert phases["validation"]["cpu_percent"] == {"mean": 90, "p95": 90}
    assert (section["num_samples"], section["energy_watt_hours"], section["joules_per_image"]) == (6, None, None)
    assert found.means() == {"train/cpu_percent": 80, "validation/cpu_percent": 90}


def test_energy_by_the_trapezoidal_rule_summed_over_gpus():
    found = statistics(
        sample(0, "start", watts=(100, 10)),
        sample(36, "start", watts=(200, 10)),  # 36 s x (150 + 10) W = 5760 J
        sample(36, "train", watts=(200, 10)),
        sample(46, "train", watts=(None, 30)),  # 10 s x 20 W = 200 J of the second; the first is not known
        sample(56, "train", watts=(100, 30)),  # 20 s x 150 W of the first, 10 s x 30 W of the second: 3300 J
    )
    section = found.section(num_images=70)
    assert section["energy_watt_hours"] == pytest.approx((5760 + 200 + 3300) / 3600)
    assert section["energy_watt_hours_of_phases"] == pytest.approx({"start": 5760 / 3600, "train": 3500 / 3600})
    assert section["joules_per_image"] == pytest.approx(3500 / 70)
    assert section["phases"]["train"]["gpu.1.power_watts"]["mean"] == 30


def test_no_energy_where_one_gpu_hides_its_power():
    found = statistics(sample(0, watts=(100, None)), sample(10, watts=(100, None)))
    section = found.section(num_images=5)
    assert section["energy_watt_hours"] is section["joules_per_image"] is section["energy_watt_hours_of_phases"] is None


def test_the_energy_of_several_workers_is_that_of_all():
    one = statistics(sample(0, "start", watts=(100,)), sample(36, "train", watts=(100,))).section(num_images=10)
    two = statistics(sample(0, "train", watts=(50, 50)), sample(36, "train", watts=(50, 50))).section(num_images=10)
    assert energy_of_all([one, two]) == {
        "energy_watt_hours": pytest.approx(2.0),
        "energy_watt_hours_of_phases": {"start": 0.0, "train": pytest.approx(2.0)},
        "joules_per_image": pytest.approx(720.0),
    }
    assert energy_of_all([one]) == {name: one[name] for name in energy_of_all([one])}
    assert set(energy_of_all([one, {"num_samples": 0}]).values()) == {None}  # of a worker that hides its power


def test_a_gpu_that_several_workers_sampled_counts_once():
    def worker(node, indices, joules):
        return {
            "node": node,
            "gpu_indices": indices,
            "energy_watt_hours": 1.0,
            "energy_watt_hours_of_phases": {"train": 1.0},
            "joules_per_image": joules,
        }

    found = energy_of_all([worker("a", [0, 1], 3.0), worker("a", [0, 1], 3.1), worker("b", [0, 1], 4.0)])
    assert (found["joules_per_image"], found["energy_watt_hours"]) == (7.0, 2.0)
    assert energy_of_all([worker("a", [0, 1], 3.0), worker("a", [1, 2], 3.0)])["joules_per_image"] is None


def test_the_gpus_of_several_workers_in_words():
    def of(gpu, percent):
        return {"gpu": gpu, "phases": {"train": {"gpu.0.utilization_percent": {"mean": percent, "p95": 99}}}}

    assert gpus_in_words(of("1 x A100", 80.0) | {"workers": [of("1 x A100", 60.0)], "energy_watt_hours": 3.0}) == (
        "2 x (1 x A100), 70 % busy in training, 3 Wh"
    )
    assert gpus_in_words(of("1 x A100", 80.0) | {"workers": [of("1 x L4", 60.0)]}).startswith(
        "1 x (1 x A100) + 1 x (1 x L4), 70 %"
    )


readings = st.lists(
    st.tuples(
        st.floats(0, 100), st.sampled_from(["start", "train", "validation"]), st.floats(0, 700), st.floats(0, 100)
    ),
    min_size=1,
    max_size=30,
)


@settings(max_examples=80, deadline=None)
@given(readings)
def test_statistics_keep_their_promises(readings):
    elapsed = np.cumsum([seconds for seconds, *_ in readings])
    found = statistics(
        *(
            sample(float(at), phase, watts=(power,), cpu_percent=cpu)
            for at, (_, phase, power, cpu) in zip(elapsed, readings, strict=True)
        )
    )
    section = found.section()
    assert sum(section["seconds"].values()) == pytest.approx(elapsed[-1] - elapsed[0])
    powers = [power for *_, power, _ in readings]
    assert section["energy_watt_hours"] == pytest.approx(np.trapezoid(powers, elapsed) / 3600)
    assert sum(section["energy_watt_hours_of_phases"].values()) == pytest.approx(section["energy_watt_hours"])
    for phase, metrics in section["phases"].items():
        values = [cpu for _, one, _, cpu in readings if one == phase]
        both = metrics["cpu_percent"]
        assert min(values) - 1e-9 <= both["mean"] <= max(values) + 1e-9
        assert both["p95"] in values


# --- the thread -----------------------------------------------------------------------------------------------------


class FakeHost:
    """Counts its readings."""

    def __init__(self):
        self.problem = None
        self.readings = 0

    def read(self):
        self.readings += 1
        return {**dict.fromkeys(NAMES), "cpu_percent": float(self.readings)}


class FakeGpus(Gpus):
    def __init__(self):
        super().__init__({1: "G", 3: "G"})

    def read(self):
        gpus = [{"index": index, "name": "G", **dict.fromkeys(METRICS)} for index in self.indices]
        return [{**gpu, "power_watts": 100.0} for gpu in gpus]


def wait_until(condition, seconds=20.0):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)


def samples_of(folder):
    samples, problem = read_samples(folder)
    assert problem is None or "1 of" in problem  # a line that is being written
    return list(samples)


def sampled(folder, *, interval=60.0, gpus=None, host=FakeHost, told=None):
    return Sampler(
        folder,
        interval,
        gpus or Gpus(why_none="the run uses no GPU"),
        notify=(told if told is not None else []).append,
        make_host=host,
    )


def test_every_phase_has_a_first_and_a_last_sample(tmp_path):
    before = process_seconds()
    with sampled(tmp_path, gpus=FakeGpus()) as sampler:
        sampler.count_images = lambda: 10
        for phase in ("features", "start", "start", "train", "validation", "train", "end"):
            sampler.enter(phase)
    samples = samples_of(tmp_path)
    phases = [one["phase"] for one in samples]
    runs = [phase for phase, other in zip(phases, [None, *phases], strict=False) if phase != other]
    assert runs == ["start", "features", "start", "train", "validation", "train", "end"]
    assert all(phases.count(phase) >= 2 for phase in set(phases))
    elapsed = [one["elapsed_seconds"] for one in samples]
    assert elapsed == sorted(elapsed)
    assert before < elapsed[0] <= elapsed[-1] < process_seconds()
    assert all(abs(one["time"] - time.time()) < 60 for one in samples)
    assert [gpu["index"] for gpu in samples[0]["gpus"]] == [1, 3]
    section = sampler.section()
    assert (section["num_samples"], section["interval_seconds"]) == (len(samples), 60.0)
    assert (section["gpu"], section["gpu_indices"], section["gpu_note"]) == ("2 x G", [1, 3], None)
    assert section == {key: section[key] for key in section} | statistics(*samples).section(10)
    assert section["seconds"]["train"] > 0 and section["joules_per_image"] > 0


def test_a_phase_that_comes_back_while_a_sample_is_read_is_not_lost(tmp_path):
    begun, go_on = threading.Event(), threading.Event()

    class Slow(FakeHost):
        def read(self):
            if self.readings == 1:
                begun.set()
                go_on.wait(20)
            return super().read()

    host = Slow()
    with sampled(tmp_path, host=lambda: host) as sampler:
        wait_until(lambda: host.readings == 1)
        sampler.enter("features")
        assert begun.wait(20)
        sampler.enter("start")
        go_on.set()
    phases = [one["phase"] for one in samples_of(tmp_path)]
    assert "features" in phases and phases[-1] == "start"


def test_samples_come_at_the_interval(tmp_path):
    with sampled(tmp_path, interval=0.1) as sampler:
        wait_until(lambda: len(samples_of(tmp_path)) >= 6)
        sampler.enter("train")
    elapsed = np.array([one["elapsed_seconds"] for one in samples_of(tmp_path)])
    assert elapsed[5] - elapsed[0] > 0.4
    assert sampler.section()["gpu"] is None
    assert sampler.section()["gpu_note"] == "no GPU samples: the run uses no GPU"
    assert all(one["gpus"] == [] for one in samples_of(tmp_path))


def test_phases_that_change_without_end_share_readings(tmp_path):
    host = FakeHost()
    began = {"train": 0.0, "validation": 0.0}
    started = time.monotonic()
    with sampled(tmp_path, host=lambda: host) as sampler:
        for step in range(200):
            phase = ("train", "validation")[step % 2]
            sampler.enter(phase)
            before = time.monotonic()
            time.sleep(0.001 + 0.002 * (step % 2))
            began[phase] += time.monotonic() - before
        sampler.enter("end")
    assert host.readings <= (time.monotonic() - started) / system_sampler.CLOSEST_SECONDS + 3
    seconds = sampler.section()["seconds"]
    assert [seconds[phase] for phase in began] == pytest.approx(list(began.values()), rel=0.2, abs=0.02)


def test_a_run_that_goes_on_keeps_the_samples_until_there(tmp_path):
    before = [sample(float(second), "train", watts=(100,)) for second in range(0, 50, 10)]
    lines = "".join(json.dumps(one) + "\n" for one in before) + '{"elapsed_seconds": 2'
    (tmp_path / SAMPLES_NAME).write_text(lines)
    sampler = Sampler(tmp_path, 60.0, FakeGpus(), notify=lambda text: None, make_host=FakeHost, earlier_seconds=25.0)
    with sampler:
        sampler.count_images = lambda: 100
        sampler.enter("train")
        time.sleep(0.2)
    samples = samples_of(tmp_path)
    assert [one["elapsed_seconds"] for one in samples[:3]] == [0, 10, 20]
    assert samples[3]["elapsed_seconds"] > 25.0
    section = sampler.section()
    assert section["num_samples"] == len(samples)
    # The time between the two processes belongs to nobody.
    assert section["seconds"]["train"] == pytest.approx(20, abs=5)
    assert 0 < section["joules_per_image"] < 20 * 100 / 100
    assert section["energy_watt_hours"] > 20 * 100 / 3600


def test_no_interval_means_no_samples(tmp_path):
    with sampled(tmp_path, interval=None) as sampler:
        sampler.enter("train")
    assert list(tmp_path.iterdir()) == []
    assert sampler.section() == {}
    assert sampler.means() == {}


def test_what_fails_is_told_once_in_the_thread_of_the_run_and_ends_nothing(tmp_path):
    class Failing(FakeHost):
        def read(self):
            self.problem = "OSError: gone"
            values = super().read()
            if self.readings == 2:
                raise RuntimeError("boom")
            return values

    threads, told = [], []

    def notify(text):
        threads.append(threading.current_thread())
        told.append(text)

    host = Failing()
    sampler = Sampler(tmp_path, 0.1, FakeGpus(), notify=notify, make_host=lambda: host)
    with sampler:
        wait_until(lambda: host.readings >= 4)
        sampler.enter("train")
    assert len(told) == 2
    assert "OSError: gone" in told[0] and "boom" in told[1]
    assert set(threads) == {threading.main_thread()}
    assert len(samples_of(tmp_path)) >= 3


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no device that is always full")
def test_a_full_disk_costs_the_file_alone(tmp_path):
    (tmp_path / SAMPLES_NAME).symlink_to("/dev/full")
    told = []
    with sampled(tmp_path, interval=0.1, told=told) as sampler:
        wait_until(lambda: sampler._statistics.num_samples >= 3)
    assert len(told) == 1
    assert "No space left" in told[0]
    assert sampler.section()["num_samples"] >= 3


def test_a_disk_that_has_room_again_gets_whole_lines(tmp_path):
    path = tmp_path / SAMPLES_NAME
    path.symlink_to(tmp_path / "missing" / "x")  # in a folder that is not there yet
    told = []
    with sampled(tmp_path, interval=0.1, told=told) as sampler:
        wait_until(lambda: sampler._notices != [])
        (tmp_path / "missing").mkdir()
        wait_until(lambda: len(samples_of(tmp_path)) >= 2)
    assert len(told) == 1
    assert sampler.section()["num_samples"] > len(samples_of(tmp_path))


def test_a_reading_that_hangs_does_not_hold_up_the_end(tmp_path, monkeypatch):
    monkeypatch.setattr(system_sampler, "PATIENCE_SECONDS", 0.2)
    release = threading.Event()

    class Hanging(FakeHost):
        def read(self):
            release.wait(30)
            return super().read()

    told = []
    sampler = sampled(tmp_path, told=told, host=Hanging)
    started = time.monotonic()
    with sampler:
        sampler.enter("train")
        assert time.monotonic() - started < 1
    assert "hangs" in told[0]
    assert sampler.section()["num_samples"] == 0
    release.set()


def test_a_host_that_cannot_be_read_at_all_is_told(tmp_path):
    def refuse():
        raise PermissionError("no /proc")

    told = []
    with sampled(tmp_path, told=told, host=refuse):
        pass
    assert "no /proc" in told[0]


# --- the host -------------------------------------------------------------------------------------------------------


def test_the_host_counts_the_cpu_of_children():
    now = [100.0]
    host = Host(clock=lambda: now[0])
    first = host.read()
    assert first["cpu_percent"] is first["process_cpu_percent"] is first["disk_read_bytes_per_second"] is None
    assert first["process_memory_bytes"] > 10e6 and first["memory_bytes"] > first["process_memory_bytes"] / 4
    code = "import time\nwhile time.process_time() < 0.3: pass\nprint(flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        now[0] += 10  # the time that the percents are of
        second = host.read()
        child.communicate(b"\n")
    assert second["process_cpu_percent"] >= 2.5  # user and system time are each cut to whole ticks
    assert second["process_memory_bytes"] > first["process_memory_bytes"]
    assert host.problem is None
    now[0] += 10
    third = host.read()  # the child is gone, and with it its CPU time
    assert 0 <= third["process_cpu_percent"] < 1000


def test_a_host_without_disk_tells_the_rest(monkeypatch):
    import psutil

    monkeypatch.setattr(psutil, "disk_io_counters", lambda: None)
    host = Host()
    host.read()
    assert host.read()["disk_read_bytes_per_second"] is None
    monkeypatch.setattr(psutil, "virtual_memory", lambda: (_ for _ in ()).throw(OSError("none")))
    values = host.read()
    assert values["memory_bytes"] is None and values["process_memory_bytes"] > 0
    assert host.problem == "OSError: none"


def test_process_seconds_count_from_the_start_of_the_process():
    code = (
        "import time; a = time.time()\nfrom manyfit.processes import process_seconds as s\nprint(s(), time.time() - a)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    told, own = map(float, done.stdout.split())
    assert own <= told < own + 5


# --- the GPUs -------------------------------------------------------------------------------------------------------

CUDA = """
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
/* The places on the bus of CUDA's devices 0, 1, ...: the digits of CUDA_STUB_BUSES. */
int cuInit(unsigned flags) { return getenv("CUDA_STUB_BUSES") ? 0 : 100; }
int cuDeviceGet(int *device, int number) {
    *device = number + 40;
    return number < (int)strlen(getenv("CUDA_STUB_BUSES")) ? 0 : 101;
}
int cuDeviceGetPCIBusId(char *text, int length, int device) {
    snprintf(text, length, "0000:0%c:00.0", getenv("CUDA_STUB_BUSES")[device - 40]);
    return 0;
}
"""

ANSWER = """
import json, os, sys
from manyfit.config import TrackerConfig
from manyfit.errors import UserError
from manyfit.system import gpus
for line in sys.stdin:
    asked, numbers, variables = json.loads(line)
    os.environ.update(variables)
    try:
        found = gpus.choose(TrackerConfig(system_metrics_gpus=asked), numbers)
        answer = [found.indices, found.note, found.is_fault, found.in_words(), found.read(), found.problem]
        found.close()
    except UserError as error:
        answer = str(error)
    for name in variables:
        del os.environ[name]
    print(json.dumps(answer), flush=True)
"""


@pytest.fixture(scope="module")
def ask(nvml_stub, tmp_path_factory):
    """`ask(asked, cuda_numbers, NAME=value)` -> what a process with the stubs says of its GPUs."""
    source = tmp_path_factory.mktemp("cuda") / "cuda.c"
    source.write_text(CUDA)
    library = source.with_name("libcuda.so.1")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    environment = nvml_stub.environment(seconds=1e9)
    paths = f"{environment['LD_LIBRARY_PATH']}:{source.parent}"
    with subprocess.Popen(
        [sys.executable, "-c", ANSWER],
        env={**os.environ, **environment, "LD_LIBRARY_PATH": paths},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        stdin, stdout = process.stdin, process.stdout
        assert stdin is not None and stdout is not None

        def ask(asked, cuda_numbers=(), **variables):
            stdin.write(json.dumps([asked, list(cuda_numbers), variables]) + "\n")
            stdin.flush()
            return json.loads(stdout.readline())

        yield ask
        stdin.close()


def test_the_gpus_of_the_run_are_found_however_cuda_counts(ask):
    # CUDA shows three of the four, in another order; NVML's index is the place on the bus less one.
    indices, note, is_fault, words, read, problem = ask("auto", (0, 2), CUDA_STUB_BUSES="412")
    assert (indices, note, is_fault, words, problem) == ([3, 1], None, False, "2 x Stub GPU", None)
    assert [gpu["index"] for gpu in read] == [3, 1]


@pytest.mark.parametrize("step", range(6))
def test_every_value_of_a_gpu_is_read(ask, nvml_stub, step):
    seconds = time.time() / (step + 0.5)  # so long does a step last that it is this one
    read = ask("all", NVML_STUB_SECONDS=str(seconds))[4]
    for index, gpu in enumerate(read):
        assert gpu == {"index": index, "name": "Stub GPU", **nvml_stub.expected(index, time.time(), seconds)}
    assert read[3]["utilization_percent"] == 70 + 5 * step


def test_all_gpus_or_a_list_of_them(ask):
    assert ask("all")[0] == [0, 1, 2, 3]
    assert ask([2, 0])[0] == [2, 0]
    assert ask("all", NVML_STUB_GPUS="1")[0] == [0]
    assert "finds 4 GPUs" in ask([2, 4])
    assert "finds no GPU" in ask("all", NVML_STUB_GPUS="0")
    assert "Driver Not Loaded" in ask([0], NVML_STUB_FAILURES=failures("nvmlInit_v2 9"))


def test_gpus_that_cannot_be_told_apart_give_no_samples_and_a_notice(ask):
    for numbers, variables, said in (
        ((0,), {}, "cuInit of CUDA's driver answers 100"),
        ((5,), {"CUDA_STUB_BUSES": "1"}, "cuDeviceGet of CUDA's driver answers 101"),
        ((0,), {"CUDA_STUB_BUSES": "9"}, "Not Found"),
        ((0,), {"NVML_STUB_FAILURES": failures("nvmlInit_v2 9")}, "Driver Not Loaded"),
    ):
        indices, note, is_fault, words, read, _ = ask("auto", numbers, **variables)
        assert (indices, is_fault, words, read) == ([], True, None, [])
        assert note.startswith("no GPU samples: ") and said in note


def test_a_run_on_cpus_samples_no_gpu(ask):
    indices, note, is_fault, _, read, _ = ask("auto")
    assert (indices, note, is_fault, read) == ([], "no GPU samples: the run uses no GPU", False, [])


def test_a_call_that_fails_costs_its_value_alone(ask):
    known = {name: True for name in METRICS}
    for line, missing, is_told in (
        ("nvmlDeviceGetPowerUsage 3", {"power_watts"}, False),  # not supported: nothing to tell
        ("nvmlDeviceGetPowerUsage 999", {"power_watts"}, True),
        ("nvmlDeviceGetUtilizationRates 15", {"utilization_percent", "memory_utilization_percent"}, True),
        ("nvmlDeviceGetHandleByIndex_v2 0", set(), False),
    ):
        *_, read, problem = ask("all", NVML_STUB_FAILURES=failures(line))
        assert len(read) == 4
        for gpu in read:
            assert {name: gpu[name] is not None for name in METRICS} == known | dict.fromkeys(missing, False)
        assert (problem is not None) == is_told


def failures(line):
    path = os.path.join(os.environ["HOME"], f"failures-{line.split()[0]}-{line.split()[1]}")
    with open(path, "w") as file:
        file.write(line + "\n")
    return path


def test_a_machine_without_nvml_says_how_to_go_on(monkeypatch):
    def missing():
        raise system_gpus.pynvml.NVMLError(system_gpus.pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(system_gpus.pynvml, "nvmlInit", missing)
    with pytest.raises(ConfigError, match="tracker.system_metrics_gpus=all cannot be sampled"):
        system_gpus.choose(TrackerConfig(system_metrics_gpus="all"), ())
    found = system_gpus.choose(TrackerConfig(), (0,))
    assert found.is_fault and found.note is not None and "NVML" in found.note
    assert system_gpus.choose(TrackerConfig(system_metrics_seconds=None, system_metrics_gpus="all"), ()).indices == ()


# --- the configuration ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [TrackerConfig, WandbConfig])
def test_values_of_the_configuration_are_checked(kind):
    for gpus in ("auto", "all", [0], [3, 1]):
        assert kind(system_metrics_gpus=gpus).system_metrics_gpus == gpus
    for gpus in ("none", [], [0, 0], [-1], [1.5], [True], 2, None):
        with pytest.raises(ConfigError, match=r"tracker\.system_metrics_gpus="):
            kind(system_metrics_gpus=gpus)
    assert kind(system_metrics_seconds=None).system_metrics_seconds is None
    for seconds in (0.0, 0.05, math.inf):
        with pytest.raises(ConfigError, match=r"tracker\.system_metrics_seconds="):
            kind(system_metrics_seconds=seconds)
