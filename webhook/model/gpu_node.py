"""GPUNode: what the agent of a node says of its GPUs. One object a node, of the same name."""

from __future__ import annotations

from webhook.model.api_struct import ApiStruct
from webhook.model.pods import ObjectMeta

MAX_INDEX = 1023
"""Of a GPU on its node."""

MAX_NVLINKS = 99
"""Between two GPUs: `nvidia-smi topo -m` has two digits for them."""

MAX_LINK_RATE = 1_000_000
"""MB/s of one NVLink and direction; ten times those of today."""

MAX_START = 15
"""Of a MIG instance, in memory slices; cards of today have eight."""

BOUNDS = {
    "index": (0, MAX_INDEX),
    "gpu": (0, MAX_INDEX),
    "start": (0, MAX_START),
    "nvlinks": (0, MAX_NVLINKS),
    "nvlinkRate": (0, MAX_LINK_RATE),
}
"""What numbers can be, by their names in JSON."""


class GpuLink(ApiStruct, frozen=True):
    """What one GPU sees of another one of its node.

    Attributes:
        gpu: Index of the other one.
        nvlinks: NVLinks that are up towards it; through NVSwitch, all that are up.
        bus: PCIe path as `nvidia-smi topo -m` writes it: PIX, PXB, PHB, NODE or SYS; "" where it is not known.
    """

    gpu: int
    nvlinks: int = 0
    bus: str = ""


class MigInstance(ApiStruct, frozen=True):
    """One MIG instance.

    Attributes:
        profile: For example "3g.40gb".
        start: First memory slice.
        size: Memory slices.
        id: Of the GPU instance, on its GPU.
        uuids: Of the devices in it, one for each compute instance.
        pod: Who holds it, "namespace/name"; "" for nobody.
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
        index: Its number on the node, from 0.
        numa: NUMA node; -1 where it is not known.
        healthy: False where NVML or a critical XID says it should not be used.
        mig: True in MIG mode.
        instances: MIG instances.
        links: To the other GPUs.
        pods: Who holds it or shares of it, "namespace/name".
        memory: MiB.
        pci: Bus id, as the kernel writes it.
        alone: True where it works but must not talk to others: a trouble of NVLink or of the fabric.
        ailments: Why it is not healthy or alone, or what to watch, one sentence each.
        ecc_errors: Uncorrected errors of memory since the driver was loaded.
        links_down: NVLinks that should be up and are not.
    """

    index: int
    uuid: str = ""
    numa: int = -1
    healthy: bool = True
    mig: bool = False
    instances: tuple[MigInstance, ...] = ()
    links: tuple[GpuLink, ...] = ()
    pods: tuple[str, ...] = ()
    memory: int = 0
    pci: str = ""
    alone: bool = False
    ailments: tuple[str, ...] = ()
    ecc_errors: int = 0
    links_down: int = 0


class GPUNodeStatus(ApiStruct, frozen=True):
    """What the agent has seen.

    Attributes:
        nvlink_generation: 1 to 5; 0 where there is none.
        nvlink_rate: MB/s of one link and direction where it is not the generation's, as with bridges; else 0.
        nvswitch: True where the links end at switches.
        clique: The multi-node NVLink domain; "" for none.
        driver: Version of the driver, "580.95.05".
        cuda: The newest CUDA that it runs, "13.0".
        message: Why less is known than there should be; "" where all is well.
    """

    product: str = ""
    gpus: tuple[GpuDevice, ...] = ()
    nvlink_generation: int = 0
    nvlink_rate: int = 0
    nvswitch: bool = False
    clique: str = ""
    driver: str = ""
    cuda: str = ""
    message: str = ""


class GPUNode(ApiStruct, frozen=True):
    """A node's GPUs."""

    metadata: ObjectMeta = ObjectMeta()
    status: GPUNodeStatus = GPUNodeStatus()
