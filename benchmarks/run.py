"""Side by side with plain scripts, in one run, interleaved: `python benchmarks/run.py DATA [--only CASE ...]`.

DATA holds `cats_dogs/`, `weights/` and `mnist/`. Each measurement runs in a process of its own; the contestants of a
case take turns, `--repeats` times, and the ratio is that of their medians. Results go to `benchmarks/results.json`,
each case with the hardware, versions, commit and date of its measurement; what was there before is compared with, and a
case that lost more than a tenth is named.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results.json"
sys.path.insert(0, str(ROOT / "src"))

from rich.console import Console
from rich.table import Table

from manyfit.files import write_atomically
from manyfit.record import environment

WEIGHTS = "mobilenet_v2_weights_tf_dim_ordering_tf_kernels_1.0_224_no_top.h5"
Measurement = dict[str, float]


def child(command: list[str], cache: str | None = None) -> tuple[str, Measurement]:
    """Run a command; its output, its seconds from start to end and its peak memory in MB."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "MANYFIT_CACHE": cache or CACHE.name}
    started = time.perf_counter()
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(
            [sys.executable, *command], stdout=output, stderr=subprocess.STDOUT, text=True, env=env, cwd=ROOT
        )
        _, status, usage = os.wait4(process.pid, 0)
        output.seek(0)
        text = output.read()
    if status:
        raise SystemExit(f"{command} ended with {os.waitstatus_to_exitcode(status)}:\n{text[-4000:]}")
    return text, {"process_seconds": time.perf_counter() - started, "memory_mb": usage.ru_maxrss / 1024}


def plain(script: str, *arguments: object) -> dict:
    """What a plain script printed."""
    output, cost = child([f"benchmarks/{script}", *map(str, arguments)])
    line = next(line for line in output.splitlines() if line.startswith("RESULT "))
    return json.loads(line.removeprefix("RESULT ")) | cost


def ours(*overrides: str, cache: str | None = None) -> dict:
    """The record of a run of train.py."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "run"
        command = [
            "src/train.py",
            *([] if any(word.startswith("tracker=") for word in overrides) else ["tracker=none"]),
            "strategy.device=cpu",
            f"hydra.run.dir={folder}",
            *overrides,
        ]
        _, cost = child(command, cache)
        return json.loads((folder / "record.json").read_text()) | cost


CACHE = tempfile.TemporaryDirectory(prefix="manyfit-benchmark-cache-")


def steady(seconds: list[float]) -> float:
    """The median epoch after the first."""
    return statistics.median(seconds[1:])


def work_seconds(record: dict) -> float:
    """The pass over the photos, training and validation: what the plain script's fit does."""
    epochs = sum(row["train_seconds"] + row["validation_seconds"] for row in record["epochs"])
    return (record["timing"].get("prepare_seconds") or 0.0) + epochs


def cost(result: dict, seconds: float, **more: float) -> Measurement:
    """A measurement: `seconds` of the work compared, and what the whole process took."""
    return {"seconds": seconds, **{key: result[key] for key in ("process_seconds", "memory_mb")}, **more}


def frozen(photos: Path, weights: Path, epochs: int) -> dict[str, Callable[[], Measurement]]:
    """Frozen MobileNetV2 on cats and dogs, the same epochs: the plain script, ours with nothing kept, ours again."""
    overrides = [f"data.root={photos}", f"model.weights={weights}", f"epochs={epochs}"]

    def plain_script() -> Measurement:
        result = plain("plain_frozen.py", photos, weights, epochs)
        return cost(result, result["seconds"], accuracy=max(result["val_accuracy"]))

    def train(*more: str, cache: str | None = None) -> Measurement:
        record = ours(*overrides, *more, cache=cache)
        return cost(record, work_seconds(record), accuracy=record["best"]["val_accuracy"])

    def cold() -> Measurement:
        with tempfile.TemporaryDirectory() as empty:
            return train(cache=empty)

    def warm() -> Measurement:
        train()  # whatever is not kept yet
        return train()

    return {"plain": plain_script, "ours, cold": cold, "ours, warm": warm}


