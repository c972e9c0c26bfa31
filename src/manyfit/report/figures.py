"""Charts as a page holds them: Plotly figures in the types of JSON, embedded in HTML."""

import base64
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

_SHARED_FROM = 50
"""Lists of at least this many numbers are written once, however many charts show them."""


@dataclass(frozen=True)
class By:
    """One choice of a chart's horizontal axis.

    Args:
        title: Of the axis, with its unit.
        x: A list of values for each trace, in their order; None for a trace that has none.
    """

    title: str
    x: Sequence[Sequence[Any] | None]


@dataclass(frozen=True)
class Chart:
    """A figure on a page."""

    key: str
    title: str
    figure: dict[str, Any]
    note: str = ""
    by: dict[str, By] = field(default_factory=dict)
    height: int = 340


def plain(value: Any) -> Any:
    """A figure in the types of JSON; numbers have six digits, which no screen shows, and no number is no point."""
    if isinstance(value, Mapping):
        if "bdata" in value:
            return plain(_unpacked(value))
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    if hasattr(value, "tolist"):  # a NumPy array or scalar
        return plain(value.tolist())
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return value if value is None or isinstance(value, bool | int | str) else str(value)


def _unpacked(packed: Mapping[str, Any]) -> list[Any]:
    """The numbers that Plotly has packed into base64."""
    import numpy as np

    values = np.frombuffer(base64.b64decode(packed["bdata"]), dtype=packed["dtype"])
    if shape := packed.get("shape"):
        values = values.reshape([int(size) for size in str(shape).split(",")])
    return values.tolist()


def has_values(trace: Mapping[str, Any]) -> bool:
    """Whether a trace has anything to show."""
    values = trace.get("x") if trace.get("orientation") == "h" else trace.get("y", trace.get("z", trace.get("values")))
    return any(value is not None for value in values or ())


def embedded(charts: Sequence[Chart]) -> str:
    """The charts as JSON inside a script element; long lists are kept apart, so that each is there once."""
    arrays: dict[str, int] = {}

    def shared(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: shared(inner) for key, inner in value.items()}
        if isinstance(value, list):
            if len(value) >= _SHARED_FROM and not any(isinstance(inner, dict | list) for inner in value):
                text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
                return {"$array": arrays.setdefault(text, len(arrays))}
            return [shared(inner) for inner in value]
        return value

    told = [
        {
            "key": chart.key,
            "figure": shared(chart.figure),
            "by": {name: {"title": one.title, "x": shared(plain(one.x))} for name, one in chart.by.items()},
        }
        for chart in charts
    ]
    written = json.dumps(told, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    text = f'{{"charts":{written},"arrays":[{",".join(arrays)}]}}'
    return text.replace("<", "\\u003c")  # nothing in it can end the script element
