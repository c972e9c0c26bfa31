"""Side by side with plain scripts, in one run, interleaved: `python benchmarks/run.py DATA [--only CASE ...]`.

DATA holds `cats_dogs/`, `weights/` and `mnist/`. Each measurement runs in a process of its own; the contestants of a
case take turns, `--repeats` times, and the ratio is that of their medians. Results go to `benchmarks/results.json` with
hardware, versions, commit and date; what was there before is compared with, and a case that lost more than a tenth is
named.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results.json"
sys.path.insert(0, str(ROOT / "src"))

from rich.console import Console
from rich.table import Table

from manyfit.record import environment

WEIGHTS = "mobilenet_v2_weights_tf_dim_ordering_tf_kernels_1.0_224_no_top.h5"
Measurement = dict[str, float]


def child(command: list[str]) -> tuple[str, float]:
    """Run a command; its output and its peak memory in MB."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "MANYFIT_CACHE": CACHE.name}
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(
            [sys.executable, *command], stdout=output, stderr=subprocess.STDOUT, text=True, env=env, cwd=ROOT
        )
        _, status, usage = os.wait4(process.pid, 0)
        output.seek(0)
        text = output.read()
    if status:
        raise SystemExit(f"{command} ended with {os.waitstatus_to_exitcode(status)}:\n{text[-4000:]}")
    return text, usage.ru_maxrss / 1024


def plain(script: str, *arguments: object) -> dict:
    """What a plain script printed."""
    output, memory = child([f"benchmarks/{script}", *map(str, arguments)])
    line = next(line for line in output.splitlines() if line.startswith("RESULT "))
    return json.loads(line.removeprefix("RESULT ")) | {"memory_mb": memory}


def ours(*overrides: str) -> dict:
    """The record of a run of train.py."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "run"
        command = ["src/train.py", "tracker=none", "strategy.device=cpu", f"hydra.run.dir={folder}", *overrides]
        _, memory = child(command)
        return json.loads((folder / "record.json").read_text()) | {"memory_mb": memory}


CACHE = tempfile.TemporaryDirectory(prefix="manyfit-benchmark-cache-")


def steady(seconds: list[float]) -> float:
    """The median epoch after the first."""
    return statistics.median(seconds[1:])


def frozen_seconds(record: dict) -> float:
    """Features, training and validation: what the plain script's fit does."""
    epochs = sum(row["train_seconds"] + row["validation_seconds"] for row in record["epochs"])
    return record["timing"].get("feature_seconds", 0.0) + epochs