def sweep(photos: Path, weights: Path, epochs: int) -> dict[str, Callable[[], Measurement]]:
    """Four learning rates times three batch sizes, from the first command to the last number, start-up included."""
    rates, sizes = (3e-4, 1e-3, 3e-3, 1e-2), (16, 32, 64)

    def plain_scripts() -> Measurement:
        runs = [plain("plain_frozen.py", photos, weights, epochs, rate, size) for rate in rates for size in sizes]
        seconds = sum(run["process_seconds"] for run in runs)
        return {
            "seconds": seconds,
            "process_seconds": seconds,
            "memory_mb": max(run["memory_mb"] for run in runs),
            "accuracy": max(max(run["val_accuracy"]) for run in runs),
        }

    def one_command() -> Measurement:
        with tempfile.TemporaryDirectory() as empty, tempfile.TemporaryDirectory() as folder:
            _, cost = child(
                [
                    "src/train.py", "-m", "tracker=none", "strategy.device=cpu", f"data.root={photos}",
                    f"model.weights={weights}", f"epochs={epochs}", f"hydra.sweep.dir={folder}/sweep",
                    f"optimizer.learning_rate={','.join(map(str, rates))}",
                    f"batch.global_batch_size={','.join(map(str, sizes))}",
                ],
                empty,
            )  # fmt: skip
            records = [json.loads(path.read_text()) for path in Path(folder).glob("sweep/**/record.json")]
        if len(records) != len(rates) * len(sizes):
            raise SystemExit(f"The sweep left {len(records)} records; expected {len(rates) * len(sizes)}.")
        return {
            **cost,
            "seconds": cost["process_seconds"],
            "accuracy": max(record["best"]["val_accuracy"] for record in records),
        }

    return {"plain": plain_scripts, "ours": one_command}


def plain_head(how: str) -> Measurement:
    """A head on features in memory, without this project."""
    result = plain("plain_head.py", 10, how)
    return cost(result, steady(result["epoch_seconds"]))


def head_rows(photos: Path, weights: Path) -> Measurement:
    """An epoch of the head, without validation; the features come from the cache, which the first start fills."""
    record = ours(f"data.root={photos}", f"model.weights={weights}", "epochs=10", "probe=false")
    return cost(record, steady([row["train_seconds"] for row in record["epochs"]]))


def fine_tuning(steps: int = 20, batch: int = 16, size: int = 160) -> dict[str, Callable[[], Measurement]]:
    """Everything trainable: images a second after the first call."""

    def rate(result: dict) -> Measurement:
        return cost(result, 1 / result["images_per_second"])

    def train() -> Measurement:
        record = ours(
            "data=synthetic", f"data.num_train={(steps + 1) * batch}", "data.num_validation=16", "data.num_classes=2",
            f"data.image_size={size}", "data.channels=3", f"model.image_size={size}", "model.weights=none",
            "model.trainable=all", f"batch.global_batch_size={batch}", "epochs=2", "optimizer.learning_rate=1e-4",
        )  # fmt: skip
        return cost(record, 1 / record["epochs"][-1]["images_per_second"])

    return {
        "plain": lambda: rate(plain("plain_finetune.py", steps, batch, size, "fit")),
        "ours": train,
        "hand-written loop": lambda: rate(plain("plain_finetune.py", steps, batch, size, "loop")),
    }


def cases(data: Path, epochs: int) -> dict[str, dict[str, Callable[[], Measurement]]]:
    """Every case: its contestants by name, the plain script first."""
    photos, weights, mnist = data / "cats_dogs", data / "weights" / WEIGHTS, data / "mnist"
    digits = ["data=mnist", f"data.root={mnist}", "batch.per_replica_batch_size=64", "epochs=3"]
    tiny = ["model=module", "model.factory=benchmarks.tiny_model:build"]

    def rows(record: dict) -> Measurement:
        return cost(record, steady([row["train_seconds"] for row in record["epochs"]]))

    def plain_rows(*arguments: object) -> Measurement:
        result = plain("plain_mnist.py", mnist, *arguments)
        return cost(result, steady(result["epoch_seconds"]))

    def first_step(record: dict) -> Measurement:
        timing = record["timing"]
        return cost(record, timing["startup_seconds"] + timing["first_step_seconds"])

    def plain_first_step(*kind: str) -> Measurement:
        result = plain("plain_mnist.py", mnist, 1, 1, "fit", *kind)
        return cost(result, result["first_step_seconds"])

    start_up = ["data=mnist", f"data.root={mnist}", "model=small_cnn", "batch.per_replica_batch_size=64", "epochs=1"]

    def photos_alone(how: str) -> Callable[[], Measurement]:
        def measured() -> Measurement:
            result = plain("photo_input.py", photos, how)
            return cost(result, 1 / result["images_per_second"])

        return measured

    return {
        "start-up to the first step": {
            "plain": plain_first_step,
            "ours": lambda: first_step(ours(*start_up)),
        },
        "start-up with W&B offline": {
            "plain": lambda: plain_first_step("wandb"),
            "ours": lambda: first_step(ours(*start_up, "tracker=wandb", "tracker.mode=offline")),
        },
        "mnist cnn, 1 device": {
            "plain": lambda: plain_rows(1, 3, "fit"),
            "ours": lambda: rows(ours(*digits, "model=small_cnn")),
            "hand-written loop": lambda: plain_rows(1, 3, "loop"),
        },
        "mnist cnn, 4 logical replicas": {
            "plain": lambda: plain_rows(4, 3, "fit"),
            "ours": lambda: rows(ours(*digits, "model=small_cnn", "strategy.replicas=4")),
        },
        "tiny dense model": {
            "plain": lambda: plain_rows(1, 3, "fit", "tiny"),
            "ours": lambda: rows(ours(*digits, *tiny)),
            "hand-written loop": lambda: plain_rows(1, 3, "loop", "tiny"),
        },
        "fine-tuning": fine_tuning(),
        "photo input": {
            "plain": photos_alone("plain"),
            "ours": photos_alone("ours"),
            "sequential": photos_alone("sequential"),
            "best bare tf.data": photos_alone("best"),
        },
        "head on cached features": {
            "plain": lambda: plain_head("fit"),
            "ours": lambda: head_rows(photos, weights),
            "hand-written loop": lambda: plain_head("loop"),
        },
        "frozen": frozen(photos, weights, epochs),
        "sweep of 12": sweep(photos, weights, epochs=3),
    }


