"""Policies and a pod shared by the tests of `decide`."""

from __future__ import annotations

from tests.builders import PodMaker, make_pod
from tests.example_cluster import mig_node, whole_node

ENV = "mode: enforce\nsecurity: {deny: [visibleDevicesEnv]}"
FOUR = "mode: enforce\nlimits: {perPod: [{resource: nvidia.com/gpu, max: 4}]}"
SIZING = "mode: enforce\nrightSizing: {}"
NODES = (whole_node(), mig_node())


def bad() -> PodMaker:
    """Return a pod that requests eight GPUs and, by an environment variable, sees every GPU of its node."""
    return make_pod().gpus(8).env("NVIDIA_VISIBLE_DEVICES", "all")


def exempt(codes: str = "[GPU-S101]", match: str = "{namespaces: [team]}", until: str = "2026-12-01T00:00:00Z") -> str:
    """Return an exemption as YAML for a policy."""
    parts = f"name: here, codes: {codes}, match: {match}, reason: INC-1, expirationTime: '{until}'"
    return f"\nexemptions: [{{{parts}}}]"
