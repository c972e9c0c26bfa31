"""A profile's summary on the terminal, and how to open the trace itself."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from manyfit.report.profile import sentence

TRACE_NAME = "trace.json.gz"


def terminal(section: Mapping[str, Any], folder: Path) -> list[Table | Text]:
    """Where the time went, the operations, and how to open what is in `folder`."""
    steps = section["last_step"] - section["first_step"] + 1
    shown: list[Table | Text] = [Text(f"profile: {sentence(section)}.")]
    if section["device_seconds"] is not None:
        idle = ", ".join(f"{one['name']} {100 * one['idle_share']:.0f} %" for one in section["devices"])
        host, device = (1e3 * section[name] / steps for name in ("host_seconds", "device_seconds"))
        shown.append(Text(f"a device has nothing to do: {idle}. A step: host {host:.2f} ms, device {device:.2f} ms."))
    shown.append(_table("operation", section["operations"], steps))
    if section["input_operations"]:
        shown.append(_table("operation of the input", section["input_operations"][:5], steps))
    return [
        *shown,
        Text("Idle: nothing ran that is traced, such as launching, Python and very small operations."),
        Text(f"The speed of epoch {section['epoch']} is left out: tracing takes time, so that it cannot be compared."),
        Text("To look at every operation:"),
        Text(f"  drop {folder / TRACE_NAME} on https://ui.perfetto.dev, which keeps it in the browser"),
        Text(f"  or: uvx xprof --logdir {shlex.quote(str(folder))}"),
    ]


def _table(title: str, operations: Sequence[Mapping[str, Any]], steps: int) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column(title, overflow="fold")
    for name in ("own ms a step", "share", "calls a step"):
        table.add_column(name, justify="right", no_wrap=True)
    for one in operations:
        milliseconds = 1e3 * one["seconds"] / steps
        table.add_row(
            Text(one["operation"]), f"{milliseconds:.3f}", f"{100 * one['share']:.1f} %", f"{one['calls'] / steps:.4g}"
        )
    return table
