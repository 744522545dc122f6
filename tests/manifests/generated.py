"""The files that are generated from code; most are under manifests/."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tests.conftest import ROOT
from tests.manifests.chart_values import values_page, values_schema
from tests.manifests.dashboards import DASHBOARDS, dashboard_json
from tests.manifests.field_descriptions import add_field_descriptions
from tests.release.publisher import example_files
from webhook.manifests.backstop import backstop_policies
from webhook.manifests.scheduler_config import (
    claims_scheduler_config,
    first_scheduler_config,
    second_scheduler_config,
)
from webhook.manifests.webhooks import webhook_configurations
from webhook.policy.crds import gpunode_crd, policy_crds
from webhook.report.serialization import yaml_text

GENERATED: Mapping[str, tuple[str, Callable[[], Sequence[Any]]]] = {
    "crds/crds.yaml": ("webhook/policy/crds.py and docs/policy.md", lambda: add_field_descriptions(policy_crds())),
    "crds/gpunodes.yaml": ("webhook/model/gpu_node.py", lambda: [gpunode_crd()]),
    "admission/webhooks.yaml": ("webhook/manifests/webhooks.py", webhook_configurations),
    "scheduler/first/extenders.yaml": ("webhook/manifests/scheduler_config.py", lambda: [first_scheduler_config()]),
    "scheduler/first/claims.yaml": ("webhook/manifests/scheduler_config.py", lambda: [claims_scheduler_config()]),
    "scheduler/second/config.yaml": ("webhook/manifests/scheduler_config.py", lambda: [second_scheduler_config()]),
    "admission/backstop.yaml": ("webhook/manifests/backstop.py", backstop_policies),
}

BUILT = {"install.yaml": "overlays/audit-only", "install-enforce.yaml": "overlays/enforce"}
"""Files that kustomize builds, and their overlays."""


def text_of(name: str) -> str:
    """Return the content of a generated file."""
    source, objects = GENERATED[name]
    documents = "---\n".join(map(yaml_text, objects()))
    return f"# Generated from {source} by `make manifests`.\n{LONG.sub(_on_lines, documents)}"


LONG = re.compile(r'^( *(?:- )?)(expression: )(".*\\n.*")$', re.MULTILINE)


def _on_lines(found: re.Match[str]) -> str:
    """Format a multi-line expression as a YAML block."""
    start, key, text = found.groups()
    return "\n".join([f"{start}{key}|-", *(f"{' ' * len(start)}  {line}" for line in json.loads(text).split("\n"))])


def guard() -> str:
    """Return the installed policy, a copy of the shipped one."""
    return (ROOT / "policies" / "guard.yaml").read_text(encoding="utf-8")


def files() -> dict[str, str]:
    """Return every generated file by its path below manifests/."""
    return {
        **{name: text_of(name) for name in GENERATED},
        "base/policies/guard.yaml": guard(),
        **{f"dashboards/{name}.json": dashboard_json(name) for name in DASHBOARDS},
        "../charts/rightslice/values.schema.json": values_schema(),
        "../docs/helm-values.md": values_page(),
        **{f"../{name}": text for name, text in example_files().items()},
    }
