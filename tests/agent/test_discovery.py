"""GPU discovery through the library's functions, with and without failures."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agent.library import SWITCH, Card, InstanceState, Library, install_library
from tests.agent.recorded import bridged, cards, machine, numa_of, pci
from tests.placement.machines import reference_topologies, topologies_by_key
from webhook.agent.discovery import LINKS_VALID_SECONDS, SLOW_LINKS_VALID_SECONDS, GpuDiscovery
from webhook.agent.nvml import DriverReplacedError
from webhook.model.gpu_node import GPUNode, GPUNodeStatus
from webhook.placement.devices import devices_from_report


class Clock:
    """A clock that a test advances."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def library() -> Iterator[Library]:
    with install_library(bridged((0, 1), (2, 3))) as installed:
        yield installed


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def discovery(library: Library, clock: Clock, tmp_path: Path) -> GpuDiscovery:
    """Return the discovery of a machine of the scripted library."""
    return GpuDiscovery(clock, numa_of(tmp_path, [0, 0, 1, 1]))


KEYS = [
    "dgx1-p100", "dgx1-v100", "dgx2-v100", "a100-pcie-4-bridged", "hgx-a100-4", "dgx-h100-8", "gh200-quad",
    "a6000-4-bridged", "rtx8000-4", "l40s-4", "cloud-pcie-4-node", "pcie-8-sys", "geforce-2-phb",
]  # fmt: skip
"""Machines that the reference must contain; all of its machines are tested."""


def test_recorded_machines_are_discovered(shared: Path, tmp_path: Path) -> None:
    entries = {entry["key"]: entry for entry in reference_topologies(shared)["machines"]}
    assert set(KEYS) <= set(entries)
    for key, entry in entries.items():
        with install_library(machine(entry)):
            status = GpuDiscovery(Clock(), numa_of(tmp_path / key, entry["numa"])).discover()
        devices = devices_from_report(GPUNode(status=status))
        wanted = topologies_by_key(shared)[key]

        assert devices is not None, key
        assert devices.topology.nvlinks == wanted.nvlinks, key
        assert devices.topology.numa_nodes == wanted.numa_nodes, key
        assert devices.topology.nvswitch == bool(entry["nvswitch"]), key
        assert [path for row in devices.topology.pcie_paths for path in row if path] == [
            path for row in wanted.pcie_paths for path in row if path
        ], key


def test_status_of_a_node(discovery: GpuDiscovery) -> None:
    status = discovery.discover()

    assert status.product == "NVIDIA-A100-PCIE-80GB"
    assert (status.driver_version, status.cuda_version, status.message) == ("580.95.05", "13.0", "")
    assert (status.nvlink_generation, status.nvlink_bandwidth, status.nvswitch) == (3, 0, False)
    first = status.gpus[0]
    assert (first.uuid, first.pci_bus_id, first.memory_mib, first.numa_node) == (f"GPU-{pci(0)}", pci(0), 81920, 0)
    assert first.healthy
    assert not first.conditions


def test_slow_nvlink_bridges_are_reported(discovery: GpuDiscovery, library: Library) -> None:
    for card in library.cards:
        card.speed = 14_062

    assert discovery.discover().nvlink_bandwidth == 14_062


def test_inactive_link_counts_on_its_side(discovery: GpuDiscovery, library: Library) -> None:
    library.cards[0].links[3] = (False, pci(1))

    status = discovery.discover()

    assert status.gpus[0].nvlinks_down == 1
    assert [link.nvlinks for link in status.gpus[0].links] == [11, 0, 0]
    assert [link.nvlinks for link in status.gpus[1].links] == [12, 0, 0]


def test_link_to_a_cpu_connects_no_gpus(discovery: GpuDiscovery, library: Library) -> None:
    library.cards[0].links = [(True, "cpu")] * 3

    assert [link.nvlinks for link in discovery.discover().gpus[0].links] == [0, 0, 0]


def test_links_are_read_again_after_a_minute(discovery: GpuDiscovery, library: Library, clock: Clock) -> None:
    discovery.discover()
    before = library.calls["nvmlDeviceGetNvLinkState"]
    clock.now = LINKS_VALID_SECONDS - 1
    discovery.discover()
    assert library.calls["nvmlDeviceGetNvLinkState"] == before

    library.cards[0].links[0] = (False, pci(1))
    clock.now = LINKS_VALID_SECONDS + 1
    assert discovery.discover().gpus[0].nvlinks_down == 1


def test_pcie_paths_are_read_once(discovery: GpuDiscovery, library: Library, clock: Clock) -> None:
    discovery.discover()
    clock.now = 10 * LINKS_VALID_SECONDS
    discovery.discover()

    assert library.calls["nvmlDeviceGetTopologyCommonAncestor"] == 6


