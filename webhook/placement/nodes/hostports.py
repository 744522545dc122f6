"""Ports of a node's host: a pod takes each for itself.

Source: the scheduler's plugin NodePorts and its HostPortInfo: an address of all interfaces clashes with every other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from webhook.model.effective import is_sidecar
from webhook.model.pods import Container, Pod

ALL_INTERFACES = "0.0.0.0"  # noqa: S104 - nothing is bound here
"""All interfaces of a host."""


class HostPort(NamedTuple):
    """A port of a host, as a pod takes it."""

    number: int
    protocol: str
    address: str


def host_ports(pod: Pod) -> frozenset[HostPort]:
    """The ports of its host that a pod takes while it runs: those of main containers and of sidecars."""
    return frozenset(
        HostPort(port.host_port, port.protocol or "TCP", port.host_ip or ALL_INTERFACES)
        for container in _long_running_containers(pod)
        for port in container.ports
        if port.host_port > 0
    )


def _long_running_containers(pod: Pod) -> Iterator[Container]:
    yield from pod.spec.containers
    yield from (each for each in pod.spec.init_containers if is_sidecar(each))


def find_port_conflicts(asked: Iterable[HostPort], taken: Iterable[HostPort]) -> list[HostPort]:
    """Those that others have taken, ascending."""
    held = list(taken)
    return sorted(one for one in asked if any(_is_port_conflict(one, other) for other in held))


def _is_port_conflict(one: HostPort, other: HostPort) -> bool:
    alike = one[:2] == other[:2]
    return alike and (one.address == other.address or ALL_INTERFACES in (one.address, other.address))
