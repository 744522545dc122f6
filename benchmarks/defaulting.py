"""Defaults that the API server sets when it decodes a spec; for pods alone, the product's own `default_object`.

Source: kubernetes, `pkg/apis/core/v1/defaults.go`.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

Json = dict[str, Any]

POD: Json = {
    "restartPolicy": "Always",
    "terminationGracePeriodSeconds": 30,
    "dnsPolicy": "ClusterFirst",
    "securityContext": {},
    "schedulerName": "default-scheduler",
}
CONTAINER: Json = {
    "terminationMessagePath": "/dev/termination-log",
    "terminationMessagePolicy": "File",
    "imagePullPolicy": "IfNotPresent",
}
PROBE: Json = {"timeoutSeconds": 1, "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3}
PROBES = ("livenessProbe", "readinessProbe", "startupProbe")
FILES = ("configMap", "secret", "projected", "downwardAPI")
"""Volumes of files, which have a mode."""


def spec_defaulted(given: Json) -> Json:
    """Return a copy of a spec with the defaults of pods and workload templates."""
    spec: Json = POD | copy.deepcopy(given)
    for container in containers(spec):
        _fill(container)
    for volume in spec.get("volumes") or []:
        _fill_volume(volume)
    if spec.get("serviceAccountName"):
        spec["serviceAccount"] = spec["serviceAccountName"]
    return spec


def containers(spec: Json) -> Iterator[Json]:
    """Return the containers and init containers of a spec."""
    for kind in ("containers", "initContainers"):
        yield from spec.get(kind) or []


def _fill(container: Json) -> None:
    if container.get("image", "").rpartition("/")[2].partition(":")[2] in ("", "latest"):
        container.setdefault("imagePullPolicy", "Always")
    for key, value in CONTAINER.items():
        container.setdefault(key, value)
    _fill_resources(container.setdefault("resources", {}))
    for port in container.get("ports") or []:
        port.setdefault("protocol", "TCP")
    for variable in container.get("env") or []:
        field = (variable.get("valueFrom") or {}).get("fieldRef")
        if field:
            field.setdefault("apiVersion", "v1")
    for name in PROBES:
        if container.get(name):
            container[name] = _probe(container[name])


def _fill_resources(resources: Json) -> None:
    """Amounts are text."""
    for side in ("limits", "requests"):
        if resources.get(side):
            resources[side] = {name: str(amount) for name, amount in resources[side].items()}


def _probe(probe: Json) -> Json:
    if probe.get("httpGet"):
        probe["httpGet"].setdefault("scheme", "HTTP")
        probe["httpGet"].setdefault("path", "/")
    return PROBE | probe


def _fill_volume(volume: Json) -> None:
    for kind in FILES:
        if isinstance(volume.get(kind), dict):
            volume[kind].setdefault("defaultMode", 420)
    if isinstance(volume.get("hostPath"), dict):
        volume["hostPath"].setdefault("type", "")
