"""Two rules of cluster-autoscaler about GPUs, transcribed: a fixture, not the program.

Go's module proxy does not serve cluster-autoscaler, so no test can build it. The rules are those of
kubernetes-sigs/cluster-autoscaler 33c3f97bf (August 2026): `FilterOutNodesWithUnreadyResources` in
`processors/customresources/gpu_processor.go`, and `Calculate` in `simulator/utilization/info.go` with the configuration
that `GetNodeGPUFromCloudProvider` in `utils/gpu/gpu.go` returns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

Amounts = Mapping[str, int]
VENDOR_GPUS = ("nvidia.com/gpu", "microsoft.com/directx", "amd.com/gpu", "gpu.intel.com/xe", "habana.ai/gaudi")


def counts_as_unready(labels: Mapping[str, str], allocatable: Amounts, gpu_label: str) -> bool:
    """Return whether a ready node is taken for one whose GPU drivers are still being installed."""
    has_label = gpu_label in labels
    return has_label and all(name not in allocatable or allocatable[name] == 0 for name in VENDOR_GPUS)


def utilization(labels: Mapping[str, str], allocatable: Amounts, pods: Sequence[Amounts], gpu_label: str) -> float:
    """Return the utilization of a node by which it is or is not removed."""
    if gpu_label not in labels:
        return max(_utilization_of(name, allocatable, pods) for name in ("cpu", "memory"))
    name = next((name for name in VENDOR_GPUS if name in allocatable), "nvidia.com/gpu")
    if allocatable.get(name, 0) == 0:
        return 0.0  # "This will guarantee we can still scale down a node with unready GPU."
    return _utilization_of(name, allocatable, pods)


def _utilization_of(name: str, allocatable: Amounts, pods: Sequence[Amounts]) -> float:
    return sum(pod.get(name, 0) for pod in pods) / allocatable[name]
