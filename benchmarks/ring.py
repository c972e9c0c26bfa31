"""What several workers cost on this machine, and what a ring of machines would: `python benchmarks/ring.py`.

Measures the project's own step on dense models of next to no arithmetic, on 1, 2 and 4 processes that talk over
loopback (and 3, for a check), every point in processes of its own, the points taking turns `--repeats` times. From the
corners of what was measured it fits the model of `manyfit.report.ring`, and says by how much that misses every other
point. `--save` writes `benchmarks/ring.json` with hardware, versions, commit and date.

With a network of yours it prints what 8, 32 and 256 machines would do, a PREDICTION beside the measured points:
`--gigabits 100 --microseconds 20 --step-milliseconds 50 --parameters 25e6`; `--saved` takes the measurement that is in
`benchmarks/ring.json`, in a second.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "ring.json"
sys.path.insert(0, str(ROOT / "src"))

from rich.console import Console
from rich.table import Table

from manyfit import local_workers
from manyfit.errors import UserError
from manyfit.processes import num_cores
from manyfit.record import environment
from manyfit.report.ring import (
    Link,
    Ring,
    Sum,
    bytes_of,
    bytes_sent,
    fit,
    miss,
    predict_machines,
    size_words,
)

SIZES = (400_000, 1_600_000, 6_400_000, 25_000_000)
CORNERS = (SIZES[0], SIZES[-1])
WORKERS = (1, 2, 4)
CHECKED = (3, SIZES[2])
"""Workers and parameters of one more point that the fit does not see."""

LABEL = "LOOPBACK: all workers are processes of this machine, share its cores, and no network was passed."


def run_point(num_workers: int, parameters: int, rows: int, rounds: int, variables: int) -> dict:
    """One point, measured once, in processes of its own."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        worker = str(ROOT / "benchmarks" / "ring_worker.py")
        words = [worker, str(result), *map(str, (parameters, rows, rounds, variables))]
        environ = {name: value for name, value in os.environ.items() if name != "TF_CONFIG"}
        code = local_workers.run(num_workers, words, environ, device="cpu")
        if code:
            raise SystemExit(f"{num_workers} workers with {parameters:,} parameters ended with exit code {code}.")
        return json.loads(result.read_text())


def measure(
    points: list[tuple[int, int]], rows: int, rounds: int, variables: int, repeats: int, screen: Console
) -> list[dict]:
    """Every point, the points taking turns: medians over all rounds of all repeats."""
    found: dict[tuple[int, int], list[dict]] = {point: [] for point in points}
    for repeat in range(1, repeats + 1):
        for workers, parameters in points if repeat % 2 else points[::-1]:
            screen.print(f"[{repeat}/{repeats}] {workers} workers, {parameters:,} parameters ...", highlight=False)
            found[workers, parameters].append(run_point(workers, parameters, rows, rounds, variables))
    return [summary(runs) for runs in found.values()]


def summary(runs: list[dict]) -> dict:
    """Medians of a point; each all-reduce is of a round whose two steps met the same machine."""
    seconds = {kind: [s for run in runs for s in run["seconds"][kind]] for kind in runs[0]["seconds"]}
    step = statistics.median(seconds["with"])
    point = {
        **{key: runs[0][key] for key in ("workers", "parameters", "rows")},
        "samples": len(seconds["with"]),
        "step_seconds": step,
        "step_seconds_spread": [min(seconds["with"]), max(seconds["with"])],
        "bytes_sent_by_each_worker": bytes_sent(runs[0]["workers"], bytes_of(runs[0]["parameters"])),
        "loopback_bytes_measured": statistics.median(run["loopback_bytes"] for run in runs),
        "sum_seconds": 0.0,
        "sum_share": 0.0,
        "meeting_seconds": 0.0,
    }
    if "without" in seconds:
        pairs = list(zip(*(seconds[kind] for kind in ("with", "without", "meeting")), strict=True))
        point["sum_seconds"] = max(0.0, statistics.median(full - alone for full, alone, _ in pairs))
        point["sum_share"] = max(0.0, statistics.median(1 - alone / full for full, alone, _ in pairs))
        point["meeting_seconds"] = max(0.0, statistics.median(met - alone for _, alone, met in pairs))
    return point


def modelled(points: list[dict]) -> dict:
    """The ring that the corners fit, and its miss at every point of several workers."""
    sums = [(point, Sum(point["workers"], bytes_of(point["parameters"]), point["sum_seconds"])) for point in points]
    sums = [(point, one) for point, one in sums if one.num_workers > 1 and one.seconds > 0]
    sizes = sorted({point["parameters"] for point, _ in sums})
    ends = {sizes[0], sizes[-1]} if sizes else set()
    is_fitted = [point["parameters"] in ends and point["workers"] != CHECKED[0] for point, _ in sums]
    ring = fit([one for (_, one), fitted in zip(sums, is_fitted, strict=True) if fitted], cores=num_cores())
    return {
        "latency_seconds": ring.latency,
        "seconds_per_byte": ring.seconds_per_byte,
        "cores": ring.cores,
        "misses": [
            {
                **{key: point[key] for key in ("workers", "parameters")},
                "fitted": fitted,
                "model_seconds": ring.seconds(one.num_workers, one.num_bytes),
                "miss": miss(ring, one),
            }
            for (point, one), fitted in zip(sums, is_fitted, strict=True)
        ],
    }


