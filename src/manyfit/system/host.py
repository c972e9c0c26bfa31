"""What CPU, memory and disk of the host do, and what this process and those that it started take of them."""

import time
from collections.abc import Callable
from typing import Any

import psutil

LISTING_SHARE = 0.02
"""Share of the time that may go into looking for child processes: slow where a host runs thousands of them."""
LISTING_SECONDS = 2.0
NAMES = (
    "cpu_percent",
    "process_cpu_percent",
    "memory_bytes",
    "process_memory_bytes",
    "disk_read_bytes_per_second",
    "disk_write_bytes_per_second",
)


class Host:
    """Readings of the host; the rates of each are over the time since the one before.

    Attributes:
        problem: What the last reading that failed said; None before any has.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self.problem: str | None = None
        self._clock = clock
        self._own = psutil.Process()
        self._children: list[psutil.Process] = []
        self._listed_at, self._listing_took = -float("inf"), 0.0
        self._cpu_seconds: dict[psutil.Process, float] = {}
        self._disk: tuple[int, int] | None = None
        self._read_at: float | None = None
        psutil.cpu_percent(None)  # it tells the time since the last call, and nothing at the first

    def read(self) -> dict[str, Any]:
        """The values now, None for what cannot be had. Never raises.

        `cpu_percent` and `disk_*` are of the whole host, `memory_bytes` what all its processes take. The processes are
        this one and all that it started: their CPU in percent of one core, the sum of their resident memory.
        """
        now = self._clock()
        seconds = now - self._read_at if self._read_at is not None and now > self._read_at else None
        self._read_at = now
        values: dict[str, Any] = dict.fromkeys(NAMES)
        for reading in (self._read_host, self._read_disk, self._read_processes):
            try:
                values.update(reading(seconds))
            except Exception as error:
                self.problem = f"{type(error).__name__}: {error}"
        return values

    def _read_host(self, seconds: float | None) -> dict[str, Any]:
        memory = psutil.virtual_memory()
        percent = psutil.cpu_percent(None)
        return {"cpu_percent": percent if seconds else None, "memory_bytes": memory.total - memory.available}

    def _read_disk(self, seconds: float | None) -> dict[str, Any]:
        counters = psutil.disk_io_counters()
        if counters is None:  # a container may see no disk
            return {}
        before, self._disk = self._disk, (counters.read_bytes, counters.write_bytes)
        if before is None or not seconds:
            return {}
        read, written = (max(0, after - was) / seconds for was, after in zip(before, self._disk, strict=True))
        return {"disk_read_bytes_per_second": read, "disk_write_bytes_per_second": written}

    def _read_processes(self, seconds: float | None) -> dict[str, Any]:
        self._list_children()
        used, memory, cpu_seconds = 0.0, 0, {}
        for process in (self._own, *self._children):
            try:
                with process.oneshot():
                    times = process.cpu_times()
                    memory += process.memory_info().rss
            except psutil.Error:  # it has ended
                continue
            cpu_seconds[process] = times.user + times.system
            used += max(0.0, cpu_seconds[process] - self._cpu_seconds.get(process, 0.0))
        self._cpu_seconds = cpu_seconds
        return {"process_cpu_percent": 100 * used / seconds if seconds else None, "process_memory_bytes": memory}

    def _list_children(self) -> None:
        now = self._clock()
        if now - self._listed_at >= max(LISTING_SECONDS, self._listing_took / LISTING_SHARE):
            self._children = self._own.children(recursive=True)
            self._listed_at, self._listing_took = now, self._clock() - now
