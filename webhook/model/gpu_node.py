"""GPUNode: the GPUs of one node as its agent reports them. One object per node, with the node's name."""

from __future__ import annotations

from webhook.model.api_struct import ApiStruct
from webhook.model.pods import ObjectMeta

MAX_INDEX = 1023
"""Highest index of a GPU on its node."""

MAX_NVLINKS = 99
"""Between two GPUs: `nvidia-smi topo -m` has two digits for them."""

MAX_LINK_BANDWIDTH = 1_000_000
"""MB/s of one NVLink and direction; ten times today's."""

MAX_START = 15
"""First memory slice of a MIG instance; today's cards have eight slices."""

BOUNDS = {
    "index": (0, MAX_INDEX),
    "gpu": (0, MAX_INDEX),
    "start": (0, MAX_START),
    "nvlinks": (0, MAX_NVLINKS),
    "nvlinkBandwidth": (0, MAX_LINK_BANDWIDTH),
}
"""Allowed range of numbers, by JSON field name."""


class GpuLink(ApiStruct, frozen=True):
    """The connection from one GPU to another GPU of its node.

    Attributes:
        gpu: Index of the other GPU.
        nvlinks: Active NVLinks to it; through NVSwitch, all active links.
        pcie_path: PCIe path as `nvidia-smi topo -m` writes it: PIX, PXB, PHB, NODE or SYS; "" if unknown.
    """

    gpu: int
    nvlinks: int = 0
    pcie_path: str = ""


class MigInstance(ApiStruct, frozen=True):
    """One MIG instance.

    Attributes:
        profile: Profile name, for example "3g.40gb".
        start: First memory slice.
        size: Number of memory slices.
        id: GPU instance ID on its GPU.
        uuids: Devices in it, one for each compute instance.
        pod: The pod that holds it, "namespace/name"; "" if it is idle.
    """

    profile: str
    start: int
    pod: str = ""
    size: int = 0
    id: int = -1
    uuids: tuple[str, ...] = ()


class GpuDevice(ApiStruct, frozen=True):
    """One GPU.

    Attributes:
        index: Index on the node, from 0.
        uuid: The GPU's UUID.
        numa_node: NUMA node; -1 if unknown.
        healthy: False if NVML or a critical XID says that it should not be used.
        mig: True in MIG mode.
        instances: MIG instances.
        links: Connections to the other GPUs.
        pods: Pods that hold it or a share of it, "namespace/name".
        memory_mib: Memory in MiB.
        pci_bus_id: PCI bus ID as the kernel writes it.
        nvlink_degraded: True if the GPU works but should not communicate with others (NVLink or fabric error).
        conditions: Reasons for `healthy: false` or `nvlinkDegraded: true`, and warnings, one sentence each.
        ecc_errors: Uncorrected memory errors since the driver was loaded.
        nvlinks_down: Inactive NVLinks that should be active.
    """

    index: int
    uuid: str = ""
    numa_node: int = -1
    healthy: bool = True
    mig: bool = False
    instances: tuple[MigInstance, ...] = ()
    links: tuple[GpuLink, ...] = ()
    pods: tuple[str, ...] = ()
    memory_mib: int = 0
    pci_bus_id: str = ""
    nvlink_degraded: bool = False
    conditions: tuple[str, ...] = ()
    ecc_errors: int = 0
    nvlinks_down: int = 0


class GPUNodeStatus(ApiStruct, frozen=True):
    """GPUs and driver of a node, as observed by its agent.

    Attributes:
        product: Product name of the GPUs, as in the label nvidia.com/gpu.product.
        gpus: The GPUs of the node.
        nvlink_generation: NVLink generation, 1 to 5; 0 without NVLink.
        nvlink_bandwidth: MB/s of one link and direction if it differs from the generation's (bridges); otherwise 0.
        nvswitch: True if the links end at NVSwitches.
        clique: Multi-node NVLink domain; "" for none.
        driver_version: Driver version, for example "580.95.05".
        cuda_version: Newest CUDA version that the driver supports, for example "13.0".
        message: Why the report is incomplete; "" if it is complete.
    """

    product: str = ""
    gpus: tuple[GpuDevice, ...] = ()
    nvlink_generation: int = 0
    nvlink_bandwidth: int = 0
    nvswitch: bool = False
    clique: str = ""
    driver_version: str = ""
    cuda_version: str = ""
    message: str = ""


class GPUNode(ApiStruct, frozen=True):
    """The GPUs of one node."""

    metadata: ObjectMeta = ObjectMeta()
    status: GPUNodeStatus = GPUNodeStatus()
