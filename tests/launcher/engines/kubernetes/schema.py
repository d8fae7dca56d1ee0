"""Write the schema of JobSet anew, from its definition: `python -m tests.launcher.engines.kubernetes.schema FILE`.

FILE is config/components/crd/bases/jobset.x-k8s.io_jobsets.yaml of https://github.com/kubernetes-sigs/jobset; the schema has
the names and types of its fields, without their descriptions. The one in this repository is of 2026-08-18 (0.13).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import yaml

from podrun.launcher.engines import kubernetes

FILE = Path(kubernetes.__file__).with_name("jobset_schema.json")
_METADATA = {
    "name": "string",
    "generateName": "string",
    "namespace": "string",
    "labels": {"*": "string"},
    "annotations": {"*": "string"},
    "finalizers": ["string"],
}
"""Fields of `metadata`, which the definition leaves to Kubernetes."""


def fields_of(definition: dict[str, Any], name: str = "") -> Any:
    if definition.get("x-kubernetes-int-or-string"):
        return "integer or string"
    kind = definition.get("type", "any")
    if kind == "array":
        return [fields_of(definition["items"])]
    if kind != "object":
        return kind
    if "properties" in definition:
        return {key: fields_of(value, key) for key, value in sorted(definition["properties"].items())}
    if isinstance(definition.get("additionalProperties"), dict):
        return {"*": fields_of(definition["additionalProperties"])}
    return _METADATA if name == "metadata" else "any"


if __name__ == "__main__":
    versions = yaml.safe_load(Path(sys.argv[1]).read_text(encoding="utf-8"))["spec"]["versions"]
    (version,) = (v for v in versions if v["name"] == "v1alpha2")
    fields = fields_of(version["schema"]["openAPIV3Schema"])
    del fields["status"]
    FILE.write_text(json.dumps(fields, separators=(",", ":")) + "\n", encoding="utf-8")
