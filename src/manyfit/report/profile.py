"""What a profiler's trace says: where the time of the traced steps went, and which operations took most of it.

A trace is an `XSpace` (tsl/profiler/protobuf/xplane.proto): a plane for the host and one for each GPU, a line for each
thread or stream, events on it in picoseconds. Nothing here needs TensorFlow: any object with those fields will do.
"""

import itertools
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from manyfit.report.spans import Span, total, union, within, without

STEPS = "train_steps"
"""The name of the event around each call of the training function."""

COMPUTE, SYNCHRONISATION, COPIES, INPUT, IDLE = PARTS = (
    "computing",
    "synchronisation",
    "copies",
    "waiting for input",
    "idle",
)
"""Where the time of a step goes. Each moment counts for the first of these that it belongs to."""

MOST_OPERATIONS = 12
_PICO = 1e-12

# How TensorFlow names the event of an operation, NAME:TYPE (tf_op_utils.cc of its profiler).
_OPERATION = re.compile(r"[A-Za-z0-9.][\w./>-]*:([A-Z_]\w*)")
_PIPELINE_THREADS = ("tf_data",)
_SYNCHRONISES = ("Collective", "Nccl")
_COPIES = ("_Send", "_Recv", "_HostSend", "_HostRecv")
_WAITS_FOR_INPUT = ("IteratorGetNext", "GetNextFromShard", "MultiDeviceIteratorGetNext")


@dataclass(frozen=True)
class Event:
    """One thing that a thread or a stream did, in picoseconds."""

    name: str
    begin: int
    end: int
    operation: str | None = None

    @property
    def span(self) -> Span:
        """When."""
        return self.begin, self.end


@dataclass
class _Device:
    """What one device did; the host's CPU is one where there is no other."""

    name: str
    spans: dict[str, list[Span]] = field(default_factory=lambda: defaultdict(list))


def summary(space: Any, *, epoch: int, first_step: int, last_step: int) -> dict[str, Any]:
    """The record's section `profile`: shares of the time, devices, operations by self time.

    Args:
        space: The trace, in which an event named `STEPS` lies around each call.
        epoch: Which epoch was traced, counted from 1; so are the steps.

    Raises:
        ValueError: the trace holds none of the steps.
    """
    host = [line for plane in space.planes if plane.name.startswith("/host:CPU") for line in _lines(plane)]
    calls = [event.span for _, events in host for event in events if event.name == STEPS]
    if not calls:
        raise ValueError(f"The trace holds no event {STEPS}.")
    window = min(begin for begin, _ in calls), max(end for _, end in calls)
    seconds = (window[1] - window[0]) * _PICO
    work, pipeline = _host_operations(host)
    gpus = [_gpu(plane) for plane in space.planes if plane.name.startswith("/device:GPU")]
    waits = union(
        event.span
        for _, events in host
        for event in events
        if (event.operation or event.name).startswith(_WAITS_FOR_INPUT)
    )
    devices = [device for device, _ in gpus] or [_cpu(work)]
    shares = [_shares(device, waits, window) for device in devices]
    steps = last_step - first_step + 1
    on_devices = [one for _, operations in gpus for one in operations]
    return {
        "epoch": epoch,
        "first_step": first_step,
        "last_step": last_step,
        "seconds": seconds,
        "milliseconds_a_step": 1e3 * seconds / steps,
        "shares": {part: sum(one[part] for one in shares) / len(shares) for part in PARTS},
        "devices": [
            {"name": device.name, "idle_share": one[IDLE] + one[INPUT]}
            for device, one in zip(devices, shares, strict=True)
        ],
        "host_seconds": total(within(union(event.span for event, _ in work), window)) * _PICO,
        "device_seconds": None
        if not gpus
        else sum((1 - one[IDLE] - one[INPUT]) * seconds for one in shares) / len(shares),
        "operations": _ranked(on_devices or work, window),
        "input_operations": _ranked(pipeline, window),
    }


def _lines(plane: Any) -> Iterator[tuple[str, list[Event]]]:
    """The name of each line of a plane, and its events in order: the outer ones first where they nest."""
    names = {key: data.name for key, data in plane.event_metadata.items()}
    operation_stat = next((key for key, data in plane.stat_metadata.items() if data.name == "tf_op"), None)
    for line in plane.lines:
        start = line.timestamp_ns * 1000
        events = []
        for event in line.events:
            name = names.get(event.metadata_id, "")
            begin = start + event.offset_ps
            text = name if operation_stat is None else _stat(plane, event, operation_stat) or name
            found = _OPERATION.fullmatch(text)
            events.append(Event(name, begin, begin + event.duration_ps, found[1] if found else None))
        events.sort(key=lambda event: (event.begin, -event.end))
        yield line.name or line.display_name, events


