"""One rank of a training without the training: `peer_worker.py OPTIONS`, a JSON object with the code that it runs."""

import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src"))

from manyfit.cluster import Cluster
from manyfit.errors import UserError
from manyfit.peers import assemble, links, waiting


def say(*words):
    sys.stdout.write(" ".join(map(str, words)) + "\n")  # in one piece: two threads may speak
    sys.stdout.flush()


def main(options):
    links.LEAVE_SECONDS = options["leave_seconds"]
    links.STARTING_SECONDS = options["starting_seconds"]
    waiting._TELL_AFTER_SECONDS = 0.3
    cluster = Cluster("TF_CONFIG", tuple(options["workers"]), options["rank"], job=options["job"])
    given = {"seconds": options["seconds"], "facts": options["facts"], "show": say}
    try:
        with assemble(cluster, lost_after_seconds=options["lost_after"], **given) as peers:
            say("here", os.getpid())
            exec(options["code"], {"peers": peers, "cluster": cluster, "say": say, "os": os, "sys": sys})
    except UserError as error:
        say(f"{type(error).__name__}: {error}")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