def test_slow_links_are_read_less_often(discovery: GpuDiscovery, library: Library, clock: Clock) -> None:
    def delay(name: str) -> None:
        clock.now += 0.6 if name == "nvmlDeviceGetTopologyCommonAncestor" else 0.0

    library.before = delay
    discovery.discover()
    before = library.calls["nvmlDeviceGetNvLinkState"]
    clock.now += SLOW_LINKS_VALID_SECONDS - 1
    discovery.discover()

    assert library.calls["nvmlDeviceGetNvLinkState"] == before


def test_lost_gpu_is_reported_with_its_index(discovery: GpuDiscovery, library: Library) -> None:
    discovery.discover()
    library.cards[1].xids.append(79)
    library.cards[1].lost = True

    status = discovery.discover()

    assert [gpu.index for gpu in status.gpus] == [0, 1, 2, 3]
    assert [gpu.healthy for gpu in status.gpus] == [True, False, True, True]
    assert status.gpus[1].conditions[0] == "XID 79: fallen off the bus"
    assert [link.nvlinks for link in status.gpus[0].links] == [0, 0]
    assert [link.gpu for link in status.gpus[2].links] == [0, 3]


def test_gpu_missing_from_the_count_keeps_its_index(discovery: GpuDiscovery, library: Library) -> None:
    discovery.discover()
    del library.cards[1]

    status = discovery.discover()

    assert [(gpu.index, gpu.pci_bus_id, gpu.healthy) for gpu in status.gpus] == [
        (0, pci(0), True), (1, pci(1), False), (2, pci(2), True), (3, pci(3), True),
    ]  # fmt: skip


@pytest.mark.parametrize("trouble", ["lost", "silent"])
@pytest.mark.parametrize("place", [0, 1, 3])
def test_gpu_that_fails_at_first_has_its_own_index(
    trouble: str, place: int, discovery: GpuDiscovery, library: Library
) -> None:
    setattr(library.cards[place], trouble, True)
    first = discovery.discover()
    setattr(library.cards[place], trouble, False)
    after = discovery.discover()

    assert [gpu.index for gpu in first.gpus if not gpu.healthy] == [place]
    assert first.gpus[place].conditions == ("lost: fallen off the bus, or waiting for a reset",)
    assert first.message.startswith("1 of 4 GPUs are lost")
    assert devices_from_report(GPUNode(status=first)) is not None
    assert [(gpu.index, gpu.pci_bus_id, gpu.healthy) for gpu in after.gpus] == [(n, pci(n), True) for n in range(4)]
    assert [link.nvlinks for link in after.gpus[0].links] == [12, 0, 0]
    assert after.message == ""


def test_gpu_that_never_answered_stays_reported(discovery: GpuDiscovery, library: Library) -> None:
    library.cards[1].lost = True
    discovery.discover()
    gone = library.cards.pop(1)
    without = discovery.discover()
    gone.lost = False
    library.cards.insert(1, gone)

    assert [(gpu.index, gpu.healthy) for gpu in without.gpus] == [(0, True), (1, False), (2, True), (3, True)]
    assert [(gpu.index, gpu.pci_bus_id) for gpu in discovery.discover().gpus] == [(n, pci(n)) for n in range(4)]


def test_new_gpu_does_not_take_the_index_of_a_lost_one(discovery: GpuDiscovery, library: Library) -> None:
    library.cards[1].lost = True
    discovery.discover()
    library.cards.insert(0, Card("0000:01:00.0"))
    discovery.discover()
    library.cards[2].lost = False

    assert {gpu.pci_bus_id: gpu.index for gpu in discovery.discover().gpus} == {
        pci(0): 0, pci(1): 1, pci(2): 2, pci(3): 3, "0000:01:00.0": 4,
    }  # fmt: skip


def test_unloaded_driver_removes_gpus_that_never_answered(discovery: GpuDiscovery, library: Library) -> None:
    library.cards[1].lost = True
    discovery.discover()
    library.loaded = library.initialized = False

    assert [(gpu.index, gpu.healthy) for gpu in discovery.discover().gpus] == [(n, False) for n in range(4)]


def test_reloaded_driver(discovery: GpuDiscovery, library: Library) -> None:
    whole = discovery.discover()
    library.loaded = library.initialized = False
    away = discovery.discover()
    library.loaded = True

    assert [gpu.healthy for gpu in away.gpus] == [False] * 4
    assert away.message.startswith("no NVIDIA driver")
    assert discovery.discover() == whole


def test_replaced_driver_needs_a_new_process(discovery: GpuDiscovery, library: Library) -> None:
    discovery.discover()
    library.replaced = True

    with pytest.raises(DriverReplacedError):
        discovery.discover()