def _stat(plane: Any, event: Any, key: int) -> str | None:
    for stat in event.stats:
        if stat.metadata_id == key:
            return stat.str_value or plane.stat_metadata[stat.ref_value].name
    return None


def self_times(events: Sequence[Event]) -> list[tuple[Event, int]]:
    """Each event of one thread with its own time: without that of the events that lie inside it.

    Args:
        events: Sorted by their begin, the longer one first.
    """
    own = [event.end - event.begin for event in events]
    open_events: list[int] = []
    for index, event in enumerate(events):
        while open_events and events[open_events[-1]].end <= event.begin:
            open_events.pop()
        if open_events and event.end <= events[open_events[-1]].end:
            own[open_events[-1]] -= event.end - event.begin
        open_events.append(index)
    return list(zip(events, own, strict=True))


_Timed = list[tuple[Event, int]]


def _host_operations(host: Iterable[tuple[str, list[Event]]]) -> tuple[_Timed, _Timed]:
    """The operations that the host ran, with their own time: those of the steps, and those of the input pipeline."""
    work, pipeline = [], []
    for name, events in host:
        timed = self_times([event for event in events if event.operation is not None])
        (pipeline if name.startswith(_PIPELINE_THREADS) else work).extend(timed)
    return work, pipeline


def _kind(operation: str) -> str:
    """Which part of the time an operation's is."""
    if operation.startswith(_SYNCHRONISES):
        return SYNCHRONISATION
    return COPIES if operation.startswith(_COPIES) else COMPUTE


def _cpu(work: _Timed) -> _Device:
    device = _Device("CPU")
    for event, _ in work:
        operation = str(event.operation)
        if not operation.startswith(_WAITS_FOR_INPUT):
            device.spans[_kind(operation)].append(event.span)
    return device


def _gpu(plane: Any) -> tuple[_Device, _Timed]:
    """What a GPU's streams did. Its other lines tell the same once more, grouped by steps or modules."""
    device, timed = _Device(plane.name.removeprefix("/device:")), []
    for name, events in _lines(plane):
        if not name.startswith("Stream"):
            continue
        for event in events:
            lower = event.name.lower()
            kind = COPIES if lower.startswith(("memcpy", "memset")) else _kind(event.operation or "")
            device.spans[SYNCHRONISATION if "nccl" in lower else kind].append(event.span)
            timed.append((event, event.end - event.begin))
    return device, timed


def _shares(device: _Device, waits: Sequence[Span], window: Span) -> dict[str, float]:
    """The share of each part in the window; together they are 1."""
    length = max(1, window[1] - window[0])
    shares, taken = {}, []
    for part in (COMPUTE, SYNCHRONISATION, COPIES, INPUT):
        spans = union(within(waits if part == INPUT else device.spans[part], window))
        shares[part] = total(without(spans, taken)) / length
        taken = union(itertools.chain(taken, spans))
    return shares | {IDLE: 1 - total(taken) / length}


def _ranked(timed: _Timed, window: Span) -> list[dict[str, Any]]:
    """Operations by their own time, the longest first; those that only wait are left out."""
    own: dict[str, int] = defaultdict(int)
    calls: dict[str, int] = defaultdict(int)
    for event, picoseconds in timed:
        name = short(event.operation or event.name)
        if window[0] <= event.begin < window[1] and not name.startswith(_WAITS_FOR_INPUT):
            own[name] += picoseconds
            calls[name] += 1
    whole = sum(own.values()) or 1
    ranked = sorted(own, key=lambda name: (-own[name], name))[:MOST_OPERATIONS]
    return [
        {"operation": name, "seconds": own[name] * _PICO, "share": own[name] / whole, "calls": calls[name]}
        for name in ranked
    ]


def short(operation: str) -> str:
    """An operation without the library that ran it.

    >>> short("_MklNativeFusedConv2D"), short("_MklMatMul"), short("MaxPoolGrad")
    ('FusedConv2D', 'MatMul', 'MaxPoolGrad')
    """
    return re.sub(r"^_(MklNative|Mkl)", "", operation)[:80]


# --- words ------------------------------------------------------------------------------------------------------------


def sentence(section: Mapping[str, Any]) -> str:
    """Where the time went, the largest part first; parts below a hundredth are left out."""
    shares = {part: share for part, share in section["shares"].items() if share >= 0.005}
    parts = [f"{part} {100 * share:.0f} %" for part, share in sorted(shares.items(), key=lambda one: -one[1])]
    return (
        f"steps {section['first_step']} to {section['last_step']} of epoch {section['epoch']}, "
        f"{section['milliseconds_a_step']:.2f} ms each: {', '.join(parts)}"
    )
