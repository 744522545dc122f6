"""The one way to walk over the containers of a pod, whatever their kind.

A check that looks at `spec.containers` alone is a hole: init containers (sidecars among them) and ephemeral
containers reach the same devices.
"""

from __future__ import annotations

from webhook.model.field_paths import FieldPath
from webhook.model.pods import Container, PodSpec


def containers_of_every_kind(spec: PodSpec) -> list[tuple[FieldPath, Container]]:
    """Every container with its path from the root of the Pod, in the order main, init, ephemeral."""
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
