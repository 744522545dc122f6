"""Host ports in use by node, as the NodePorts plugin of kube-scheduler decides."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.builders import make_node, make_pod
from webhook.model.assumed_pods import MAX_PENDING_KINDS, AssumedPod, AssumedPods
from webhook.model.filters.node_ports import (
    ALL_INTERFACES,
    EVERY_PORT,
    MAX_POD_PORTS,
    HostPort,
    HostPortIndex,
    find_port_conflicts,
    held_ports,
    index_host_ports,
)
from webhook.model.filters.pod_ties import PendingPod
from webhook.model.fleet import Fleet
from webhook.model.objects import Node
from webhook.model.pods import parse_pod

WEB = HostPort(80, "TCP", ALL_INTERFACES)


class Case(NamedTuple):
    requested: HostPort
    held: HostPort
    in_use: bool


CASES = {
    "the same port of all interfaces is in use": Case(WEB, WEB, True),
    "another number is free": Case(WEB, WEB._replace(number=81), False),
    "another protocol is free": Case(WEB, WEB._replace(protocol="UDP"), False),
    "an address conflicts with all interfaces": Case(WEB._replace(address="10.0.0.1"), WEB, True),
    "all interfaces conflict with an address": Case(WEB, WEB._replace(address="10.0.0.1"), True),
    "two addresses do not conflict": Case(WEB._replace(address="10.0.0.1"), WEB._replace(address="10.0.0.2"), False),
    "an address conflicts with itself": Case(WEB._replace(address="::1"), WEB._replace(address="::1"), True),
    "a pod with too many ports holds every one": Case(WEB, EVERY_PORT, True),
    "a pod that requests too many ports conflicts with any": Case(EVERY_PORT, WEB, True),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_port_is_in_use(case: Case) -> None:
    assert bool(HostPortIndex({case.held: 0b10}).nodes_in_use([case.requested])) is case.in_use
    assert bool(find_port_conflicts([case.requested], [case.held])) is case.in_use


def ports_of(*ports: dict[str, Any], kind: str = "containers", **container: Any) -> tuple[HostPort, ...]:
    """Return the host ports that a pod with one more container holds."""
    return held_ports(parse_pod(make_pod().container("web", kind=kind, ports=list(ports), **container).build()))


def test_ports_of_main_containers_and_sidecars_count_and_those_of_init_containers_do_not() -> None:
    port = {"containerPort": 80, "hostPort": 80}
    assert ports_of(port) == (WEB,)
    assert ports_of(port, kind="initContainers", restartPolicy="Always") == (WEB,)
    assert ports_of(port, kind="initContainers") == ()
    assert ports_of({"containerPort": 80}) == ()
    assert ports_of({"hostPort": 53, "protocol": "UDP", "hostIP": "10.0.0.1"}) == (HostPort(53, "UDP", "10.0.0.1"),)


def test_too_many_ports_of_a_pod_count_as_all() -> None:
    many = [{"hostPort": number} for number in range(1, MAX_POD_PORTS + 2)]
    assert len(ports_of(*many[:-1])) == MAX_POD_PORTS
    assert ports_of(*many) == (EVERY_PORT,)


def test_ports_of_a_pod_without_a_node_are_in_use_on_all_nodes() -> None:
    fleet = Fleet([msgspec.convert(make_node(name), Node) for name in "abc"])
    assert index_host_ports({WEB: ["b", "unknown"]}, fleet).nodes_in_use([WEB]) == 0b010
    assert index_host_ports({WEB: ["b", ""]}, fleet).nodes_in_use([WEB]) == 0b111
    assert index_host_ports({WEB: ["b"]}, fleet).with_changes({WEB: 0}).nodes_in_use([WEB]) == 0


PORTS = st.builds(
    HostPort,
    st.sampled_from([80, 81]),
    st.sampled_from(["TCP", "UDP"]),
    st.sampled_from([ALL_INTERFACES, "10.0.0.1", "10.0.0.2"]),
)


def plain_conflict(requested: set[HostPort], held: set[HostPort]) -> bool:
    """Test as HostPortInfo does: addresses, each with its ports."""
    by_address: dict[str, set[tuple[str, int]]] = {}
    for port in held:
        by_address.setdefault(port.address, set()).add((port.protocol, port.number))
    for port in requested:
        addresses = list(by_address) if port.address == ALL_INTERFACES else [ALL_INTERFACES, port.address]
        if any((port.protocol, port.number) in by_address.get(address, ()) for address in addresses):
            return True
    return False


@given(st.sets(PORTS, max_size=3), st.lists(st.sets(PORTS, max_size=4), max_size=4), st.data())
def test_the_index_equals_the_plain_rule(
    requested: set[HostPort], held: list[set[HostPort]], data: st.DataObject
) -> None:
    masks = {port: sum(1 << i for i, ports in enumerate(held) if port in ports) for port in set().union(*held)}
    before = data.draw(st.dictionaries(PORTS, st.integers(0, 15)))
    index = HostPortIndex(before).with_changes({**dict.fromkeys(before, 0), **masks})
    expected = sum(1 << i for i, ports in enumerate(held) if plain_conflict(requested, ports))
    assert index.nodes_in_use(requested) == expected


def holding(*ports: HostPort) -> PendingPod:
    """Return a pod with host ports, as other pods see it."""
    return PendingPod("team", (), (), ports)


def test_assumed_pods_hold_their_ports_until_they_expire_or_are_observed() -> None:
    pod = AssumedPod("a", "nvidia.com/gpu", 1, 1, 10.0, pending=holding(WEB), times=2)
    other = AssumedPod("b", "nvidia.com/gpu", 1, 1, 20.0, pending=holding(WEB._replace(number=81)))
    assumed = AssumedPods().with_pod(pod).with_pod(pod).with_pod(other)
    assert assumed.count_port_holders([WEB]) == 2
    assert assumed.count_port_holders([WEB, WEB._replace(number=81)]) == 3
    assert assumed.without_expired(10.0).count_port_holders([WEB]) == 0
    assert assumed.without_expired(10.0).count_port_holders([WEB._replace(number=81)]) == 1


def test_one_assumed_pod_too_many_counts_as_holding_every_port() -> None:
    assumed = AssumedPods()
    for number in range(1, MAX_PENDING_KINDS + 2):
        pod = AssumedPod(str(number), "nvidia.com/gpu", 1, 1, 10.0, pending=holding(WEB._replace(number=number)))
        expected = (number >= 80) + (number > MAX_PENDING_KINDS)
        assumed = assumed.with_pod(pod)
        assert assumed.count_port_holders([WEB]) == expected
    assert assumed.count_port_holders([EVERY_PORT]) == MAX_PENDING_KINDS + 1
    every = AssumedPods([AssumedPod("a", "nvidia.com/gpu", 1, 1, 10.0, pending=holding(EVERY_PORT))])
    assert every.count_port_holders([WEB]) == 1