def show_measured(points: list[dict], model: dict) -> Table:
    """What was measured, and the model beside it."""
    misses = {(one["workers"], one["parameters"]): one for one in model["misses"]}
    one_worker = {point["parameters"]: point["step_seconds"] for point in points if point["workers"] == 1}
    table = Table(title=LABEL, caption="efficiency: of 1 worker; each keeps its batch. fitted: the model has seen it.")
    names = ("parameters", "workers", "steps/s", "step", "efficiency", "sent by each", "sum", "share", "model", "miss")
    for name in (*names, ""):
        table.add_column(name, justify="right")
    for point in points:
        told = misses.get((point["workers"], point["parameters"]))
        alone = one_worker.get(point["parameters"])
        table.add_row(
            f"{point['parameters']:,}",
            str(point["workers"]),
            f"{1 / point['step_seconds']:,.1f}",
            f"{1e3 * point['step_seconds']:,.1f} ms",
            f"{alone / point['step_seconds']:.0%}" if alone else "-",
            size_words(point["bytes_sent_by_each_worker"]),
            f"{1e3 * point['sum_seconds']:,.1f} ms" if told else "-",
            f"{point['sum_share']:.0%}" if told else "-",
            f"{1e3 * told['model_seconds']:,.1f} ms" if told else "-",
            f"{told['miss']:+.0%}" if told else "-",
            "" if told is None else "fitted" if told["fitted"] else "left out",
        )
    return table


def show_predicted(model: dict, link: Link, step_seconds: float, parameters: float) -> tuple[Table, str]:
    """What machines would do over a link: by the link alone, and with this TensorFlow's own cost on top."""
    software = Ring(model["latency_seconds"], model["seconds_per_byte"], model["cores"])
    about = f"{parameters:,.0f} parameters, {1e3 * step_seconds:g} ms a step, {link}"
    table = Table(title=f"PREDICTION, not measured: {about}")
    for name in ("machines", "sent by each", "link alone", "efficiency", "with gRPC", "efficiency"):
        table.add_column(name, justify="right")
    at_best = predict_machines(step_seconds, parameters, link.ring())
    with_software = predict_machines(step_seconds, parameters, software.over(link))
    for best, full in zip(at_best, with_software, strict=True):
        table.add_row(
            str(best.num_machines),
            size_words(bytes_sent(best.num_machines, bytes_of(parameters))),
            f"{1e3 * best.sum_seconds:,.1f} ms",
            f"{best.efficiency:.0%}",
            f"{1e3 * full.sum_seconds:,.1f} ms",
            f"{full.efficiency:.0%}",
        )
    assumes = (
        "It assumes: every machine keeps its batch and is equally fast; the sums come after the arithmetic and are "
        "hidden behind nothing (no overlap); a ring of all machines. 'Link alone': software costs "
        "nothing, to which NCCL comes near. 'With gRPC': on top of it what a message and a byte cost TensorFlow here "
        f"({1e6 * software.latency:,.0f} µs, {1e9 * software.seconds_per_byte:,.2f} ns), measured on loopback, where "
        "the workers share the cores with each other: machines of their own do better."
    )
    return table, assumes


def main() -> None:
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=plain)
    parser.add_argument("--workers", type=int, nargs="+", default=WORKERS)
    parser.add_argument("--sizes", type=float, nargs="+", default=SIZES, help="numbers of parameters")
    parser.add_argument("--rows", type=int, default=2, help="examples of a worker and step")
    parser.add_argument("--rounds", type=int, default=7, help="measurements of a point each time it is started")
    parser.add_argument("--variables", type=int, default=16, help="into which the parameters are divided")
    parser.add_argument("--repeats", type=int, default=2, help="how often each point is started")
    parser.add_argument("--save", action="store_true", help="write benchmarks/ring.json")
    parser.add_argument("--saved", action="store_true", help="measure nothing: what benchmarks/ring.json holds")
    parser.add_argument("--gigabits", type=float, help="of your network, a second and each way")
    parser.add_argument("--microseconds", type=float, default=20.0, help="its latency")
    parser.add_argument("--step-milliseconds", type=float, default=100.0, help="of your model on one machine")
    parser.add_argument("--parameters", type=float, default=25e6, help="trainable ones of your model")
    asked = parser.parse_args()
    screen = Console(width=132)
    try:
        link = Link(asked.gigabits, asked.microseconds) if asked.gigabits is not None else None
    except UserError as error:
        parser.error(str(error))
    if len(set(asked.sizes)) * len({one for one in asked.workers if one > 1}) < 2:
        parser.error("The model has two terms: give at least two points of several workers.")
    if asked.saved:
        result = json.loads(RESULTS.read_text())
    else:
        points = [(workers, round(size)) for size in asked.sizes for workers in asked.workers]
        if tuple(asked.workers) == WORKERS and tuple(asked.sizes) == SIZES:
            points.append(CHECKED)
        load = [os.getloadavg()[0]]
        measured = measure(points, asked.rows, asked.rounds, asked.variables, asked.repeats, screen)
        facts = environment() | {"date": datetime.now(UTC).isoformat(timespec="seconds"), "measured_on": LABEL}
        load.append(os.getloadavg()[0])  # this benchmark's own processes are in this one
        result = facts | {"load_average": load, "points": measured, "model": modelled(measured)}
        if asked.save:
            RESULTS.write_text(json.dumps(result, indent=1) + "\n")
    screen.print(show_measured(result["points"], result["model"]))
    if (load := result["load_average"][0]) > 0.5:
        screen.print(f"The machine was busy with other work (load average {load:.1f}): these figures are too slow.")
    if link is not None:
        table, assumes = show_predicted(result["model"], link, asked.step_milliseconds / 1e3, asked.parameters)
        screen.print(table)
        screen.print(assumes)


if __name__ == "__main__":
    main()
