"""What the user starts: `local_parent.py OPTIONS CODE`; starts itself as the workers, each of which runs CODE."""

import json
import os
import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src"))

from manyfit.cluster import LOCAL_WORKER, resolve
from manyfit.errors import UserError
from manyfit.schema.place import MultiWorkerConfig


def say(*words):
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def main(options, code):
    cluster = resolve(MultiWorkerConfig(local_workers=options["workers"]))
    if cluster is not None:
        names = {"say": say, "os": os, "sys": sys, "time": time, "signal": signal, "Path": Path, "cluster": cluster}
        exec(code, {**names, "rank": cluster.rank, "word": os.environ[LOCAL_WORKER]})
        return 0
    from manyfit import local_workers

    local_workers.KILL_SECONDS = options["kill_seconds"]
    given = {"grace_seconds": options["grace_seconds"], "stop_seconds": options["stop_seconds"]}
    try:
        return local_workers.run(options["workers"], sys.argv, **given)
    except UserError as error:
        print(f"Error: {error}", file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1]), sys.argv[2]))