def measure(contestants: dict[str, Callable[[], Measurement]], repeats: int) -> dict[str, Measurement]:
    """The medians of each contestant, taking turns."""
    measured: dict[str, list[Measurement]] = {name: [] for name in contestants}
    for _ in range(repeats):
        for name, run in contestants.items():
            measured[name].append(run())
    return {
        name: {key: statistics.median(one[key] for one in all_of_it) for key in all_of_it[0]}
        for name, all_of_it in measured.items()
    }


def show(results: dict[str, dict[str, Measurement]], before: dict) -> Table:
    """A row a contestant: its seconds, and how many times faster than the plain script it is."""
    table = Table(title="x plain: how many times faster than the plain script of the case")
    for name in ("case", "contestant", "seconds", "x plain", "last time", "whole process", "peak MB", "accuracy"):
        table.add_column(name, justify="left" if name in ("case", "contestant") else "right")
    for case, contestants in results.items():
        for name, values in contestants.items():
            ratio = contestants["plain"]["seconds"] / values["seconds"]
            old = before.get(case, {})
            last = old["plain"]["seconds"] / old[name]["seconds"] if name in old else None
            table.add_row(
                case,
                name,
                f"{values['seconds']:.4g}",
                f"{ratio:.2f}",
                f"{last:.2f}" if last else "",
                f"{values['process_seconds']:.1f} s",
                f"{values['memory_mb']:,.0f}",
                f"{values['accuracy']:.4f}" if "accuracy" in values else "",
            )
            if last and name.startswith("ours") and ratio < 0.9 * last:
                table.add_row("", f"REGRESSION: {last:.2f} before", style="bold red")
    return table


def facts(arguments: argparse.Namespace) -> dict:
    """With what, when and of which commit a case was measured."""
    known = environment()
    known["command"] = known["command"].replace(str(arguments.data), "DATA")
    load = os.getloadavg()[2]  # of the last 15 minutes; the measurement's own included
    return known | {
        "date": datetime.now(UTC).isoformat(timespec="seconds"), "repeats": arguments.repeats, "load_average": load
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, nargs="?")
    parser.add_argument("--only", nargs="*", help="cases whose name contains one of these")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=10, help="epochs of the frozen cases")
    parser.add_argument("--save", action="store_true", help="write results.json")
    parser.add_argument("--saved", action="store_true", help="measure nothing: the table of results.json")
    arguments = parser.parse_args()
    saved = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    before = {name: case["contestants"] for name, case in saved.items()}
    results, screen = {}, Console(width=140)
    if arguments.saved:
        screen.print(show(before, {}))
        return
    if arguments.data is None or not arguments.data.is_dir():
        parser.error(f"DATA is {arguments.data}; expected a folder that holds cats_dogs/, weights/ and mnist/.")
    for name, contestants in cases(arguments.data.resolve(), arguments.epochs).items():
        if arguments.only and not any(word in name for word in arguments.only):
            continue
        results[name] = measure(contestants, arguments.repeats)
        screen.print(show({name: results[name]}, before))
        if arguments.save:  # after every case: a run that is cut keeps what it has measured
            saved[name] = {"contestants": results[name], "measured": facts(arguments)}
            write_atomically(RESULTS, json.dumps(saved, indent=1) + "\n")
    screen.print(show(results, before))


if __name__ == "__main__":
    main()
