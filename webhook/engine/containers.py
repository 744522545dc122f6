"""All containers of a pod, of every kind.

A check of `spec.containers` alone can be bypassed: init containers, sidecars and ephemeral containers reach the same
devices.
"""

from __future__ import annotations

from webhook.model.field_paths import FieldPath
from webhook.model.pods import Container, PodSpec


def containers_of_every_kind(spec: PodSpec) -> list[tuple[FieldPath, Container]]:
    """Return every container with its path from the root of the Pod: main, then init, then ephemeral containers."""
    found: list[tuple[FieldPath, Container]] = [
        (("spec", "containers", i), container) for i, container in enumerate(spec.containers)
    ]
    if spec.init_containers:
        found += [(("spec", "initContainers", i), container) for i, container in enumerate(spec.init_containers)]
    if spec.ephemeral_containers:
        found += [
            (("spec", "ephemeralContainers", i), container) for i, container in enumerate(spec.ephemeral_containers)
        ]
    return found
