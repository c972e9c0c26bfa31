"""What `src/evaluate.py` does: evaluates the models of runs, prints what came out, and writes the page."""

from argparse import Namespace
from datetime import UTC, datetime

from manyfit.console import Console
from manyfit.files import to_json
from manyfit.peers import Peers, alone
from manyfit.prediction_command import check_writable
from manyfit.quiet import quiet_tensorflow
from manyfit.report.evaluation import evaluation_tables, several_tables
from manyfit.report.evaluation_page import evaluation_page
from manyfit.report.evaluation_pairs import pairs_of
from manyfit.script_workers import strategy_of_workers
from manyfit.trained_run import TrainedRun
from manyfit.workers import OnLost


def run_command(arguments: Namespace, console: Console, peers: Peers | None = None) -> None:
    """Evaluate each run; with several, pair each with the first.

    Raises:
        UserError: no such run or model, data that does not fit it, or a page that cannot be written.
    """
    peers = peers or alone()
    check_writable("--html", arguments.html)
    runs = [TrainedRun.load(run) for run in arguments.runs]  # before TensorFlow takes its ten seconds
    with quiet_tensorflow():
        from manyfit.evaluation import evaluate_runs
    peers.watch(OnLost(console, peers))
    asked = {name: getattr(arguments, name) for name in ("data_root", "replicas", "device", "engine", "seed")}
    workers = None if peers.cluster is None else strategy_of_workers(arguments)
    evaluations = evaluate_runs(arguments.runs, data_name=arguments.data, workers=workers, peers=peers, **asked)
    if not peers.is_chief:
        return
    told = [evaluation.as_dict() for evaluation in evaluations]
    pairs, reasons = pairs_of(evaluations, arguments.seed)
    other_losses = _other_losses(runs)
    if arguments.json and len(told) == 1:
        print(to_json(told[0]))
    elif arguments.json:
        print(to_json({"runs": told, "pairs": [pair.as_dict() for pair in pairs], "reasons": reasons}))
    else:
        console.print(*(evaluation_tables(told[0]) if len(told) == 1 else several_tables(told, pairs, reasons)))
        for note in other_losses:
            console.print(note, whole_lines=True)
    if arguments.html is None:
        return
    page = evaluation_page(
        told,
        pairs,
        reasons,
        subtitle=f"Made {datetime.now(UTC).strftime('%Y-%m-%d %H:%M UTC')}, seed of the intervals {arguments.seed}",
        notes=[*_notes(runs), *other_losses],
    )
    page.write(arguments.html)
    if not arguments.json:
        console.print(str(arguments.html), whole_lines=True)


def _other_losses(runs: list[TrainedRun]) -> list[str]:
    """Of runs that trained on another loss: the evaluation has one that all runs can be compared by."""
    said = "the loss here is the plain cross-entropy, so that it can be compared."
    return [
        f"{run.name} was trained and validated with {run.config.loss.words()}; {said}"
        for run in runs
        if run.config.loss.is_adjusted
    ]


def _notes(runs: list[TrainedRun]) -> list[str]:
    drawn = [run.name for run in runs if run.rehearsal]
    said = "was trained on pictures drawn by code (a rehearsal): it says nothing about photos."
    return [f"REHEARSAL: {', '.join(drawn)} {said}"] if drawn else []
