"""`benchmarks/ring.py`: what it makes of measurements, and its tables; the measuring itself is not tested here."""

import importlib.util
import subprocess
import sys

import pytest

from manyfit.command import repository_root
from manyfit.processes import num_cores
from manyfit.report.ring import Link, Ring, bytes_of

SCRIPT = repository_root() / "benchmarks" / "ring.py"


@pytest.fixture(scope="module")
def ring():
    spec = importlib.util.spec_from_file_location("ring_benchmark", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(workers, parameters, seconds):
    return {"workers": workers, "parameters": parameters, "rows": 2, "seconds": seconds, "loopback_bytes": 7.0}


def test_a_sum_is_what_the_step_takes_longer_than_without_it_in_the_same_round(ring):
    # The machine is twice as slow in the second round; medians of three.
    seconds = {"with": [10.0, 20.0, 10.0], "without": [4.0, 8.0, 4.0], "meeting": [5.0, 10.0, 5.0]}
    point = ring.summary([run(2, 1000, seconds)])
    assert (point["step_seconds"], point["sum_seconds"], point["meeting_seconds"]) == (10.0, 6.0, 1.0)
    assert point["sum_share"] == pytest.approx(0.6) and point["samples"] == 3
    assert point["bytes_sent_by_each_worker"] == 4000.0 and point["loopback_bytes_measured"] == 7.0
    alone = ring.summary([run(1, 1000, {"with": [1.0, 3.0]}), run(1, 1000, {"with": [2.0]})])
    assert (alone["step_seconds"], alone["sum_seconds"], alone["samples"]) == (2.0, 0.0, 3)


def test_the_fit_sees_the_corners_alone_and_every_other_point_checks_it(ring):
    made = Ring(1e-4, 3e-9, cores=num_cores())
    points = [
        {"workers": workers, "parameters": size, "sum_seconds": made.seconds(workers, bytes_of(size))}
        for workers, size in [(n, size) for size in ring.SIZES for n in ring.WORKERS] + [ring.CHECKED]
    ]
    points[4]["sum_seconds"] *= 2  # 2 workers with 1.6 million parameters, which the fit must not see
    model = ring.modelled(points)
    assert (model["latency_seconds"], model["seconds_per_byte"]) == pytest.approx((1e-4, 3e-9))
    misses = {(one["workers"], one["parameters"]): one for one in model["misses"]}
    assert {key for key, one in misses.items() if one["fitted"]} == {(n, size) for n in (2, 4) for size in ring.CORNERS}
    assert misses[2, 1_600_000]["miss"] == pytest.approx(-0.5)
    assert all(abs(one["miss"]) < 1e-9 for key, one in misses.items() if key != (2, 1_600_000))
    assert ring.CHECKED in misses and (1, ring.SIZES[0]) not in misses


def test_a_prediction_has_the_link_alone_and_the_software_on_top(ring):
    model = {"latency_seconds": 1e-4, "seconds_per_byte": 3e-9, "cores": 2}
    table, assumes = ring.show_predicted(model, Link(100, 20), 0.1, 25e6)
    assert str(table.title).startswith("PREDICTION, not measured")
    cells = [list(column.cells) for column in table.columns]
    assert cells[0] == ["8", "32", "256"]
    # 28 messages of 20 µs and 175 MB at 12.5 GB/s; with gRPC 28 of 120 µs and 3.08 ns a byte.
    assert cells[2][0] == f"{1e3 * (28 * 20e-6 + 175e6 / 12.5e9):,.1f} ms" and cells[3][0] == "87%"
    assert cells[4][0] == f"{1e3 * (28 * 120e-6 + 175e6 * 3.08e-9):,.1f} ms"
    assert "no overlap" in assumes and "loopback" in assumes


def test_what_is_no_network_is_refused_before_anything_is_measured():
    done = subprocess.run([sys.executable, SCRIPT, "--gigabits", "0"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "gigabits=0.0 is out of range" in done.stderr


def test_the_saved_measurement_answers_at_once():
    words = ["--saved", "--gigabits", "25", "--step-milliseconds", "50", "--parameters", "3.5e6"]
    done = subprocess.run([sys.executable, SCRIPT, *words], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "LOOPBACK" in done.stdout and "PREDICTION, not measured: 3,500,000 parameters, 50 ms a step" in done.stdout
