"""A node whose devices are published on a control plane for some tests, and a class of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tests.builders import make_node
from tests.cluster.client import Json
from tests.cluster.nodes import add_nodes, remove_nodes
from tests.cluster.plane import Plane
from tests.cluster.random_claims import API
from tests.device_builders import NVIDIA, resource_slice

OF_NVIDIA = f"device.driver == '{NVIDIA}'"
"""The selector of a class of all devices of NVIDIA's driver."""


@contextmanager
def published_devices(plane: Plane, name: str, devices: Sequence[Json], class_of_them: Json) -> Iterator[None]:
    """Create a node, its slice of the same name, and a class; delete them afterwards."""
    [node] = add_nodes(plane, [make_node(name, {})])
    created = {
        "resourceslices": resource_slice(name, NVIDIA, node, nodeName=node, devices=list(devices)),
        "deviceclasses": class_of_them,
    }
    for plural, each in created.items():
        plane.api.create(f"{API}/{plural}", each)
    yield
    for plural, each in created.items():
        plane.api.delete(f"{API}/{plural}/{each['metadata']['name']}")
    remove_nodes(plane, [node])
