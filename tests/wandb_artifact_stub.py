"""The loopback W&B server with a store of artifacts: models, data sets, code and tables, and what used them."""

import hashlib
import json
from dataclasses import dataclass, field
from typing import Any

from wandb_stub import WandbStub


@dataclass
class Artifact:
    """What the server knows of an artifact.

    Attributes:
        used_by: The runs that it was given to.
    """

    id: str
    collection: str
    type: str
    run: str
    aliases: list[str]
    metadata: dict[str, Any]
    committed: bool = False
    files: list[str] = field(default_factory=list)
    used_by: list[str] = field(default_factory=list)


@dataclass
class WandbArtifactStub(WandbStub):
    """The server; a context manager, as `WandbStub`.

    Attributes:
        artifacts: By their id.
    """

    artifacts: dict[str, Artifact] = field(default_factory=dict)

    def of_type(self, kind: str) -> list[Artifact]:
        """The artifacts of a type, in the order of their creation."""
        return [artifact for artifact in self.artifacts.values() if artifact.type == kind]

    def content(self, artifact: Artifact, name: str) -> bytes:
        """A file of an artifact."""
        return self.runs[artifact.run].files[f"{artifact.id}/{name}"]

    def _artifact_type(self, query: str, variables: dict[str, Any]) -> dict[str, Any]:
        collection = variables["name"].partition(":")[0]
        kinds = [artifact.type for artifact in self.artifacts.values() if artifact.collection == collection]
        return {"project": {"artifact": {"artifactType": {"name": kinds[0]}} if kinds else None}}

    def _create_artifact(self, query: str, variables: dict[str, Any]) -> dict[str, Any]:
        given = variables.get("input") or variables
        name = _collection(given)
        run, kind = given.get("runName") or "", given["artifactTypeName"]
        known = hashlib.sha1(f"{name}{given['digest']}".encode()).hexdigest()[:12]
        aliases = [alias["alias"] for alias in given.get("aliases") or []]
        metadata = json.loads(given.get("metadata") or "{}")
        found = self.artifacts.setdefault(known, Artifact(known, name, kind, run, [], metadata))
        found.aliases += [alias for alias in aliases if alias not in found.aliases]
        return {"createArtifact": {"artifact": _artifact(found)}}

    def _create_artifact_manifest(self, query: str, variables: dict[str, Any]) -> dict[str, Any]:
        given = variables.get("input") or variables
        found = self.artifacts[given["artifactID"]]
        file = {"id": "f", "name": given.get("name"), "displayName": given.get("name")}
        file |= {"uploadUrl": f"{self.url}/upload/{found.run}/{found.id}/manifest", "uploadHeaders": []}
        return {"createArtifactManifest": {"artifactManifest": {"id": f"m{found.id}", "file": file}}}

    def _create_artifact_files(self, query: str, variables: dict[str, Any]) -> dict[str, Any]:
        given = variables.get("input") or variables
        edges = []
        for spec in given["artifactFiles"]:
            found = self.artifacts[spec["artifactID"]]
            found.files.append(spec["name"])
            node = {"id": f"f{len(found.files)}", "name": spec["name"], "displayName": spec["name"]}
            node |= {"uploadUrl": f"{self.url}/upload/{found.run}/{found.id}/{spec['name']}", "uploadHeaders": []}
            node |= {"storagePath": None, "uploadMultipartUrls": None, "artifact": {"id": found.id}}
            edges.append({"node": node})
        return {"createArtifactFiles": {"files": {"edges": edges}}}

    def _update_artifact_manifest(self, query: str, variables: dict[str, Any]) -> dict[str, Any]:
        answer = self._create_artifact_manifest(query, {"artifactID": (variables["artifactManifestID"])[1:]})
        return {"updateArtifactManifest": answer["createArtifactManifest"]}

    def _commit_artifact(self, query: str, variables: dict[str, Any]) -> dict[str, Any]:
        found = self.artifacts[(variables.get("input") or variables)["artifactID"]]
        found.committed = True
        return {"commitArtifact": {"artifact": {"id": found.id, "digest": "d"}}}

    def _use_artifact(self, query: str, variables: dict[str, Any]) -> dict[str, Any]:
        given = variables.get("input") or variables
        found = self.artifacts[given["artifactID"]]
        found.used_by.append(given.get("runName") or "")
        return {"useArtifact": {"artifact": {"id": found.id, "digest": "d", "description": None, "state": "COMMITTED"}}}


def _collection(given: dict[str, Any]) -> str:
    return given.get("artifactCollectionName") or given["aliases"][0]["artifactCollectionName"]


def _artifact(found: Artifact) -> dict[str, Any]:
    state = "COMMITTED" if found.committed else "PENDING"
    return {"id": found.id, "state": state, "artifactSequence": {"id": "s", "latestArtifact": None}}
