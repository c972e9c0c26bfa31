"""A W&B server on loopback, as far as runs, sweeps and their agents need one; the unmodified client talks to it.

It keeps what it is sent (config, history, summary, system events, log lines, files, exit codes), hands out the runs of
a sweep's grid, and can be told to go wrong: answer 500, say nothing more, stop a run or a sweep.
"""

import base64
import contextlib
import gzip
import itertools
import json
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

import yaml

KEY = "0123456789abcdef0123456789abcdef01234567"
ENTITY = "tester"


@dataclass
class Run:
    """What the server knows of a run."""

    name: str
    project: str
    config: dict[str, Any] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)
    exit_code: int | None = None
    complete: bool = False
    upserts: int = 0
    sweep: str | None = None
    agent: str | None = None
    stopped: bool = False

    def values(self, key: str) -> list[Any]:
        """The values of one key of the history, in order."""
        return [row[key] for row in self.history if key in row]


@dataclass
class Sweep:
    """A sweep and the runs that are still to be handed out."""

    name: str
    project: str
    config: dict[str, Any]
    waiting: list[dict[str, Any]]
    state: str = "RUNNING"


@dataclass
class WandbStub:
    """The server; a context manager that runs it in a thread.

    Attributes:
        runs: By their id.
        requests: `(method, path or operation)` of everything that was asked, in order.
        fails: Called with each of these; a status such as 500 is answered in its place, 0 cuts the connection.
        stops: Called with each run that an agent reports; True stops that run.
    """

    runs: dict[str, Run] = field(default_factory=dict)
    sweeps: dict[str, Sweep] = field(default_factory=dict)
    requests: list[tuple[str, str]] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    fails: Callable[[str, str], int | None] = lambda method, what: None
    stops: Callable[[Run], bool] = lambda run: False
    dead: bool = False

    def __enter__(self) -> "WandbStub":
        stub = self

        class Handler(_Handler):
            server_state = stub

        self.lock = threading.RLock()
        self._server = _Server(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def url(self) -> str:
        """Where it is."""
        return f"http://127.0.0.1:{self._server.server_port}"

    @property
    def environment(self) -> dict[str, str]:
        """The variables that lead a client here."""
        return {
            "WANDB_BASE_URL": self.url,
            "WANDB_API_KEY": KEY,
            "WANDB_ENTITY": ENTITY,
            "WANDB_PROJECT": "stub",
            "WANDB_MODE": "online",
        }

    def die(self) -> None:
        """Cut every connection from now on."""
        self.dead = True

    # --- GraphQL ----------------------------------------------------------------------------------------------------

    def answer(self, operation: str, query: str, variables: dict[str, Any]) -> dict[str, Any]:
        """The `data` of an operation."""
        method = getattr(self, f"_{re.sub(r'(?<!^)(?=[A-Z])', '_', operation).lower()}", None)
        if method is None:
            self.unknown.append(operation)
            raise KeyError(operation)
        return method(query, variables)

    def _viewer(self, query: str, variables: dict[str, Any]) -> dict[str, Any]:
        return {
            "viewer": {
                "id": "VXNlcjox",
                "entity": ENTITY,
                "username": ENTITY,
                "email": "tester@localhost",
                "flags": "{}",
                "teams": {"edges": [{"node": {"name": ENTITY}}]},
            }
        }

    def _server_info(self, query: str, variables: dict[str, Any]) -> dict[str, Any]:
        info = {"cliVersionInfo": {"max_cli_version": "99.0.0"}, "latestLocalVersionInfo": None, "features": []}
        return {"serverInfo": info}

    _server_features_query = _probe_server_capabilities = _server_features = _server_info

    def _run_resume_status(self, query: str, variables: dict[str, Any]) -> dict[str, Any]:
        run = self.runs.get(variables["name"])
        bucket = None
        if run is not None and run.upserts:
            bucket = {
                "id": _id(run),
                "name": run.name,
                "historyLineCount": len(run.history),
                "eventsLineCount": len(run.events),
                "logLineCount": len(run.lines),
                "historyTail": json.dumps([json.dumps(row) for row in run.history[-1:]]),
                "eventsTail": json.dumps([json.dumps(row) for row in run.events[-1:]]),
                "summaryMetrics": json.dumps(run.summary),
                "config": json.dumps(run.config),
                "displayName": run.facts.get("displayName"),
                "tags": run.facts.get("tags") or [],
                "wandbConfig": json.dumps(run.config.get("_wandb", {}).get("value", {})),
                "jobType": run.facts.get("jobType"),
                "group": run.facts.get("groupName"),
                "notes": run.facts.get("notes"),
                "sweepName": run.sweep,
            }
        return {"model": {"id": "m", "name": variables.get("project"), "entity": _entity(), "bucket": bucket}}

    def _upsert_bucket(self, query: str, variables: dict[str, Any]) -> dict[str, Any]:
        name = variables.get("name") or base64.b64decode(variables["id"]).decode()
        run = self.runs.get(name)
        inserted = run is None or run.upserts == 0
        if run is None:
            run = self.runs[name] = Run(name, variables.get("project") or "stub")
        run.upserts += 1
        if variables.get("config"):
            run.config.update(json.loads(variables["config"]))
        if variables.get("summaryMetrics"):
            run.summary.update(json.loads(variables["summaryMetrics"]))
        if variables.get("sweep"):
            run.sweep = variables["sweep"]
        known = ("displayName", "tags", "groupName", "jobType", "notes", "commit", "host", "program", "state")
        run.facts.update({key: variables[key] for key in known if variables.get(key) is not None})
        bucket = {
            "id": _id(run),
            "name": run.name,
            "displayName": run.facts.get("displayName") or run.name,
            "description": None,
            "config": json.dumps(run.config),
            "sweepName": run.sweep,
            "project": {"id": "p", "name": run.project, "entity": _entity()},
            "historyLineCount": len(run.history),
            "createdAt": "2026-01-01T00:00:00",
            "heartbeatAt": None,
            "tags": run.facts.get("tags") or [],
            "notes": run.facts.get("notes"),
            "group": run.facts.get("groupName"),
        }
        return {"upsertBucket": {"bucket": bucket, "inserted": inserted}}

    def _create_run_files(self, query: str, variables: dict[str, Any]) -> dict[str, Any]:
        run = variables.get("run")
        place = f"{self.url}/upload/{run}"
        files = [{"name": name, "uploadUrl": f"{place}/{name}"} for name in variables.get("files") or []]
        return {"createRunFiles": {"runID": run, "uploadHeaders": [], "files": files}}

    def _run_stopped_status(self, query: str, variables: dict[str, Any]) -> dict[str, Any]:
        run = self.runs.get(variables.get("runId") or variables.get("name") or "")
        return {"project": {"run": {"stopped": bool(run and run.stopped)}}}

    # --- sweeps -----------------------------------------------------------------------------------------------------

    def _upsert_sweep(self, query: str, variables: dict[str, Any]) -> dict[str, Any]:
        if variables.get("id"):  # a change of state
            sweep = self.sweeps[variables["id"]]
            sweep.state = variables.get("state") or sweep.state
            return {"upsertSweep": {"sweep": {"name": sweep.name}, "configValidationWarnings": []}}
        config = yaml.safe_load(variables["config"])
        name, project = f"sweep{len(self.sweeps)}", variables.get("projectName") or "stub"
        self.sweeps[name] = Sweep(name, project, config, _grid(config["parameters"]))
        found = {"name": name, "project": {"id": "p", "name": project, "entity": _entity()}}
        return {"upsertSweep": {"sweep": found, "configValidationWarnings": []}}

    def _sweep_with_runs(self, query: str, variables: dict[str, Any]) -> dict[str, Any]:
        sweep = self.sweeps.get(variables["sweep"])
        if sweep is None:
            return {"project": {"sweep": None}}
        text = {"config": yaml.safe_dump(sweep.config), "method": "grid", "state": sweep.state, "name": sweep.name}
        rest = ("description", "createdAt", "heartbeatAt", "updatedAt", "earlyStopJobRunning", "bestLoss")
        found = {**dict.fromkeys((*rest, "controller", "scheduler")), **text, "id": sweep.name, "runs": {"edges": []}}
        return {"project": {"sweep": found}}

    def _create_agent(self, query: str, variables: dict[str, Any]) -> dict[str, Any]:
        number = sum(what == "CreateAgent" for _, what in self.requests)
        return {"createAgent": {"agent": {"id": f"{variables['sweep']}.agent{number}"}}}

    def _heartbeat(self, query: str, variables: dict[str, Any]) -> dict[str, Any]:
        sweep = self.sweeps[variables["id"].partition(".")[0]]
        running = [name for name, alive in json.loads(variables["runState"] or "{}").items() if alive]
        commands = []
        for name in running:
            run = self.runs[name]
            if sweep.state == "CANCELED" or self.stops(run):
                run.stopped = True
                commands.append({"type": "stop", "run_id": name})
        if not running:
            if sweep.waiting and sweep.state == "RUNNING":
                arguments = sweep.waiting.pop(0)
                run = Run(f"{sweep.name}run{len(self.runs)}", sweep.project, sweep=sweep.name, agent=variables["id"])
                run.config = {key: {"value": value} for key, value in arguments.items()}
                self.runs[run.name] = run
                program = sweep.config["program"]
                commands = [{"type": "run", "run_id": run.name, "program": program, "args": run.config}]
            else:
                sweep.state = "FINISHED" if sweep.state == "RUNNING" else sweep.state
                commands = [{"type": "exit"}]
        return {"agentHeartbeat": {"agent": {"id": variables["id"]}, "commands": json.dumps(commands)}}

    # --- the stream of a run ----------------------------------------------------------------------------------------

    def stream(self, name: str, sent: dict[str, Any]) -> None:
        """Take what a run logs."""
        run = self.runs.setdefault(name, Run(name, "stub"))
        for file, chunk in (sent.get("files") or {}).items():
            offset, content = chunk.get("offset", 0), chunk.get("content") or []
            if file == "wandb-history.jsonl":
                run.history[offset:] = [json.loads(line) for line in content]
            elif file == "wandb-events.jsonl":
                run.events[offset:] = [json.loads(line) for line in content]
            elif file == "output.log":
                run.lines[offset:] = content
            elif file == "wandb-summary.json":
                for line in content:
                    run.summary.update(json.loads(line))
        if sent.get("exitcode") is not None:
            run.exit_code = sent["exitcode"]
        run.complete = run.complete or bool(sent.get("complete"))

    def wait_for(self, condition: Callable[[], Any], seconds: float = 120.0) -> None:
        """Wait until something has happened.

        Raises:
            TimeoutError: it did not.
        """
        until = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > until:
                raise TimeoutError(f"Nothing of the sort after {seconds} s; the last requests: {self.requests[-10:]}")
            time.sleep(0.05)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away in the middle is nothing to report."""


class _Handler(BaseHTTPRequestHandler):
    server_state: WandbStub
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *arguments: Any) -> None:
        """Nothing."""

    def _take(self) -> bytes:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        return gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body

    def _send(self, status: int, content: Any = None) -> None:
        body = json.dumps(content if content is not None else {}).encode()
        with contextlib.suppress(OSError):
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    def _refused(self, what: str) -> bool:
        stub = self.server_state
        with stub.lock:
            stub.requests.append((self.command, what))
            status = 0 if stub.dead else stub.fails(self.command, what)
        if status is None:
            return False
        if status == 0:
            self.close_connection = True
        else:
            self._send(status, {"errors": [{"message": "the stub was told to fail"}]})
        return True

    def do_POST(self) -> None:
        """GraphQL, or the file stream of a run."""
        body, path = self._take(), unquote(urlsplit(self.path).path)
        stub = self.server_state
        if path == "/graphql":
            asked = json.loads(body)
            operation = asked.get("operationName") or _operation(asked["query"])
            if self._refused(operation):
                return
            try:
                with stub.lock:
                    data = stub.answer(operation, asked["query"], asked.get("variables") or {})
            except KeyError as error:
                self._send(200, {"errors": [{"message": f"unknown here: {error}"}], "data": None})
            else:
                self._send(200, {"data": data})
        elif match := re.fullmatch(r"/files/[^/]+/[^/]+/([^/]+)/file_stream", path):
            if self._refused("file_stream"):
                return
            with stub.lock:
                stub.stream(match[1], json.loads(body))
            self._send(200, {"exitcode": None, "limits": {}})
        elif not self._refused(path):
            self._send(404)

    def do_PUT(self) -> None:
        """The upload of a file."""
        body, path = self._take(), unquote(urlsplit(self.path).path)
        if self._refused(path):
            return
        _, _, run, name = path.split("/", 3)
        with self.server_state.lock:
            self.server_state.runs.setdefault(run, Run(run, "stub")).files[name] = body
        self._send(200)

    def do_GET(self) -> None:
        """Nothing that a client needs."""
        if not self._refused(self.path):
            self._send(200 if self.path in ("/ready", "/healthz") else 404)


def _operation(query: str) -> str:
    match = re.search(r"\b(?:query|mutation)\s+(\w+)", query)
    return match[1] if match else query.strip()[:40]


def _entity() -> dict[str, str]:
    return {"id": "e", "name": ENTITY}


def _id(run: Run) -> str:
    return base64.b64encode(run.name.encode()).decode()


def _grid(parameters: dict[str, Any]) -> list[dict[str, Any]]:
    """Every combination; nested parameters stay nested, as W&B hands them out."""

    def options(spec: dict[str, Any]) -> list[Any]:
        if "parameters" in spec:
            return _grid(spec["parameters"])
        return spec["values"] if "values" in spec else [spec["value"]]

    names = list(parameters)
    return [dict(zip(names, values, strict=True)) for values in itertools.product(*map(options, parameters.values()))]
