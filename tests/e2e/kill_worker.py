"""Starts runs quickly, to be killed: TensorFlow is imported once, and every run is a fork of this process.

One JSON request a line on standard input: `{"overrides": [...], "log": FILE, "kill": {"at": NAME, "count": N} or
null}`. The answer, a line of JSON, is how the process of that run ended: its exit code, or minus the signal.
"""

import json
import os
import sys
import threading
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

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


def main() -> None:
    for line in sys.stdin:
        request = json.loads(line)
        child = os.fork()
        if child == 0:
            log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            for stream in (1, 2):
                os.dup2(log, stream)
            arm(request["kill"], request["signal"])
            sys.argv = ["train.py", *request["overrides"]]
            train.main()
            os._exit(0)
        timer = None
        if request["kill"] and request["kill"]["at"] == AFTER_SECONDS:
            timer = threading.Timer(request["kill"]["count"], os.kill, (child, request["signal"]))
            timer.start()
        _, status = os.waitpid(child, 0)
        if timer is not None:
            timer.cancel()
        print(json.dumps(os.waitstatus_to_exitcode(status)), flush=True)


if __name__ == "__main__":
    main()
