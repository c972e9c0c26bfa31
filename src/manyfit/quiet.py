"""Start TensorFlow without its start-up noise on the user's screen, and the heavy imports side by side."""

import contextlib
import importlib
import os
import sys
import tempfile
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def quiet_tensorflow(verbose: bool = False) -> Iterator[None]:
    """Inside, what native code writes to stderr is held back; it is shown if the block fails, or with `verbose`.

    TensorFlow's log level does not reach what it prints before its logging starts, so the file descriptor is turned
    aside. Import TensorFlow and start its devices inside.
    """
    if verbose:
        yield
        return
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # ERROR would make gRPC turn TensorFlow's own errors on
    try:
        descriptor = sys.stderr.fileno()
    except (AttributeError, OSError, ValueError):
        yield  # no real file behind stderr: nothing native reaches the screen through it
        return
    sys.stderr.flush()
    kept = os.dup(descriptor)
    with tempfile.TemporaryFile() as aside:
        os.dup2(aside.fileno(), descriptor)
        failed = True
        try:
            yield
            failed = False
        finally:
            sys.stderr.flush()
            os.dup2(kept, descriptor)
            os.close(kept)
            if failed:
                aside.seek(0)
                os.write(descriptor, aside.read())


@contextlib.contextmanager
def imported_beside(name: str | None) -> Iterator[None]:
    """Import a module in a thread while this one imports others: half of either waits for the disk."""
    thread = threading.Thread(target=_import_quietly, args=(name,), daemon=True)
    if name is not None:
        thread.start()
    yield
    if name is not None:
        thread.join()


def _import_quietly(name: str | None) -> None:
    with contextlib.suppress(Exception):  # whoever needs it meets the error again
        importlib.import_module(str(name))
