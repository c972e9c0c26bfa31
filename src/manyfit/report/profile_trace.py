"""A profiler's trace as JSON in Chrome's format, which ui.perfetto.dev and chrome://tracing open without a server."""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def write_trace(space: Any, path: Path) -> None:
    """Write an `XSpace` as gzipped JSON; times are microseconds, events without a duration are left out."""
    with gzip.open(path, "wt", encoding="utf-8", compresslevel=5) as file:
        file.write('{"displayTimeUnit":"ms","traceEvents":[')
        for index, event in enumerate(_events(space)):
            file.write(",\n" if index else "\n")
            json.dump(event, file, separators=(",", ":"))
        file.write("\n]}\n")


def _events(space: Any) -> Iterator[dict[str, Any]]:
    for pid, plane in enumerate((plane for plane in space.planes if plane.lines), start=1):
        yield {"ph": "M", "pid": pid, "name": "process_name", "args": {"name": plane.name}}
        names = {key: data.name for key, data in plane.event_metadata.items()}
        for tid, line in enumerate(plane.lines, start=1):
            yield {"ph": "M", "pid": pid, "tid": tid, "name": "thread_name", "args": {"name": line.name}}
            for event in line.events:
                if event.duration_ps:
                    begin = line.timestamp_ns / 1e3 + event.offset_ps / 1e6
                    yield {
                        "ph": "X",
                        "pid": pid,
                        "tid": tid,
                        "ts": round(begin, 3),
                        "dur": round(event.duration_ps / 1e6, 3),
                        "name": names.get(event.metadata_id, ""),
                    }
