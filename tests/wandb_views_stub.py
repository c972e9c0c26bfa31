"""What `wandb_stub.py` lacks for saved views and reports: the look-up of runs and projects, and views that are kept."""

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any


def _load(name: str) -> Any:
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
        assert spec is not None and spec.loader is not None
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules[name]


_stub = _load("wandb_stub")
ENTITY = _stub.ENTITY


class WandbViewsStub(_stub.WandbStub):
    """A server that holds a project, some runs of it, and what is saved there.

    Attributes:
        views: The variables of each saved view or report, by its id.
    """

    def __init__(self, runs: list[str], project: str = "manyfit"):
        super().__init__()
        self.views: dict[str, dict[str, Any]] = {}
        for name in runs:
            self.runs[name] = _stub.Run(name, project, upserts=1)

    @property
    def projects(self) -> set[str]:
        """Those that exist: a run makes its project."""
        return {run.project for run in self.runs.values()}

    def spec(self, kind: str) -> dict[str, Any]:
        """The specification of the one view of a kind: `project-view` for a workspace, `runs` for a report."""
        [view] = [view for view in self.views.values() if view["type"] == kind]
        return json.loads(view["spec"])

    def _get_default_entity(self, query: str, variables: dict[str, Any]) -> dict[str, Any]:
        return self._viewer(query, variables)

    def _runs(self, query: str, variables: dict[str, Any]) -> dict[str, Any]:
        if variables["project"] not in self.projects:
            return {"project": None}
        wanted = json.loads(variables["filters"])["name"]["$in"]
        keys = ("displayName", "sweepName", "state", "group", "jobType", "commit", "createdAt", "heartbeatAt")
        user = {"name": ENTITY, "username": ENTITY}
        nodes = [
            {**dict.fromkeys(keys), "id": name, "name": name, "tags": [], "projectId": 1, "user": user}
            for name in self.runs
            if name in wanted
        ]
        edges = [{"cursor": node["name"], "node": node} for node in nodes]
        page = {"endCursor": None, "hasNextPage": False}
        found = {"edges": edges, "pageInfo": page}
        return {"project": {"internalId": "1", "runCount": len(edges), "readOnly": False, "runs": found}}

    def _get_projects(self, query: str, variables: dict[str, Any]) -> dict[str, Any]:
        facts = {"__typename": "Project", "id": "p", "entityName": ENTITY, "createdAt": "2026-01-01T00:00:00"}
        edges = [
            {"node": {**facts, "name": name, "isBenchmark": False, "user": None}} for name in sorted(self.projects)
        ]
        page = {"__typename": "PageInfo", "endCursor": None, "hasNextPage": False}
        return {"models": {"pageInfo": page, "edges": edges}}

    def _project_internal_id(self, query: str, variables: dict[str, Any]) -> dict[str, Any]:
        known = variables["projectName"] in self.projects
        return {"project": {"id": "UHJvamVjdDox", "internalId": "1"} if known else None}

    def _upsert_view(self, query: str, variables: dict[str, Any]) -> dict[str, Any]:
        key = variables.get("id") or f"view{len(self.views)}"
        inserted = key not in self.views
        self.views[key] = variables
        project = {"id": "p", "name": variables["projectName"], "entityName": variables["entityName"]}
        shown = ("type", "name", "displayName", "description", "spec")
        view = {"id": key, "project": project, "updatedAt": None, **{name: variables.get(name) for name in shown}}
        return {"upsertView": {"view": view, "inserted": inserted}}

    _upsert_view2 = _upsert_view
