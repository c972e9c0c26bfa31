"""Starts runs quickly, to be killed: TensorFlow is imported once, and every run is a fork of this process.

One JSON request a line on standard input: `{"overrides": [...], "log": FILE, "kill": {"at": NAME, "count": N} or
null}`. The answer, a line of JSON, is how the process of that run ended: its exit code, or minus the signal. With
`"workers": ["host:port", ...]` a process a worker is started (`"own": {RANK: [...]}` has overrides of one of them,
`"late": {RANK: SECONDS}` when it starts), `"rank"` is the one that is killed, the answer a list by rank; one that
still stands 25 s after another has failed is ended and counts as None.
"""

import json
import os
import signal
import sys
import threading
import time
import traceback

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import evaluate
import predict
import train
from manyfit import (
    array_store,
    checkpoint,
    epoch_loop,
    fit,  # noqa: F401 - imported here once, not by every fork
)
from manyfit.callbacks import best_model

PLACES = {
    "before the first step": (epoch_loop.EpochLoop, "_train_epoch"),
    "a step": (epoch_loop.CallSize, "observe"),
    "a checkpoint is being written": (checkpoint.np, "savez"),
    "a checkpoint is being put in its place": (checkpoint, "flush"),
    "the best model is being put in its place": (best_model, "flush"),
    "validation": (epoch_loop.EpochLoop, "_test_epoch"),
    "features are being kept": (array_store.os, "rename"),
}
"""Functions that are killed in: at the call of that count, when it is about to begin."""


AFTER_SECONDS = "after seconds"


def arm(kill: dict | None, number: int) -> None:
    """Let this process get a signal where `kill` says, or stand still there for the number 0."""
    if kill is None or kill["at"] == AFTER_SECONDS:
        return
    owner, name = PLACES[kill["at"]]
    original, calls = getattr(owner, name), iter(range(kill["count"]))

    def killed(*arguments, **named):
        if next(calls, None) == kill["count"] - 1:
            os.kill(os.getpid(), number) if number else time.sleep(3600)
        return original(*arguments, **named)

    setattr(owner, name, killed)


def start(request: dict, overrides: list[str], log: str, victim: bool, environment: dict[str, str]) -> int:
    """The process of a run, or of one of its workers."""
    child = os.fork()
    if child:
        return child
    stream = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for number in (1, 2):
        os.dup2(stream, number)
    os.environ.update(environment)
    if victim:
        arm(request["kill"], request["signal"])
    script = request.get("script", "train")
    sys.argv = [f"{script}.py", *overrides]
    try:
        code = {"train": train, "evaluate": evaluate, "predict": predict}[script].main()
        sys.exit(code or 0)
    except SystemExit as leave:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(leave.code if isinstance(leave.code, int) else int(leave.code is not None))
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)


def wait_for(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def run_alone(request: dict) -> int:
    child = start(request, request["overrides"], request["log"], True, {})
    timer = None
    if request["kill"] and request["kill"]["at"] == AFTER_SECONDS:
        timer = threading.Timer(request["kill"]["count"], os.kill, (child, request["signal"]))
        timer.start()
    code = wait_for(child)
    if timer is not None:
        timer.cancel()
    return code


def run_workers(request: dict) -> list[int | None]:
    started = time.monotonic()
    running, codes = {}, [None] * len(request["workers"])
    late = {int(rank): seconds for rank, seconds in request["late"].items()}
    waiting = set(range(len(codes)))
    fails_at = None
    while waiting or running:
        now = time.monotonic()
        for rank in sorted(waiting):
            if now - started >= late.get(rank, 0):
                waiting.discard(rank)
                cluster = {"cluster": {"worker": request["workers"]}, "task": {"type": "worker", "index": rank}}
                own = [*request["overrides"], *request["own"].get(str(rank), [])]
                told = {"TF_CONFIG": json.dumps(cluster)}
                running[rank] = start(request, own, f"{request['log']}.{rank}", rank == request["rank"], told)
        for rank, child in list(running.items()):
            pid, status = os.waitpid(child, os.WNOHANG)
            if pid:
                codes[rank] = os.waitstatus_to_exitcode(status)
                del running[rank]
                fails_at = fails_at or (now if codes[rank] else None)
        if fails_at is not None and now - fails_at > 25:
            for child in running.values():
                os.kill(child, signal.SIGKILL)
                wait_for(child)
            break
        time.sleep(0.02)
    return codes


def main() -> None:
    for line in sys.stdin:
        request = json.loads(line)
        answer = run_workers(request) if request.get("workers") else run_alone(request)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
