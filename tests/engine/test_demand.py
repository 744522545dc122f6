"""Demand: what a pod declares, whose use is looked up, and which evidence is believed first."""

from __future__ import annotations

from typing import Any

import pytest

from tests.make import Json, PodMaker, make_pod
from webhook.engine.asking import asked_by
from webhook.engine.demand import Declared, need_of
from webhook.model.decisions import Need
from webhook.model.modes import Evidence, Form, Isolation, Mode
from webhook.model.pods import pod_of
from webhook.model.usage import Observed, UsageView
from webhook.model.workloads import workload_of
from webhook.policy.compiled import RightSizing

ALL = (Evidence.DECLARED, Evidence.OBSERVED, Evidence.DEFAULT)


def declared(**notes: str) -> Declared:
    """What a pod with these annotations declares."""
    pod = make_pod()
    for key, value in notes.items():
        pod.annotate(f"rightslice.dev/gpu-{key}", value)
    return Declared(pod_of(pod.build()))


MEMORY = {
    "binary": ("8Gi", 8192),
    "decimal, rounded up": ("8G", 7630),
    "one MiB": ("1Mi", 1),
    "bytes, where the unit was forgotten": ("8", None),
    "more than any card has": ("17Ti", None),
    "no number": ("eight", None),
    "nothing": ("0", None),
    "below nothing": ("-8Gi", None),
    "a unit that people write": ("8GB", None),
}


@pytest.mark.parametrize(("text", "want"), MEMORY.values(), ids=MEMORY)
def test_declared_memory(text: str, want: int | None) -> None:
    found = declared(memory=text)
    assert found.memory_mib == want
    assert [fault.path[-1] for fault in found.faults] == ([] if want else ["rightslice.dev/gpu-memory"])


COMPUTE = {
    "a percentage": ("20%", 200),
    "a fine one": ("12.5%", 125),
    "a very fine one, rounded up": ("12.51%", 126),
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
    assert [fault.fix for fault in found.faults] == ([] if want else ['Write rightslice.dev/gpu-compute: "20%".'])


def test_both_faults_of_a_declaration_are_told_in_short() -> None:
    faults = declared(memory="x" * 500, compute="y").faults
    assert len(faults) == 2
    assert all(len(fault.message) < 120 for fault in faults)


def owner(kind: str, name: str, *, controller: bool = True) -> Json:
    """An owner reference."""
    return {"kind": kind, "name": name, "controller": controller}


WORKLOADS: dict[str, tuple[list[Json], str]] = {
    "a pod on its own": ([], "Pod/pod"),
    "a Job's pod": ([owner("Job", "train")], "Job/train"),
    "a Deployment's pod": ([owner("ReplicaSet", "serve-5d4f")], "Deployment/serve"),
    "a ReplicaSet of somebody else's": ([owner("ReplicaSet", "serve")], "ReplicaSet/serve"),
    "an owner that does not control it": ([owner("Trial", "a", controller=False)], "Pod/pod"),
    "the owner that does": ([owner("Trial", "a", controller=False), owner("Job", "b")], "Job/b"),
}


@pytest.mark.parametrize(("owners", "want"), WORKLOADS.values(), ids=WORKLOADS)
def test_the_workload_of_a_pod(owners: list[Json], want: str) -> None:
    data = make_pod().label("pod-template-hash", "5d4f").build()
    data["metadata"]["ownerReferences"] = owners
    assert workload_of(pod_of(data)) == want


def rule(**fields: Any) -> RightSizing:
    """A rule that believes everything, with a margin of 15 %."""
    plain: dict[str, Any] = {
        "mode": Mode.ENFORCE,
        "isolation": Isolation.HARDWARE,
        "forms": (Form.MIG,),
        "evidence": ALL,
        "default_memory_mib": None,
        "default_compute_milli": None,
        "margin_percent": 15,
        "min_saving_percent": 20,
        "wait_when_full": False,
    }
    return RightSizing(**(plain | fields))


def seen(**containers: Observed) -> UsageView:
    """Use of the containers of the pod "pod" in namespace "team"."""
    return UsageView({("team", "Pod/pod", name): use for name, use in containers.items()})


def need(pod: PodMaker, usage: UsageView | None = None, **fields: Any) -> Need | None:
    """The need of a pod."""
    read = pod_of(pod.build())
    return need_of(asked_by(read).asks, read, "team", Declared(read), rule(**fields), usage or UsageView())


ONE, TWO = make_pod().gpus(1), make_pod().gpus(1).container("side", resources={"limits": {"nvidia.com/gpu": "1"}})
BIG, SMALL = Observed(10_000, 300, 100), Observed(1000, None, 100)
NEEDS = {
    "no evidence at all": (need(ONE), None),
    "declared, as written and without a margin": (
        need(make_pod().gpus(1).needs("8Gi", "20%"), seen(main=BIG)),
        Need(8192, 200, Evidence.DECLARED, "8Gi declared"),
    ),
    "observed, with the margin on both": (
        need(ONE, seen(main=BIG)),
        Need(11_500, 345, Evidence.OBSERVED, "11500Mi from observed use with 15% margin"),
    ),
    "observed compute is a card at most": (
        need(ONE, seen(main=Observed(1000, 990, 9)), margin_percent=0),
        Need(1000, 990, Evidence.OBSERVED, "1000Mi from observed use with 0% margin"),
    ),
    "observed compute with its margin is a card at most": (
        need(ONE, seen(main=Observed(1024, 990, 9)), margin_percent=100),
        Need(2048, 1000, Evidence.OBSERVED, "2Gi from observed use with 100% margin"),
    ),
    "compute that nobody measured is not known": (
        need(ONE, seen(main=Observed(1024, None, 9)), margin_percent=0),
        Need(1024, None, Evidence.OBSERVED, "1Gi from observed use with 0% margin"),
    ),
    "the largest of several containers": (
        need(TWO, seen(main=SMALL, side=BIG), margin_percent=0),
        Need(10_000, 300, Evidence.OBSERVED, "10000Mi from observed use with 0% margin"),
    ),
    "one container was never seen": (need(TWO, seen(main=SMALL)), None),
    "a framework that takes what it sees is no evidence": (
        need(ONE, seen(main=Observed(10_000, 300, 100, preallocates=True))),
        None,
    ),
    "the policy's default where nothing was seen": (
        need(TWO, seen(main=SMALL), default_memory_mib=8192, default_compute_milli=200),
        Need(8192, 200, Evidence.DEFAULT, "8Gi by the policy's default"),
    ),
    "observed use before what is declared, where the policy says so": (
        need(make_pod().gpus(1).needs("8Gi"), seen(main=BIG), evidence=ALL[1::-1], margin_percent=0),
        Need(10_000, 300, Evidence.OBSERVED, "10000Mi from observed use with 0% margin"),
    ),
    "what the policy does not believe": (
        need(make_pod().gpus(1).needs("8Gi"), seen(main=BIG), evidence=(Evidence.DEFAULT,)),
        None,
    ),
}


@pytest.mark.parametrize(("found", "want"), NEEDS.values(), ids=NEEDS)
def test_need(found: Need | None, want: Need | None) -> None:
    assert found == want