def cases(data: Path, epochs: int) -> dict[str, dict[str, Callable[[], Measurement]]]:
    """Every case: its contestants by name, the plain one first; each gives `seconds` (less is better)."""
    photos, weights, mnist = data / "cats_dogs", data / "weights" / WEIGHTS, data / "mnist"
    frozen = [f"data.root={photos}", f"model.weights={weights}", f"epochs={epochs}"]
    digits = ["data=mnist", f"data.root={mnist}", "batch.per_replica_batch_size=64", "epochs=3"]
    tiny = ["model=module", "model.factory=benchmarks.tiny_model:build"]

    def rows(record: dict) -> Measurement:
        return {"seconds": steady([row["train_seconds"] for row in record["epochs"]]), "memory_mb": record["memory_mb"]}

    def plain_rows(result: dict) -> Measurement:
        return {"seconds": steady(result["epoch_seconds"]), "memory_mb": result["memory_mb"]}

    def rate(result: dict) -> Measurement:
        return {"seconds": 1 / result["images_per_second"], "memory_mb": result["memory_mb"]}

    def plain_frozen() -> Measurement:
        result = plain("plain_frozen.py", photos, weights, epochs)
        return {**{key: result[key] for key in ("seconds", "memory_mb")}, "accuracy": max(result["val_accuracy"])}

    def ours_frozen(*more: str, cold: bool = False) -> Measurement:
        cache = [f"data.cache_folder={tempfile.mkdtemp(dir=CACHE.name)}"] if cold else []
        record = ours(*frozen, *cache, *more)
        measured = {"seconds": frozen_seconds(record), "accuracy": record["best"]["val_accuracy"]}
        return measured | {"memory_mb": record["memory_mb"]}

    def finetune() -> Measurement:
        record = ours(
            "data=synthetic",
            "data.num_train=336",
            "data.num_validation=16",
            "data.num_classes=2",
            "data.image_size=160",
            "data.channels=3",
            "model.image_size=160",
            "model.weights=none",
            "model.trainable=all",
            "batch.global_batch_size=16",
            "epochs=2",
            "optimizer.learning_rate=1e-4",
        )
        return {"seconds": 1 / record["epochs"][-1]["images_per_second"], "memory_mb": record["memory_mb"]}

    return {
        "frozen, cold": {"plain": plain_frozen, "ours": lambda: ours_frozen(cold=True)},
        "frozen, warm": {"plain": plain_frozen, "ours": ours_frozen},
        "mnist cnn, 1 device": {
            "plain": lambda: plain_rows(plain("plain_mnist.py", mnist, 1, 3, "fit")),
            "ours": lambda: rows(ours(*digits, "model=small_cnn")),
            "hand-written loop": lambda: plain_rows(plain("plain_mnist.py", mnist, 1, 3, "loop")),
        },
        "mnist cnn, 4 logical replicas": {
            "plain": lambda: plain_rows(plain("plain_mnist.py", mnist, 4, 3, "fit")),
            "ours": lambda: rows(ours(*digits, "model=small_cnn", "strategy.replicas=4")),
        },
        "tiny dense model": {
            "plain": lambda: plain_rows(plain("plain_mnist.py", mnist, 1, 3, "fit", "tiny")),
            "ours": lambda: rows(ours(*digits, *tiny)),
            "hand-written loop": lambda: plain_rows(plain("plain_mnist.py", mnist, 1, 3, "loop", "tiny")),
        },
        "fine-tuning": {
            "plain": lambda: rate(plain("plain_finetune.py", 20, 16, 160, "fit")),
            "ours": finetune,
            "hand-written loop": lambda: rate(plain("plain_finetune.py", 20, 16, 160, "loop")),
        },
        "photo input": {
            "plain": lambda: rate(plain("photo_input.py", photos, "sequential")),
            "ours": lambda: rate(plain("photo_input.py", photos, "ours")),
            "best bare tf.data": lambda: rate(plain("photo_input.py", photos, "best")),
        },
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
    """A row a contestant: seconds, and how many times faster than the plain script ours is."""
    table = Table(title="ratios: above 1, ours is faster")
    for name in ("case", "contestant", "seconds", "ours is faster by", "last time", "accuracy"):
        table.add_column(name, justify="left" if name in ("case", "contestant") else "right")
    for case, contestants in results.items():
        for name, values in contestants.items():
            ratio = values["seconds"] / contestants["ours"]["seconds"]
            old = before.get(case, {})
            last = old[name]["seconds"] / old["ours"]["seconds"] if name in old and "ours" in old else None
            table.add_row(
                case,
                name,
                f"{values['seconds']:.4g}",
                "" if name == "ours" else f"{ratio:.2f}x",
                f"{last:.2f}x" if last and name != "ours" else "",
                f"{values['accuracy']:.4f}" if "accuracy" in values else "",
            )
            if last and name != "ours" and ratio < 0.9 * last:
                table.add_row("", f"REGRESSION: {last:.2f}x before", style="bold red")
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--only", nargs="*", help="cases whose name contains one of these")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=10, help="epochs of the frozen cases")
    parser.add_argument("--save", action="store_true", help="write results.json")
    arguments = parser.parse_args()
    saved = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"cases": {}}
    results = {}
    for name, contestants in cases(arguments.data.resolve(), arguments.epochs).items():
        if arguments.only and not any(word in name for word in arguments.only):
            continue
        results[name] = measure(contestants, arguments.repeats)
        Console().print(show({name: results[name]}, saved["cases"]))
    Console().print(show(results, saved["cases"]))
    if arguments.save:
        facts = environment() | {"date": datetime.now(UTC).isoformat(timespec="seconds"), "repeats": arguments.repeats}
        RESULTS.write_text(json.dumps(facts | {"cases": saved["cases"] | results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
