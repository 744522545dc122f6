"""Names that identify Rightslice in a cluster, and the type of JSON objects, each written once.

The keys of annotations are in `webhook.model.annotations`.
"""

from __future__ import annotations

from typing import Any, Final, Literal

Json = dict[str, Any]
"""A JSON object."""

GROUP = "rightslice.dev"
"""API group, and prefix of every annotation, label and resource that Rightslice defines."""

ApiVersion = Literal["rightslice.dev/v1alpha1"]
API_VERSION: Final[ApiVersion] = "rightslice.dev/v1alpha1"
GROUP_PATH = f"/apis/{API_VERSION}"

APP_NAME = "rightslice"
SYSTEM_NAMESPACE = "rightslice-system"
AGENT_NAMESPACE = "rightslice-agent"
"""The namespace of the node agents. Their pods mount a host path, which Pod Security forbids in the other one."""

EXCLUDED_NAMESPACES = (
    "kube-system",
    "kube-public",
    "kube-node-lease",
    SYSTEM_NAMESPACE,
    AGENT_NAMESPACE,
    "gpu-operator",
    "nvidia-gpu-operator",
    "nvidia-device-plugin",
    "nvidia-dra-driver-gpu",
    "dra-driver-nvidia-gpu",
)
"""Namespaces of components that a cluster and its GPUs need to start, and of Rightslice. The webhooks leave them
out, and so does a policy that does not list its own."""

DEMO = "demo"
"""Name of the example cluster that comes with the program."""

CERTIFICATE_NOT_REQUIRED_YET = "any certificate or none, until a client connects"
"""Start of the state of clients in `/readyz?verbose` before the first one presents a certificate; `doctor` reads it."""
