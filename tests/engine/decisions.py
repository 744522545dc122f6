"""Policies and a pod that the tests of `decide` share."""

from __future__ import annotations

from tests.builders import PodMaker, make_pod
from tests.example_cluster import mig_node, whole_node

ENV = "mode: enforce\nsecurity: {deny: [visibleDevicesEnv]}"
FOUR = "mode: enforce\nlimits: {perPod: [{resource: nvidia.com/gpu, max: 4}]}"
SIZING = "mode: enforce\nrightSizing: {}"
NODES = (whole_node(), mig_node())


def bad() -> PodMaker:
    """A pod that opens every GPU of its node and requests eight more."""
    return make_pod().gpus(8).env("NVIDIA_VISIBLE_DEVICES", "all")


def exempt(codes: str = "[GPU-S101]", match: str = "{namespaces: [team]}", until: str = "2026-12-01T00:00:00Z") -> str:
    """An exemption to write into a policy."""
    parts = f"name: here, codes: {codes}, match: {match}, reason: INC-1, expirationTime: '{until}'"
    return f"\nexemptions: [{{{parts}}}]"
