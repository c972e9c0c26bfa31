"""Run folders as `fit.run` leaves them, with numbers that are easy to reckon with, without any training."""

import dataclasses
import json
from pathlib import Path

import yaml

from manyfit.config import RunConfig
from manyfit.record import RunRecord

NUM_TRAIN, NUM_VALIDATION, BATCH = 4000, 1000, 40
STARTUP, PREPARE, VALIDATION, END = 12.0, 2.0, 1.0, 3.0
"""Seconds of each part; the training takes `NUM_TRAIN / speed` an epoch."""


def settings(**changes):
    """The nested config of a run; `changes` are dotted keys with `__` for the dot."""
    config = dataclasses.asdict(RunConfig())
    for key, value in {"batch__global_batch_size": BATCH, "data__name": "mnist", **changes}.items():
        *groups, name = key.split("__")
        section = config
        for group in groups:
            section = section[group]
        section[name] = value
    return config


def make_run(
    folder,
    *,
    replicas=1,
    speed=1000.0,
    epochs=5,
    asked_epochs=None,
    accuracy=0.9,
    seed=0,
    batch=BATCH,
    gpu=True,
    status="finished",
    probe=0.0,
    elapsed=True,
    samples=None,
    worker_samples=(),
    config=None,
    **sections,
):
    """A run folder; the numbers of its record follow from the arguments. `sections` are merged into the record.

    Every epoch trains `NUM_TRAIN / speed` seconds at exactly `speed`; the accuracy rises evenly to `accuracy`.
    """
    folder = Path(folder)
    folder.mkdir(parents=True)
    rows, seconds = [], STARTUP
    for epoch in range(1, epochs + 1):
        seconds += NUM_TRAIN / speed + VALIDATION
        row = {
            "epoch": epoch,
            "loss": 2.0 / epoch,
            "accuracy": accuracy * epoch / epochs,
            "val_loss": 2.5 / epoch,
            "val_accuracy": accuracy * epoch / epochs,
            "learning_rate": 0.001,
            "train_seconds": NUM_TRAIN / speed,
            "validation_seconds": VALIDATION,
            "images_per_second": speed,
        }
        rows.append(row | ({"elapsed_seconds": seconds} if elapsed else {}))
    over = status in ("finished", "failed", "stopped")
    device = "GPU" if gpu else "CPU"
    record = RunRecord.create(
        folder,
        data={
            "name": "mnist",
            "source": "arrays",
            "num_train": NUM_TRAIN,
            "num_validation": NUM_VALIDATION,
            "num_skipped": 0,
            "class_names": ["cat", "dog"],
            "fingerprint": "f" * 64,
        },
        model={"name": "small_cnn", "weights": "none", "num_parameters": 100, "num_trainable_parameters": 100},
        strategy={
            "name": "mirrored",
            "num_replicas": replicas,
            "devices": [f"{device}:{index}" for index in range(replicas)],
        },
        batch={
            "global_batch_size": batch,
            "per_replica_batch_size": batch // replicas,
            "steps_per_epoch": -(-NUM_TRAIN // batch),
            "gradient_accumulation": 1,
        },
        best={"epoch": epochs, "val_accuracy": accuracy, "val_loss": 0.5} if epochs else {},
        timing={"startup_seconds": STARTUP, "prepare_seconds": PREPARE},
        versions={"python": "3.11.7", "tensorflow": "2.21.0", "keras": "3.15.1", "manyfit": "0.1.0", "numpy": "2.4"},
        git={"commit": "a" * 40, "dirty": False},
        host={"name": "box", "cpu_count": 8, "cpu_usable": 8, "memory_bytes": 64 * 2**30},
    )
    record.data["epochs"] = rows
    record.data |= {"started": f"2026-01-01T0{seed % 10}:00:00+00:00", "ended": f"2026-01-01T0{seed % 10}:30:00+00:00"}
    record.data["status"] = status
    if over:
        record.data["timing"] |= {"probe_seconds": probe, "total_seconds": seconds + END + probe}
    for name, section in sections.items():
        old = record.data.get(name)
        record.data[name] = {**old, **section} if isinstance(old, dict) and isinstance(section, dict) else section
    record.write()
    changes = {"batch__global_batch_size": batch, "strategy__replicas": replicas, "seed": seed, **(config or {})}
    written = settings(**{"epochs": asked_epochs or epochs, **changes})
    (folder / "config.yaml").write_text(yaml.safe_dump(written, sort_keys=False))
    if samples is not None:
        write_samples(folder, samples)
    for rank, own in enumerate(worker_samples, start=1):
        write_samples(folder / "workers" / f"rank-{rank}", own)
    return folder


def write_samples(folder, samples):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "system.jsonl").write_text("".join(json.dumps(sample) + "\n" for sample in samples))


def make_samples(seconds, *, gpus=1, interval=1.0, utilization=80.0, node="box"):
    """Samples of a run that starts for 10 s, then trains 8 s and validates 2 s in turn."""
    made = []
    for index in range(int(seconds / interval) + 1):
        second = index * interval
        phase = "start" if second < 10 else "train" if (second - 10) % 10 < 8 else "validation"
        gpu = {
            "name": "NVIDIA H200",
            "utilization_percent": utilization if phase == "train" else 0.0,
            "memory_utilization_percent": 30.0,
            "memory_used_bytes": 20 * 2**30,
            "power_watts": 400.0,
        }
        made.append(
            {
                "elapsed_seconds": second,
                "time": 1.7e9 + second,
                "node": node,
                "phase": phase,
                "cpu_percent": 50.0,
                "process_cpu_percent": 300.0,
                "memory_bytes": 8 * 2**30,
                "process_memory_bytes": 2**30,
                "gpus": [{"index": number, **gpu} for number in range(gpus)],
            }
        )
    return made
