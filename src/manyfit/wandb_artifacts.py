"""What a run hands W&B besides numbers: models with their lineage, the state of the code, wrong predictions."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

MANIFEST_NAME = "manifest.json"
MOST_CLASSES = 100
"""More make a confusion matrix that W&B neither takes nor shows; the run folder has it all the same."""
MOST_NAME = 100


def log_model(run: Any, path: Path, aliases: Sequence[str], facts: Mapping[str, Any]) -> None:
    """Log a saved model; W&B keeps its own copy, inside the run folder until it is uploaded.

    Args:
        facts: Metadata: `data` with name and fingerprint, `epoch`, `val_accuracy`, ...
    """
    import wandb

    artifact = wandb.Artifact(_name("model", run.id), type="model", metadata=dict(facts))
    artifact.add_file(str(path), name="model.keras")
    run.log_artifact(artifact, aliases=list(aliases))


def use_data(run: Any, run_folder: Path, data: Mapping[str, Any]) -> None:
    """Say that the run used a data set: W&B draws a model's lineage from it. The same files are the same version.

    Args:
        data: `name`, `fingerprint` and more, as metadata.
    """
    import wandb

    manifest = run_folder / MANIFEST_NAME
    if not manifest.exists():
        return
    artifact = wandb.Artifact(_name("data", str(data.get("name"))), type="dataset", metadata=dict(data))
    artifact.add_file(str(manifest))
    fingerprint = re.sub(r"[^\w.-]+", "-", str(data.get("fingerprint") or ""))[:MOST_NAME]
    # `use_artifact` refuses to work offline, and online would wait for the server in the middle of the training.
    run._log_artifact(artifact, aliases=[fingerprint or "latest"], is_user_created=True, use_after_commit=True)


def log_code(run: Any, files: Sequence[Path], facts: Mapping[str, Any]) -> None:
    """Log what tells the code: its commit as metadata, the difference from it as a file."""
    import wandb

    artifact = wandb.Artifact(_name("code", run.id), type="code", metadata=dict(facts))
    for file in files:
        artifact.add_file(str(file))
    run.log_artifact(artifact)


def tables_of(found: Any) -> dict[str, Any]:
    """Rows for `run.log`: the wrong predictions with pictures, and the confusion matrix as W&B charts it."""
    import wandb

    names = found.class_names
    tables: dict[str, Any] = {}
    if found.mistakes:
        columns = ["picture", "truth", "predicted", "confidence", "confidence in truth", "example"]
        rows = [
            [
                wandb.Image(str(found.folder / one.picture)) if one.picture else None,
                names[one.truth],
                names[one.predicted],
                one.confidence,
                one.confidence_in_truth,
                one.example,
            ]
            for one in found.mistakes
        ]
        tables["mistakes"] = wandb.Table(columns=columns, data=rows)
    if len(names) <= MOST_CLASSES:
        matrix = found.confusion_matrix
        pairs = [[a, b, int(matrix[i][j])] for i, a in enumerate(names) for j, b in enumerate(names)]
        table = wandb.Table(columns=["Actual", "Predicted", "nPredictions"], data=pairs)
        fields = {name: name for name in ("Actual", "Predicted", "nPredictions")}
        preset = "wandb/confusion_matrix/v1"
        tables["confusion_matrix"] = wandb.plot_table(preset, table, fields, {"title": "Validation"})
    return tables


def _name(kind: str, what: str) -> str:
    """A name that W&B takes for an artifact: letters, digits, `-`, `_` and `.` alone."""
    return f"{kind}-{re.sub(r'[^a-zA-Z0-9_.-]+', '-', what)}"[:MOST_NAME]
