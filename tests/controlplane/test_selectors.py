"""Selectors of devices are compiled, estimated and evaluated as by the API server and the scheduler."""

from __future__ import annotations

import json
import os
import subprocess
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import msgspec

from tests.controlplane.selector_texts import random_device, selector_texts
from webhook.model.cel.cel_errors import CelSyntaxError, UnmodeledExpressionError
from webhook.model.cel.checker import check_expression
from webhook.model.cel.cost_estimate import estimate_cost
from webhook.model.cel.parser import parse_expression
from webhook.model.dra.device_selectors import (
    SelectorCompileError,
    SelectorRuntimeError,
    compile_device_selector,
)
from webhook.model.dra.resource_slices import Device
from webhook.model.dra.selector_cache import select_device

SAMPLES = max(2000, int(os.environ.get("RIGHTSLICE_FUZZ", "0")) // 10)
SEED = os.environ.get("RIGHTSLICE_FUZZ_SEED", "selectors")
DEVICES = 6
FUNCTIONS = Path(__file__).parent / "selectors" / "functions.txt"
"""One selector per line for each function, operator and literal of the environment."""

REJECTED, ERROR, UNMODELED = "rejected", "error", "unmodeled"


_NVIDIA, _AMD = "device.attributes['gpu.nvidia.com']", 'device.attributes["gpu.amd.com"]'
_MEMORY = "device.capacity['gpu.nvidia.com'].memory"
COLLECTED = (
    "device.driver == 'gpu.nvidia.com'",
    f"{_NVIDIA}.type == 'gpu'",
    f"{_NVIDIA}.type == 'mig'",
    f"device.driver == 'gpu.nvidia.com' && {_NVIDIA}.type == 'gpu'",
    f"device.driver == 'gpu.nvidia.com' && {_NVIDIA}.type == 'gpu' && {_NVIDIA}.productName == 'NVIDIA L4'",
    f"{_NVIDIA}.profile == '4g.40gb' || {_NVIDIA}.profile == '3g.40gb'",
    f"{_NVIDIA}.profile in ['1g.10gb', '1g.20gb']",
    f"{_NVIDIA}.productName.startsWith('NVIDIA H100') && {_MEMORY}.compareTo(quantity('79Gi')) >= 0",
    f"{_NVIDIA}.productName.lowerAscii().matches('^.*rtx 3090 ti.*$')",
    f"{_NVIDIA}.productName.lowerAscii().contains('h100')",
    f"{_NVIDIA}.architecture == 'Hopper'",
    f"{_NVIDIA}.memoryGiB >= 20",
    f"{_NVIDIA}.uuid == 'GPU-6f1b' || {_NVIDIA}.uuid == 'GPU-7c2d'",
    f"{_NVIDIA}.index < 4",
    f"{_NVIDIA}.cudaComputeCapability.isGreaterThan(semver('8.9.0'))",
    f"{_NVIDIA}.driverVersion.compareTo(semver('570.0.0')) >= 0",
    f"{_MEMORY}.compareTo(quantity('10Gi')) >= 0",
    f"{_MEMORY}.compareTo(quantity('9500Mi')) >= 0",
    f"{_MEMORY}.compareTo(quantity('23028Mi')) <= 0",
    f"{_MEMORY}.isGreaterThan(quantity('40Gi')) && {_MEMORY}.isLessThan(quantity('80Gi'))",
    f"'driverVersion' in {_NVIDIA} && {_NVIDIA}.driverVersion.major() >= 570",
    f"has({_NVIDIA}.profile) ? {_NVIDIA}.profile == '1g.10gb' : true",
    f"cel.bind(gpu, {_NVIDIA}, gpu.type == 'gpu' && gpu.brand == 'Nvidia')",
    "device.attributes['resource.kubernetes.io'].pcieRoot == 'pci0000:80'",
    f'{_AMD}.type == "amdgpu"',
    f'{_AMD}.type == "amdgpu-partition" && device.attributes["resource.kubernetes.io"].pciBusID == "0000:05:00.0"',
    f'{_AMD}.productName == "AMD_Instinct_MI300X_OAM"',
    f"{_AMD}.numaNode == 0",
    'device.capacity["gpu.amd.com"].memory.isGreaterThan(quantity("60Gi"))',
    'device.attributes["dra.net"].rdma == true',
)


class SelectorAnswer(NamedTuple):
    """The estimated cost, if there is one, and "rejected" or a result for each device: "true", "false" or "error"."""

    estimate: int
    results: tuple[str, ...]


def go_answers(program: Path, texts: Sequence[str], devices: Sequence[dict[str, Any]]) -> list[SelectorAnswer]:
    """Return the answers of the real compiler."""
    lines = "".join(json.dumps({"expression": text, "devices": devices}) + "\n" for text in texts)
    done = subprocess.run([program], input=lines, capture_output=True, text=True, check=True, timeout=1200)
    return [_read_answer(json.loads(line)) for line in done.stdout.splitlines()]


def _read_answer(found: dict[str, Any]) -> SelectorAnswer:
    results = (REJECTED,) if found["error"] else tuple(result.partition(":")[0] for result in found["results"])
    return SelectorAnswer(found["estimate"], results)


def our_answer(text: str, devices: Sequence[dict[str, Any]]) -> SelectorAnswer:
    """Return our answer."""
    return SelectorAnswer(our_estimate(text), our_results(text, devices))


def our_results(text: str, devices: Sequence[dict[str, Any]]) -> tuple[str, ...]:
    """Return "rejected" or "unmodeled", or our result for each device."""
    try:
        compile_device_selector(text)
        return tuple(_result(text, one) for one in devices)
    except SelectorCompileError:
        return (REJECTED,)
    except UnmodeledExpressionError:
        return (UNMODELED,)


def _result(text: str, published: dict[str, Any]) -> str:
    try:
        return str(select_device(text, published["driver"], msgspec.convert(published["device"], Device))).lower()
    except SelectorRuntimeError:
        return ERROR


def our_estimate(text: str) -> int:
    """Return the cost that we estimate; 0 for a text that does not compile."""
    try:
        tree = parse_expression(text)
        check_expression(tree)
        return estimate_cost(tree)
    except (CelSyntaxError, UnmodeledExpressionError):
        return 0


def differences(
    program: Path, texts: Sequence[str], devices: Sequence[dict[str, Any]]
) -> tuple[list[str], Counter[str]]:
    """Return what differs between ours and the real answers, and how often each answer was given."""
    found: list[str] = []
    counts: Counter[str] = Counter()
    for text, theirs in zip(texts, go_answers(program, texts, devices), strict=True):
        ours = our_answer(text, devices)
        counts.update(ours.results)
        estimate_differs = theirs.estimate and ours.estimate and theirs.estimate != ours.estimate
        if estimate_differs or (ours.results != (UNMODELED,) and ours.results != theirs.results):
            found.append(f"{text}\n  ours   {ours}\n  theirs {theirs}")
    return found, counts


def test_random_selectors_select_what_they_select_in_the_scheduler(selector_program: Path) -> None:
    """Compile verdict, estimated cost, and result on devices with missing, mistyped and odd attributes."""
    random = Random(SEED)
    texts = list(selector_texts(random, SAMPLES))
    found, counts = differences(selector_program, texts, [random_device(random) for _ in range(DEVICES)])
    assert not found, "\n".join([f"seed {SEED}: {len(found)} of {len(texts)}", *found[:5]])
    assert counts[UNMODELED] * 50 <= len(texts), counts
    for answer in (REJECTED, ERROR, "true", "false"):
        assert counts[answer] * 20 >= len(texts), counts


def test_each_function_does_what_it_does_in_the_scheduler(selector_program: Path) -> None:
    random = Random(SEED)
    texts = FUNCTIONS.read_text().splitlines()
    found, _ = differences(selector_program, texts, [random_device(random) for _ in range(DEVICES)])
    assert not found, "\n".join(found[:5])


def test_collected_selectors_select_what_they_select_in_the_scheduler(selector_program: Path) -> None:
    """Compile selectors as in the charts and documents of NVIDIA's and AMD's drivers and of their users."""
    random = Random(SEED)
    found, counts = differences(selector_program, COLLECTED, [random_device(random) for _ in range(20)])
    assert not found, "\n".join(found[:5])
    assert not counts[REJECTED]
    assert not counts[UNMODELED]