def test_node_without_a_driver_reports_a_message() -> None:
    with install_library(Library(loaded=False)):
        assert GpuDiscovery(Clock()).discover() == GPUNodeStatus(message="no NVIDIA driver: Driver Not Loaded")


def test_mig_instances_have_their_placement_after_repartitioning(discovery: GpuDiscovery, library: Library) -> None:
    card = library.cards[2]
    card.mig, card.instances = True, [InstanceState(1, 2, 4, 4), InstanceState(7, 0, 0, 1)]
    one = discovery.discover().gpus[2]
    card.instances = [InstanceState(2, 1, 0, 2)]
    other = discovery.discover().gpus[2]

    assert one.mig
    assert one.links == () or all(link.nvlinks == 0 for link in one.links)
    assert [(instance.profile, instance.start, instance.size, instance.uuids) for instance in one.instances] == [
        ("1g.10gb", 0, 1, ("MIG-7",)), ("3g.40gb", 4, 4, ("MIG-1",)),
    ]  # fmt: skip
    assert [(instance.profile, instance.start) for instance in other.instances] == [("2g.20gb", 0)]


def test_gpu_with_unreadable_mig_instances_is_unhealthy(discovery: GpuDiscovery, library: Library) -> None:
    library.cards[0].mig, library.cards[0].root = True, False

    gpu = discovery.discover().gpus[0]

    assert not gpu.healthy
    assert "Insufficient Permissions" in gpu.conditions[0]


@pytest.mark.parametrize(
    ("case", "change", "healthy", "degraded"),
    [
        ("an error of the application", {"xids": [13, 31, 43]}, True, False),
        ("a contained error", {"xids": [94]}, True, False),
        ("a double-bit error", {"xids": [48]}, False, False),
        ("a timeout", {"xids": [109]}, False, False),
        ("an NVLink error", {"xids": [74]}, True, True),
        ("an NVLink error of Blackwell", {"xids": [145]}, True, True),
        ("a failed row remapping", {"remap_failed": True}, False, False),
        ("recovery action: reset", {"action": 1}, False, False),
        ("recovery action: drain peers", {"action": 3}, True, True),
        ("a driver without recovery actions", {"action": None}, True, False),
        ("an unfinished fabric", {"fabric": (2, bytes(16), 0)}, True, True),
        ("a finished fabric", {"fabric": (3, bytes(16), 0)}, True, False),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_health_by_error(
    case: str, change: dict[str, object], healthy: bool, degraded: bool, discovery: GpuDiscovery, library: Library
) -> None:
    discovery.discover()
    for name, value in change.items():
        setattr(library.cards[0], name, value)

    gpu, *others = discovery.discover().gpus

    assert (gpu.healthy, gpu.nvlink_degraded) == (healthy, degraded), case
    assert all(other.healthy and not other.nvlink_degraded for other in others)
    assert bool(gpu.conditions) or (healthy and not degraded)


def test_xid_is_kept_until_the_driver_is_reloaded(discovery: GpuDiscovery, library: Library) -> None:
    discovery.discover()
    library.cards[0].xids.append(95)
    assert not discovery.discover().gpus[0].healthy
    assert not discovery.discover().gpus[0].healthy

    library.loaded = library.initialized = False
    discovery.discover()
    library.loaded = True

    assert discovery.discover().gpus[0].healthy


def test_corrected_memory_errors_change_nothing(discovery: GpuDiscovery, library: Library) -> None:
    library.cards[0].ecc = 2

    assert [gpu.ecc_errors for gpu in discovery.discover().gpus] == [2, 0, 0, 0]


def test_clique_needs_a_ready_fabric_on_every_gpu(tmp_path: Path) -> None:
    uuid = bytes(range(16))
    board = cards(4, fabric=(3, uuid, 7), links=[(True, SWITCH)] * 18, version=7, speed=53_125)
    with install_library(Library(board)):
        whole = GpuDiscovery(Clock(), tmp_path).discover()
        board[2].fabric = (3, uuid, 8)
        split = GpuDiscovery(Clock(), tmp_path).discover()

    assert whole.clique == "00010203-0405-0607-0809-0a0b0c0d0e0f.7"
    assert (whole.nvlink_generation, whole.nvswitch) == (5, True)
    assert split.clique == ""


def test_later_gpu_gets_its_own_index(discovery: GpuDiscovery, library: Library) -> None:
    discovery.discover()
    library.cards.insert(0, Card("0000:01:00.0"))

    assert {gpu.pci_bus_id: gpu.index for gpu in discovery.discover().gpus} == {
        pci(0): 0, pci(1): 1, pci(2): 2, pci(3): 3, "0000:01:00.0": 4,
    }  # fmt: skip
