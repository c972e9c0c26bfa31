"""What `src/export.py` does: refuses what cannot be exported, exports, and says what came out."""

from argparse import Namespace
from pathlib import Path

from rich.text import Text

from manyfit.console import Console
from manyfit.errors import ConfigError
from manyfit.export_names import CARD_NAME, FILE_NAMES
from manyfit.quiet import quiet_tensorflow
from manyfit.report.show import in_bytes
from manyfit.trained_run import TrainedRun


def run_command(arguments: Namespace, console: Console) -> Path:
    """Export, and print where it is, how large and fast, and how it agrees; the new folder.

    Raises:
        UserError: what was asked cannot be had, or the exported model does not agree with the run's.
    """
    if arguments.quantize is not None and arguments.format != "tflite":
        raise ConfigError(
            f"--quantize goes with --format tflite, not with {arguments.format}.",
            "Leave it out; other runtimes quantize with tools of their own.",
        )
    run = TrainedRun.load(arguments.run)
    if run.rehearsal and not arguments.rehearsal_ok:
        raise ConfigError(
            f"{arguments.run} is a rehearsal: its model was trained on pictures drawn by code and is of no use on "
            "photos.",
            "Train on real pictures (data.root=PATH), or, to try the export itself, give --rehearsal-ok.",
        )
    suffix = f"_{arguments.quantize}" if arguments.quantize else ""
    out = (arguments.out or run.folder / "export" / f"{arguments.format}{suffix}").absolute()
    _check_new(out)
    with quiet_tensorflow():
        from manyfit.export import export_run
    made = export_run(
        run,
        arguments.format,
        out,
        quantize=arguments.quantize,
        tolerance=arguments.tolerance,
        data_root=arguments.data_root,
        notify=console.notice,
    )
    if run.rehearsal:
        console.notice("this model is a rehearsal's, and its card says so: it was trained on drawn pictures.")
    console.print(Text(f"agrees on {made.agreement.sentence()}"), whole_lines=True)
    console.print(
        Text(f"{in_bytes(made.num_bytes)}, {made.agreement.milliseconds:.3g} ms a picture (median, one at a time, CPU)")
    )
    console.print(Text(str(out / FILE_NAMES[arguments.format])), Text(str(out / CARD_NAME)), whole_lines=True)
    return out


def _check_new(out: Path) -> None:
    """Refuse a folder that cannot be a new one, before anything is read."""
    if out.is_dir() and not any(out.iterdir()):
        return
    if out.exists():
        raise ConfigError(f"{out} is already there, and nothing is overwritten.", "Give --out PATH, a new folder.")
