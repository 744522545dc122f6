"""CUDA requirements of images, checked against the nodes that the pod may run on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.builders import Json, PodMaker, make_pod
from tests.strategies import pods
from webhook.engine.cuda import cuda_violations
from webhook.engine.gpu_requests import gpu_requests_of_pod
from webhook.engine.policy_findings import PolicyFinding
from webhook.model.enums import GpuForm, IsolationLevel, PolicyMode
from webhook.model.offers import GpuOffer
from webhook.model.pods import Pod, parse_pod


def cuda_findings(pod: Pod, offers: Sequence[GpuOffer]) -> list[PolicyFinding]:
    """Return the CUDA findings of a pod, with its GPU containers found as the engine finds them."""
    return cuda_violations(pod, offers, gpu_requests_of_pod(pod).containers)


def offer(
    product: str, driver: tuple[int, ...], cuda: tuple[int, ...] = (), arch: tuple[int, int] = (8, 0)
) -> GpuOffer:
    return GpuOffer(
        resource="nvidia.com/gpu",
        form=GpuForm.WHOLE,
        product=product,
        profile="",
        memory_mib=81920,
        compute_milli=1000,
        gpu_milli=1000,
        isolation=IsolationLevel.HARDWARE,
        replicas=1,
        selector=(),
        taints=(),
        nodes=1,
        capacity=8,
        compute_capability=arch,
        driver=driver,
        cuda=cuda,
    )


OLD = offer("Tesla-T4", (470, 57, 2), (11, 4), (7, 5))
MIDDLE = offer("NVIDIA-A100-SXM4-80GB", (535, 104, 5), (12, 2))
NEW = offer("NVIDIA-H100-80GB-HBM3", (580, 95, 5), (13, 0), (9, 0))
SILENT = offer("NVIDIA-L4", ())
LABEL_ONLY = offer("NVIDIA-L40S", (), (12, 2), (8, 9))
GEFORCE = offer("NVIDIA-GeForce-RTX-4090", (470, 57, 2), (11, 4), (8, 9))
B200 = offer("NVIDIA-B200", (580, 95, 5), (13, 0), (10, 0))
B300 = offer("NVIDIA-B300", (580, 95, 5), (13, 0), (10, 3))
V100 = offer("Tesla-V100-SXM2-32GB", (580, 95, 5), (13, 0), (7, 0))

REQUIRE = "NVIDIA_REQUIRE_CUDA"
WITH_BRANDS = "cuda>=12.4 brand=tesla,driver>=470,driver<471 brand=geforce,driver>=470,driver<471"


def gpu() -> PodMaker:
    return make_pod().gpus(1)


class Case(NamedTuple):
    pod: PodMaker
    offers: list[GpuOffer]
    want: list[str]
    words: str = ""
    """What the first message says."""
    mode: PolicyMode = PolicyMode.WARN


CASES = {
    "the driver is newer: nothing": Case(gpu().image("nvidia/cuda:12.2.2-base"), [NEW, MIDDLE], []),
    "no version in the image: nothing": Case(gpu(), [OLD], []),
    "a pod without GPUs is ignored": Case(make_pod().image("nvidia/cuda:13.0.0"), [OLD], []),
    "no GPUs requested, explicitly": Case(
        make_pod().requests("nvidia.com/gpu", "0").image("nvidia/cuda:13.0.0"), [OLD], []
    ),
    "below the floor everywhere: reject": Case(
        gpu().image("nvidia/cuda:12.8.1-base"),
        [OLD],
        ["GPU-C101"],
        "must be 525.60.13 or newer (found driver 470.57.02 on Tesla-T4",
        PolicyMode.ENFORCE,
    ),
    "below the floor of the next major": Case(
        gpu().image("x:cu130"), [MIDDLE, OLD], ["GPU-C101"], "must be 580 or newer", PolicyMode.ENFORCE
    ),
    "a driver of the floor itself runs it": Case(
        gpu().image("x:cuda12.0"), [offer("Tesla-T4", (525, 60, 13), arch=(7, 5))], []
    ),
    "one revision below the floor": Case(
        gpu().image("x:cuda12.0"),
        [offer("Tesla-T4", (525, 60, 12), arch=(7, 5))],
        ["GPU-C101"],
        "found driver 525.60.12",
        PolicyMode.ENFORCE,
    ),
    "CUDA 10 has no floor below its own driver": Case(
        gpu().image("nvidia/cuda:10.2-base"),
        [offer("Tesla-V100", (418, 39), arch=(7, 0))],
        ["GPU-C101"],
        "must be 440.33 or newer",
        PolicyMode.ENFORCE,
    ),
    "between floor and toolkit: warn": Case(
        gpu().image("nvidia/cuda:12.8.1-base"),
        [MIDDLE],
        ["GPU-C102"],
        "should be 570.124.06 or newer (found driver 535.104.05 on NVIDIA-A100-SXM4-80GB",
    ),
    "the first release of a toolkit needs less than its update": Case(
        gpu().image("nvidia/cuda:12.8.0-base"), [offer("NVIDIA-A100", (570, 26))], []
    ),
    "an update that is newer than the table": Case(
        gpu().image("nvidia/cuda:12.8.9-base"), [offer("NVIDIA-A100", (570, 26))], ["GPU-C102"], "570.124.06"
    ),
    "compatible on one, below on another": Case(
        gpu().image("x:cu128"), [MIDDLE, OLD], ["GPU-C102"], "and an older one on Tesla-T4"
    ),
    "on some nodes only: name them": Case(
        gpu().image("x:cu128"), [NEW, OLD], ["GPU-C102"], "found NVIDIA-H100-80GB-HBM3; the others have"
    ),
    "nodes without driver labels": Case(gpu().image("x:cu128"), [SILENT], []),
    "one node has an unknown driver: no rejection": Case(
        gpu().image("x:cu128"), [SILENT, OLD], ["GPU-C101"], "Tesla-T4"
    ),
    "a node with only its newest CUDA": Case(
        gpu().image("x:cu128"), [LABEL_ONLY], ["GPU-C102"], "found CUDA 12.2 on NVIDIA-L40S"
    ),
    "the newest CUDA is enough": Case(gpu().image("x:cuda12.2"), [LABEL_ONLY], []),
    "the newest CUDA has an older major version": Case(
        gpu().image("x:cu130"), [LABEL_ONLY], ["GPU-C101"], "must be 580 or newer (found CUDA 12.2", PolicyMode.ENFORCE
    ),
    "a toolkit that is not in the table": Case(
        gpu().image("x:cuda14.0"), [NEW], ["GPU-C101"], "must be one with CUDA 14 or newer", PolicyMode.ENFORCE
    ),
    "a major version alone requires its floor": Case(gpu().image("jax:cuda12"), [MIDDLE], []),
    "forward compatibility by annotation": Case(
        gpu().image("x:cu128").annotate("rightslice.dev/cuda-compat", "true"), [OLD], ["GPU-C101"]
    ),
    "forward compatibility by package": Case(
        gpu().image("x:cu128").env("NV_CUDA_COMPAT_PACKAGE", "cuda-compat-12-8"), [OLD], ["GPU-C101"]
    ),
    "forward compatibility is for data-center products": Case(
        gpu().image("x:cu128").env("NV_CUDA_COMPAT_PACKAGE", "x"), [GEFORCE], ["GPU-C101"], mode=PolicyMode.ENFORCE
    ),
    "the annotation comes first": Case(
        gpu().image("nvidia/cuda:13.0.0").env(REQUIRE, "cuda>=13").annotate("rightslice.dev/cuda", "11.4"), [OLD], []
    ),
    "the annotation with a comparison": Case(
        gpu().annotate("rightslice.dev/cuda", ">= 12.4"),
        [OLD],
        ["GPU-C101"],
        "rightslice.dev/cuda requires",
        PolicyMode.ENFORCE,
    ),
    "the annotation with two bounds": Case(gpu().annotate("rightslice.dev/cuda", ">=11.2, <12"), [OLD], []),
    "the annotation as a whole requirement": Case(
        gpu().annotate("rightslice.dev/cuda", "driver>=550"), [MIDDLE], ["GPU-C102"], "requires 'driver>=550'"
    ),
    "the variable comes before the image": Case(gpu().image("x:cu130").env(REQUIRE, "cuda>=11.0"), [OLD], []),
    "CUDA_VERSION comes before the image": Case(gpu().image("x:cu130").env("CUDA_VERSION", "11.4.0"), [OLD], []),
    "CUDA_VERSION alone": Case(
        gpu().env("CUDA_VERSION", "12.8.1.012"),
        [OLD],
        ["GPU-C101"],
        "CUDA_VERSION requires CUDA 12.8.1",
        PolicyMode.ENFORCE,
    ),
    "an alternative for data-center cards is satisfied": Case(gpu().env(REQUIRE, WITH_BRANDS), [OLD], []),
    "an alternative that depends on an unknown driver": Case(gpu().env(REQUIRE, WITH_BRANDS), [GEFORCE], ["GPU-C102"]),
    "alternatives for another driver": Case(
        gpu().env(REQUIRE, "cuda>=12.4 brand=tesla,driver>=450,driver<451"),
        [OLD],
        ["GPU-C101"],
        mode=PolicyMode.ENFORCE,
    ),
    "every requirement variable counts": Case(
        gpu().env(REQUIRE, "cuda>=11.0").env("NVIDIA_REQUIRE_DRIVER", "driver>=550"), [MIDDLE], ["GPU-C102"]
    ),
    "a requirement of the architecture": Case(gpu().env(REQUIRE, "cuda>=11.0,arch>=9.0"), [NEW], []),
    "requirements switched off": Case(
        gpu().image("x:cu130").env(REQUIRE, "cuda>=13").env("NVIDIA_DISABLE_REQUIRE", "true"), [OLD], []
    ),
    "requirements not switched off": Case(
        gpu().image("x:cu130").env("NVIDIA_DISABLE_REQUIRE", "false"), [OLD], ["GPU-C101"], mode=PolicyMode.ENFORCE
    ),
    "a variable that refers to others is not read": Case(gpu().env(REQUIRE, "cuda>=$(V)"), [OLD], []),
    "B200 needs a newer toolkit": Case(gpu().image("x:cu124"), [B200], ["GPU-C103"], "CUDA 12.8 or newer"),
    "B200 with its toolkit": Case(gpu().image("x:cu128"), [B200], []),
    "B300 needs an even newer toolkit": Case(gpu().image("x:cu128"), [B300], ["GPU-C103"], "CUDA 12.9 or newer"),
    "an older GPU is among them": Case(gpu().image("x:cu124"), [B200, NEW], []),
    "a major version alone is not enough to decide": Case(gpu().image("x:cuda12"), [B200], []),
    "V100 ended with CUDA 12": Case(gpu().image("x:cu130"), [V100], ["GPU-C103"], "is not supported by CUDA 13"),
    "an invalid annotation": Case(
        gpu().annotate("rightslice.dev/cuda", "twelve"), [NEW], ["GPU-C104"], "found 'twelve'"
    ),
    "an invalid requirement": Case(gpu().env(REQUIRE, "cuda~12"), [NEW], ["GPU-C104"], "found 'cuda~12'"),
    "a very long requirement": Case(gpu().env(REQUIRE, "cuda>=12.4 " * 10_000), [NEW], ["GPU-C104"]),
    "an invalid version": Case(gpu().env("CUDA_VERSION", "latest"), [NEW], ["GPU-C104"]),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_need_against_nodes(case: Case) -> None:
    found = cuda_findings(parse_pod(case.pod.build()), case.offers)
    assert [finding.code for finding in found] == case.want
    if found:
        assert case.words in found[0].message
        assert found[0].at_most is case.mode


def test_the_field_is_where_the_requirement_was_stated() -> None:
    places = {
        gpu().image("x:cu130"): ("spec", "containers", 0, "image"),
        gpu().env("A", "b").env(REQUIRE, "cuda>=13"): ("spec", "containers", 0, "env", 1),
        gpu().annotate("rightslice.dev/cuda", "13"): ("metadata", "annotations", "rightslice.dev/cuda"),
    }
    for pod, path in places.items():
        assert [finding.path for finding in cuda_findings(parse_pod(pod.build()), [OLD])] == [path]


def test_only_containers_that_request_gpus_count() -> None:
    pod = gpu().container("helper").build()
    pod["spec"]["containers"][1]["image"] = "nvidia/cuda:13.0.0"
    assert cuda_findings(parse_pod(pod), [OLD]) == []


def test_a_long_list_of_products_is_shortened() -> None:
    many = [offer(f"NVIDIA-P{i}", (470, 57, 2)) for i in range(9)]
    (finding,) = cuda_findings(parse_pod(gpu().image("x:cu130").build()), many)
    assert "NVIDIA-P3 and 5 more" in finding.message


@settings(max_examples=150)
@given(pods(), st.lists(st.sampled_from([OLD, MIDDLE, NEW, SILENT, LABEL_ONLY, GEFORCE, B200, V100]), max_size=4))
def test_any_pod_is_evaluated_without_an_error(pod: Json, offers: list[GpuOffer]) -> None:
    for finding in cuda_findings(parse_pod(pod), offers):
        assert finding.code in ("GPU-C101", "GPU-C102", "GPU-C103", "GPU-C104")
        assert finding.message.isprintable()


@settings(max_examples=100)
@given(st.sampled_from(["11.0", "11.8", "12.4.1", "12.8.0", "13.0", "13.3"]), st.sampled_from([OLD, MIDDLE, NEW]))
def test_a_newer_driver_never_fits_less(toolkit: str, older: GpuOffer) -> None:
    def worst(one: GpuOffer) -> str:
        found = cuda_findings(parse_pod(gpu().image(f"nvidia/cuda:{toolkit}").build()), [one])
        return min((finding.code for finding in found if finding.code != "GPU-C103"), default="GPU-Z")

    assert worst(NEW) >= worst(older)
