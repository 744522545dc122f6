"""Demand: declared needs, observed usage, and the order of evidence."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.builders import PodMaker, make_pod
from tests.usage_builders import observed_usage, workload_usage
from webhook.engine.demand import DemandInput, need_by_evidence
from webhook.engine.gpu_requests import DeclaredNeed, declared_need_of, gpu_requests_of_pod
from webhook.model.decisions import GpuNeed, KeepReason, KeepRequest
from webhook.model.enums import EvidenceSource, FullCapacityAction, GpuForm, IsolationLevel, PolicyMode
from webhook.model.pods import parse_pod
from webhook.model.usage import ObservedUsage, UsageView
from webhook.model.workloads import workload_of
from webhook.policy.policy_set import RightSizingRules

ALL = (EvidenceSource.DECLARED, EvidenceSource.OBSERVED, EvidenceSource.DEFAULT)


def declared(**notes: str) -> DeclaredNeed:
    """Return the need that a pod with these annotations declares."""
    pod = make_pod()
    for key, value in notes.items():
        pod.annotate(f"rightslice.dev/gpu-{key}", value)
    return declared_need_of(parse_pod(pod.build()))


MEMORY = {
    "binary": ("8Gi", 8192),
    "decimal, rounded up": ("8G", 7630),
    "one MiB": ("1Mi", 1),
    "bytes, because the unit is missing": ("8", None),
    "a plausible number of bytes": ("8589934592", 8192),
    "more than any card has": ("17Ti", None),
    "not a number": ("eight", None),
    "nothing": ("0", None),
    "negative": ("-8Gi", None),
    "a unit that users often write": ("8GB", None),
}


@pytest.mark.parametrize(("text", "want"), MEMORY.values(), ids=MEMORY)
def test_declared_memory(text: str, want: int | None) -> None:
    found = declared(memory=text)
    assert found.memory_mib == want
    assert [fault.path[-1] for fault in found.errors] == ([] if want else ["rightslice.dev/gpu-memory"])


def test_bytes_without_a_unit_are_reported_with_the_minimum() -> None:
    assert [fault.message for fault in declared(memory="8").errors] == ["must be 1Mi to 16Ti of GPU memory (found '8')"]


COMPUTE = {
    "a percentage": ("20%", 200),
    "a fraction of a percent": ("12.5%", 125),
    "a very small fraction, rounded up": ("12.51%", 126),
    "with a space": ("20 %", 200),
    "a whole card": ("100%", 1000),
    "more than a card": ("101%", None),
    "nothing": ("0%", None),
    "no sign": ("20", None),
    "a sign alone": ("%", None),
    "words": ("half%", None),
    "other digits": ("٢٠%", None),
}


@pytest.mark.parametrize(("text", "want"), COMPUTE.values(), ids=COMPUTE)
def test_declared_compute(text: str, want: int | None) -> None:
    found = declared(compute=text)
    assert found.compute_milli == want
    assert [fault.fix for fault in found.errors] == ([] if want else ['Write rightslice.dev/gpu-compute: "20%".'])


def test_both_errors_of_a_declaration_are_reported_briefly() -> None:
    faults = declared(memory="x" * 500, compute="y").errors
    assert len(faults) == 2
    assert all(len(fault.message) < 120 for fault in faults)


def rule(**fields: Any) -> RightSizingRules:
    """Return a rule that accepts every kind of evidence, with a margin of 15 %."""
    plain: dict[str, Any] = {
        "mode": PolicyMode.ENFORCE,
        "isolation": IsolationLevel.HARDWARE,
        "forms": (GpuForm.MIG,),
        "evidence": ALL,
        "default_memory_mib": None,
        "default_compute_milli": None,
        "margin_percent": 15,
        "risk_ppm": 5000,
        "min_saving_percent": 20,
        "when_full": FullCapacityAction.KEEP,
    }
    return RightSizingRules(**(plain | fields))


LADDER = (4864, 9856, 19_968)
"""MiB that some slice has."""


def need(pod: PodMaker, usage: UsageView | None = None, **fields: Any) -> GpuNeed | KeepRequest:
    """Return the need of a pod."""
    read = parse_pod(pod.build())
    requests, declared = gpu_requests_of_pod(read).requests, declared_need_of(read)
    demand = DemandInput(requests, "team", workload_of(read), rule(**fields), lambda: LADDER, declared)
    return need_by_evidence(demand, usage or UsageView())


def used(**containers: ObservedUsage) -> UsageView:
    """Return the observed usage of the containers of the pod "pod"."""
    return workload_usage("Pod/pod", **containers)


def demand_message(size: str, risk: str = "0.0007%", peak: str = "") -> str:
    """Return the description of a need from observed usage, far above the peak if there is one."""
    evidence = "the peaks of 500 windows of 1 h of its workload"
    gap = f"; its own peak is {peak}, but its recent usage is too little to exclude a much higher one" if peak else ""
    return f"{size} from observed usage with {risk} risk per hour, based on {evidence}{gap}"


def by_use(memory: int, compute: int | None, size: str, **fields: str) -> GpuNeed:
    """Return a need from observed usage."""
    blind = "" if compute else "; its compute need is unknown"
    return GpuNeed(memory, compute, EvidenceSource.OBSERVED, demand_message(size, **fields) + blind)


ONE, TWO = make_pod().gpus(1), make_pod().gpus(1).container("side", resources={"limits": {"nvidia.com/gpu": "1"}})
BIG, SMALL = observed_usage(9000, compute_milli=300), observed_usage(1000)
RISKY = observed_usage(9000, sizes_mib=(*[4000] * 11, *[9000] * 3, *[15_000] * 16))
"""Half a percent an hour above 9000 MiB, one percent above 4000, and next to nothing above 15,000."""

NEEDS = {
    "no evidence at all": (need(ONE), KeepRequest(KeepReason.NO_EVIDENCE)),
    "declared, as written and without a margin": (
        need(make_pod().gpus(1).needs("8Gi", "20%"), used(main=BIG)),
        GpuNeed(8192, 200, EvidenceSource.DECLARED, "8Gi declared"),
    ),
    "observed: the least slice that is safe, with the margin on compute": (
        need(ONE, used(main=BIG)),
        by_use(9856, 345, "9856Mi"),
    ),
    "observed compute is at most a whole card": (
        need(ONE, used(main=observed_usage(1000, compute_milli=990))),
        by_use(4864, 1000, "4864Mi"),
    ),
    "a risk that the policy accepts": (need(ONE, used(main=RISKY)), by_use(9856, None, "9856Mi", risk="0.3%")),
    "a risk that the policy does not accept": (
        need(ONE, used(main=RISKY), risk_ppm=1000),
        by_use(19_968, None, "19968Mi"),
    ),
    "a risk that the policy accepts, at too high a price": (
        need(ONE, msgspec.structs.replace(used(main=RISKY), prices=((1, 300_000),))),
        by_use(19_968, None, "19968Mi"),
    ),
    "no slice is safe enough: the smallest that would be": (
        need(ONE, used(main=observed_usage(30_000))),
        by_use(30_000, None, "30000Mi"),
    ),
    "so little usage that the risk requires far more than the peak": (
        need(ONE, used(main=observed_usage(1460, sizes_mib=(2919, *[73_993] * 29)))),
        by_use(73_993, None, "73993Mi", peak="1460Mi"),
    ),
    "a slice that holds far more than the peak, with usage that would allow a smaller one": (
        need(ONE, used(main=SMALL)),
        by_use(4864, None, "4864Mi"),
    ),
    "no slice is worth its risk": (
        need(ONE, msgspec.structs.replace(used(main=observed_usage(9000, typical_mib=1)), prices=((1, 100_000_000),))),
        KeepRequest(KeepReason.RISK_TOO_HIGH, demand_message("9856Mi")),
    ),
    "the largest of several containers": (need(TWO, used(main=SMALL, side=BIG)), by_use(9856, 345, "9856Mi")),
    "one container has no usage data": (
        need(TWO, used(main=SMALL)),
        KeepRequest(KeepReason.NO_EVIDENCE, "its container side has no usage data"),
    ),
    "neither container has usage data": (need(TWO), KeepRequest(KeepReason.NO_EVIDENCE)),
    "too few samples": (
        need(ONE, used(main=observed_usage(9000, sizes_mib=()))),
        KeepRequest(KeepReason.SHORT_HISTORY),
    ),
    "constant usage near the whole card": (
        need(ONE, used(main=observed_usage(70_000, preallocates=True))),
        KeepRequest(KeepReason.PREALLOCATES, "its usage is constantly close to the whole GPU"),
    ),
    "a framework that preallocates is no evidence": (
        need(make_pod().gpus(1).image("vllm/vllm-openai:v0.11.0"), used(main=BIG)),
        KeepRequest(KeepReason.PREALLOCATES, "vLLM"),
    ),
    "a problem blocks every kind of evidence": (
        need(make_pod().gpus(1).needs("8Gi"), used(main=observed_usage(9000, blocked_reason="it ran out of memory"))),
        KeepRequest(KeepReason.RECENT_FAILURE, "it ran out of memory"),
    ),
    "the policy's default without usage data": (
        need(TWO, used(main=SMALL), default_memory_mib=8192, default_compute_milli=200),
        GpuNeed(8192, 200, EvidenceSource.DEFAULT, "8Gi by the policy's default"),
    ),
    "too few samples, and the policy's default covers them": (
        need(ONE, used(main=observed_usage(6000, sizes_mib=())), default_memory_mib=8192),
        GpuNeed(8192, None, EvidenceSource.DEFAULT, "8Gi by the policy's default"),
    ),
    "the default is below the few observed samples": (
        need(ONE, used(main=observed_usage(60_000, sizes_mib=())), default_memory_mib=8192),
        KeepRequest(KeepReason.DEFAULT_TOO_SMALL, "8Gi, and 60000Mi observed"),
    ),
    "the default covers the observed memory, and the compute need is known": (
        need(ONE, used(main=observed_usage(6000, sizes_mib=(), compute_milli=600)), default_memory_mib=8192),
        GpuNeed(8192, 690, EvidenceSource.DEFAULT, "8Gi by the policy's default"),
    ),
    "the default is too risky for the observed container; the other has no usage data": (
        need(TWO, used(main=RISKY), default_memory_mib=9001, risk_ppm=1000),
        KeepRequest(KeepReason.DEFAULT_TOO_SMALL, "9001Mi, at 0.3% risk per hour"),
    ),
    "the default is less than the observed usage, with no other evidence allowed": (
        need(ONE, used(main=BIG), evidence=(EvidenceSource.DEFAULT,), default_memory_mib=8192),
        KeepRequest(KeepReason.DEFAULT_TOO_SMALL, "8Gi, and 9000Mi observed"),
    ),
    "no default is used where no slice is worth its risk": (
        need(
            ONE,
            msgspec.structs.replace(used(main=observed_usage(9000, typical_mib=1)), prices=((1, 100_000_000),)),
            default_memory_mib=16_384,
        ),
        KeepRequest(KeepReason.RISK_TOO_HIGH, demand_message("9856Mi")),
    ),
    "no default is used for a framework that preallocates": (
        need(make_pod().gpus(1).image("vllm/vllm-openai:v0.11.0"), default_memory_mib=8192),
        KeepRequest(KeepReason.PREALLOCATES, "vLLM"),
    ),
    "no default is used for constant usage near the whole card": (
        need(ONE, used(main=observed_usage(9000, preallocates=True)), default_memory_mib=9216),
        KeepRequest(KeepReason.PREALLOCATES, "its usage is constantly close to the whole GPU"),
    ),
    "a declared need takes precedence for such a framework, also over the default": (
        need(
            make_pod().gpus(1).image("vllm/vllm-openai:v0.11.0").needs("8Gi"),
            used(main=BIG),
            evidence=ALL[::-1],
            default_memory_mib=4096,
        ),
        GpuNeed(8192, None, EvidenceSource.DECLARED, "8Gi declared"),
    ),
    "observed usage takes precedence over a declared need if the policy says so": (
        need(make_pod().gpus(1).needs("8Gi"), used(main=BIG), evidence=ALL[1::-1], margin_percent=0),
        by_use(9856, 300, "9856Mi"),
    ),
    "evidence that the policy does not accept": (
        need(make_pod().gpus(1).needs("8Gi"), used(main=BIG), evidence=(EvidenceSource.DEFAULT,)),
        KeepRequest(KeepReason.NO_EVIDENCE),
    ),
}


@pytest.mark.parametrize(("found", "want"), NEEDS.values(), ids=NEEDS)
def test_need(found: GpuNeed | KeepRequest, want: GpuNeed | KeepRequest) -> None:
    assert found == want
