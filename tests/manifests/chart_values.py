"""The schema and the list of the chart's values, from the comments and defaults of charts/rightslice/values.yaml."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import yaml
from pydantic import TypeAdapter

from tests.conftest import ROOT
from webhook.manifests.sent_resources import (
    MAX_NAME_LENGTH,
    MAX_NAMES,
    RESERVED_NAME_PATTERN,
    RESOURCE_NAME_PATTERN,
)
from webhook.policy.crds import policy_crds
from webhook.policy.written.values import Amount, LabelKey, LabelValue
from webhook.settings import WebhookSettings

Json = dict[str, Any]

CHART = ROOT / "charts" / "rightslice"


class ChartValue(NamedTuple):
    """A value of the chart: its path ("image.tag"), its description and its default."""

    path: str
    description: str
    default: Any


def read_chart_values(text: str) -> Iterator[ChartValue]:
    """Yield the values of a values.yaml; the description of each is the comment above it, after "# --"."""
    values = yaml.safe_load(text)
    parents: list[str] = []
    comment: list[str] = []
    for line in text.splitlines():
        if found := re.match(r" *# (?:-- )?(.*)", line):
            comment.append(found[1])
        elif found := re.match(r"( *)(\w+):", line):
            parents[len(found[1]) // 2 :] = [found[2]]
            if comment:
                yield ChartValue(".".join(parents), " ".join(comment), _default(values, parents))
            comment = []


def _default(values: Any, path: list[str]) -> Any:
    for name in path:
        values = values[name]
    return values


def values_page() -> str:
    """Return docs/helm-values.md."""
    rows = [
        f"| `{value.path}` | `{json.dumps(value.default)}` | {value.description} |\n"
        for value in read_chart_values((CHART / "values.yaml").read_text(encoding="utf-8"))
    ]
    return (
        "<!-- Generated from charts/rightslice/values.yaml by `make manifests`. -->\n\n"
        "# Values of the Helm chart\n\n"
        "```\nhelm install rightslice CHART --namespace rightslice-system --create-namespace --set mode=audit\n```\n\n"
        "CHART is `charts/rightslice` in a checkout, or the file `rightslice-chart-VERSION.tgz` of a release. Helm "
        "rejects a value that is not in this list,\nhas another type, or is empty (`image:` with comments below), "
        "unless it is a list or a map of yours, such as `policies`.\n\n"
        "| value | default | meaning |\n|---|---|---|\n" + "".join(rows)
    )


def _named(pattern: str, value: Json) -> Json:
    """Return the schema of a map whose keys match a pattern; of `propertyNames` Helm reports a wrong place."""
    return {"patternProperties": {pattern: value}, "additionalProperties": False}


_LABEL_KEY = TypeAdapter(LabelKey).json_schema()["pattern"]
_STRINGS = _named(_LABEL_KEY, {"type": "string"})
_LABELS = _named(_LABEL_KEY, TypeAdapter(LabelValue).json_schema())
_QUANTITY = {key: TypeAdapter(Amount).json_schema()[key] for key in ("minimum", "pattern")}
_AMOUNTS = {
    "type": "object",
    **_named(
        "^(cpu|memory|ephemeral-storage|hugepages-.+|[^/]+[.][^/]+/[^/]+)$",
        {"type": ["string", "number"], **_QUANTITY},
    ),
}
_OBJECT_NAME = "[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?"
_OPTIONAL_NAME = {"pattern": f"^({_OBJECT_NAME})?$"}
_NAMESPACE = {"pattern": "^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"}
_RESOURCES = {"properties": {"requests": _AMOUNTS, "limits": _AMOUNTS}, "additionalProperties": False}
_TOLERATION = {
    "type": "object",
    "properties": {
        "key": {"type": "string"},
        "operator": {"enum": ["Exists", "Equal", "Lt", "Gt"]},
        "value": {"type": "string"},
        "effect": {"enum": ["NoSchedule", "PreferNoSchedule", "NoExecute"]},
        "tolerationSeconds": {"type": "integer"},
    },
    "additionalProperties": False,
    "allOf": [
        {"if": {"properties": {"operator": {"const": "Exists"}}, "required": ["operator"]},
         "then": {"properties": {"value": {"maxLength": 0}}},
         "else": {"required": ["key"]}},
        {"if": {"required": ["tolerationSeconds"]},
         "then": {"properties": {"effect": {"const": "NoExecute"}}, "required": ["effect"]}},
    ],
}  # fmt: skip
_TERMS = {"type": "array", "items": {"type": "object"}}
_NODE_TERMS = {
    "type": "object",
    "properties": {"nodeSelectorTerms": _TERMS},
    "required": ["nodeSelectorTerms"],
    "additionalProperties": False,
}


def _affinity(required: Json) -> Json:
    """Return the schema of one kind of affinity.

    Args:
        required: The schema of what must hold.
    """
    terms = {
        "requiredDuringSchedulingIgnoredDuringExecution": required,
        "preferredDuringSchedulingIgnoredDuringExecution": _TERMS,
    }
    return {"type": "object", "properties": terms, "additionalProperties": False}


_AFFINITY = {
    "properties": {
        "nodeAffinity": _affinity(_NODE_TERMS),
        "podAffinity": _affinity(_TERMS),
        "podAntiAffinity": _affinity(_TERMS),
    },
    "additionalProperties": False,
}
_COMPONENT: dict[str, Json] = {
    "resources": _RESOURCES,
    "nodeSelector": _LABELS,
    "tolerations": {"items": _TOLERATION},
    "affinity": _AFFINITY,
    "podAnnotations": _STRINGS,
    "podLabels": _LABELS,
    "priorityClassName": _OPTIONAL_NAME,
    "serviceAccountAnnotations": _STRINGS,
}
"""What the values of every component must be, by name."""
_ISSUER = {
    "properties": {
        "name": {"type": "string", "minLength": 1},
        "kind": {"type": "string"},
        "group": {"type": "string"},
    },
    "dependencies": {"kind": ["name"], "group": ["name"]},
    "additionalProperties": False,
}
_SETTINGS = ("drain_seconds", "log_level", "max_connections", "max_in_flight", "prometheus_days",
             "prometheus_selector", "usage_minutes")  # fmt: skip
"""Settings of the webhook that neither the chart sets nor need a file."""
_FILES = {
    "kueue_config": "Configuration",
    "node_groups": "NodeGroups",
    "scheduler_config": "KubeSchedulerConfiguration",
}
"""Settings whose value is a file, and the kind of its object: the server does not start with another."""


def _constraints() -> dict[str, Json]:
    """Return what a value must be, besides the type of its default, by its path."""
    [spec] = [_strict(_spec_schema(crd)) for crd in policy_crds() if crd["spec"]["names"]["kind"] == "GPUPolicy"]
    fields = WebhookSettings.model_json_schema()["properties"]
    settings = {name: _without_null(fields[name]) for name in _SETTINGS}
    files = {name: {"type": "string", "pattern": f"kind[\"']?:\\s*[\"']?{kind}\\b"} for name, kind in _FILES.items()}
    return {
        "mode": {"enum": ["audit", "enforce"]},
        "availability": {"enum": ["standard", "single-node", "high"]},
        "image.pullPolicy": {"enum": ["IfNotPresent", "Always", "Never"]},
        "gpuResources": {
            "maxItems": MAX_NAMES,
            "uniqueItems": True,
            "items": {
                "type": "string",
                "maxLength": MAX_NAME_LENGTH,
                "pattern": RESOURCE_NAME_PATTERN,
                "not": {"pattern": RESERVED_NAME_PATTERN},
            },
        },
        "securityContext": {"enum": ["user", "openshift"]},
        "certManager.issuerRef": _ISSUER,
        "imagePullSecrets": {
            "items": {
                "type": "object",
                "properties": {"name": {"type": "string", "pattern": f"^{_OBJECT_NAME}$"}},
                "required": ["name"],
                "additionalProperties": False,
            }
        },
        "policies": _named(_NAMESPACE["pattern"], spec),
        "webhook.settings": {"properties": settings, "additionalProperties": False},
        "webhook.files": {"properties": files, "additionalProperties": False},
        **{
            f"{component}.{name}": constraint
            for component in ("webhook", "agent", "extender", "scheduler")
            for name, constraint in _COMPONENT.items()
        },
        "prometheus.secretName": _OPTIONAL_NAME,
        "agent.runtimeClassName": _OPTIONAL_NAME,
        "networkPolicy.apiServerCIDRs": {"items": {"type": "string"}, "uniqueItems": True},
        "networkPolicy.apiServerPorts": {
            "minItems": 1,
            "items": {"type": "integer", "minimum": 1, "maximum": 65535},
            "uniqueItems": True,
        },
        "monitoring.serviceMonitor.prometheusNamespace": _NAMESPACE,
        "monitoring.serviceMonitor.labels": _STRINGS,
        "monitoring.alerts.labels": _STRINGS,
        "dashboards.labels": _STRINGS,
    }


def _without_null(field: Json) -> Json:
    """Return the schema of a setting without its title and default; a value that is null is left out by Helm."""
    kept = {key: value for key, value in field.items() if key not in ("title", "default", "anyOf")}
    return kept | next((each for each in field.get("anyOf", ()) if each != {"type": "null"}), {})


def _spec_schema(crd: Json) -> Json:
    schema: Json = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    return schema


def _strict(schema: Json) -> Json:
    """Return a schema of Kubernetes as a JSON schema that rejects unknown fields."""
    kept = {key: value for key, value in schema.items() if key != "description" and not key.startswith("x-kubernetes-")}
    if "properties" in kept:
        kept["properties"] = {name: _strict(field) for name, field in kept["properties"].items()}
        kept["additionalProperties"] = False
    for key in ("items", "additionalProperties"):
        if isinstance(kept.get(key), dict):
            kept[key] = _strict(kept[key])
    return kept


_TYPES = {bool: "boolean", str: "string", list: "array", dict: "object"}


def _empty_group() -> Json:
    return {"type": "object", "properties": {}, "required": [], "additionalProperties": False}


def _add_field(group: Json, name: str, field: Json) -> Json:
    """Add a field to a group, unless it has it; return the field.

    Helm leaves out a value that is null, as an empty one in YAML is: only a list or a map of the user may be left out.
    """
    if name not in group["properties"]:
        group["properties"][name] = field
        if "required" in field or field["type"] not in ("array", "object"):
            group["required"].append(name)
    found: Json = group["properties"][name]
    return found


def values_schema() -> str:
    """Return values.schema.json, with a line for each group of values."""
    constraints = _constraints()
    root = _empty_group()
    for value in read_chart_values((CHART / "values.yaml").read_text(encoding="utf-8")):
        *parents, name = value.path.split(".")
        group = root
        for parent in parents:
            group = _add_field(group, parent, _empty_group())
        field = {"type": _TYPES[type(value.default)], "description": value.description}
        _add_field(group, name, field | constraints.pop(value.path, {}))
    assert not constraints, f"values.yaml lacks {', '.join(constraints)}"
    root["properties"]["global"] = {"type": "object", "description": "Set by Helm if another chart contains this one."}
    root["properties"]["enabled"] = {
        "type": "boolean",
        "description": "For the condition of a chart that contains this.",
    }
    lines = [f"    {json.dumps(name)}: {json.dumps(field)}" for name, field in root["properties"].items()]
    start = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "required": root["required"],
        "additionalProperties": False,
    }
    return f'{json.dumps(start, indent=2)[:-2]},\n  "properties": {{\n' + ",\n".join(lines) + "\n  }\n}\n"
