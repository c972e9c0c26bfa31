"""A comparison as JSON: names carry their units, what may not be claimed is null."""

import dataclasses
from typing import Any

from manyfit.report import pairs
from manyfit.report.claims import Estimate
from manyfit.report.comparison import Claim, Comparison, Group
from manyfit.report.runs import Run
from manyfit.report.verdict_words import details, headline, sentence


def as_dict(comparison: Comparison) -> dict[str, Any]:
    """Verdict, runs, claims, costs and the settings that differ."""
    return {
        "verdict": headline(comparison),
        "details": details(comparison),
        "baseline": _names(comparison.baseline),
        "target_accuracy": comparison.target,
        "target_was_given": comparison.target_was_given,
        "runs": [_run(run, comparison) for run in comparison.runs],
        "claims": [_claim(claim, comparison) for claim in comparison.claims],
        "settings_that_differ": {
            key: {run.name: value for run, value in zip(comparison.runs, values, strict=True)}
            for key, values in comparison.differences.items()
        },
    }


def _names(group: Group) -> list[str]:
    return [run.name for run in group.runs]


def _run(run: Run, comparison: Comparison) -> dict[str, Any]:
    cost = comparison.costs[run.key]
    return {
        "name": run.name,
        "folder": run.folder,
        "status": run.status,
        "rehearsal": run.rehearsal,
        "num_replicas": run.num_replicas,
        "devices": run.devices,
        "examples_per_step": run.examples_per_step,
        "examples_per_replica": run.examples_per_replica,
        "epochs": len(run.epochs),
        "images_per_second": run.images_per_second,
        "best_val_accuracy": run.best_accuracy,
        "seconds": run.total_seconds,
        "epoch_seconds": run.epoch_seconds,
        "seconds_to_target": None if comparison.target is None else run.seconds_to(comparison.target),
        "time_split_seconds": run.time_split,
        "joules_per_image": run.joules_per_image,
        "cost": None if cost is None else dataclasses.asdict(cost),
        "problems": run.problems,
    }


def _claim(claim: Claim, comparison: Comparison) -> dict[str, Any]:
    def told(estimate: Estimate | None) -> dict[str, Any] | None:
        return None if estimate is None else estimate.as_dict()

    return {
        "runs": _names(claim.group),
        "baseline": _names(claim.baseline),
        "comparable": claim.comparable,
        "sentence": sentence(claim, comparison) if claim.comparable else None,
        "marks": [pairs.as_dict(mark) for mark in claim.marks],
        "scaling": claim.scaling,
        "speed_up": told(claim.speed_up),
        "is_faster": claim.is_faster,
        "efficiency": told(claim.efficiency),
        "whole_run_ratio": told(claim.whole_run),
        "accuracy_difference": told(claim.accuracy),
        "accuracy_is_within_noise": claim.accuracy_is_noise,
        "cost_difference": told(claim.cost),
        "currency": claim.currency,
        "other_settings": claim.other_settings,
    }
