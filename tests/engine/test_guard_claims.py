"""Claims: the guard reports those that may get a GPU, by device class."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from tests import device_builders
from tests.builders import Json, PodMaker, make_node, make_pod
from tests.device_builders import NVIDIA, card, resource_slice
from tests.engine.guard_violations import find_violations, names
from tests.engine.test_claims import claiming, exactly, first, template
from tests.example_cluster import NO_USAGE, NOW, policies_of, policy, request_of, view_of
from webhook.engine.decision_cache import DecisionCache
from webhook.model.claims import NO_CLAIMS

RESOURCE_NAME = "deviceclass.resource.kubernetes.io/"


def device_class(name: str, *expressions: str) -> Json:
    """Return a DeviceClass with selectors."""
    spec = {"selectors": [{"cel": {"expression": each}} for each in expressions]}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": name}, "spec": spec}


CLASSES = (
    device_class("rdma", 'device.driver == "dra.net" && device.attributes["dra.net"].rdma == true'),
    device_class("nic", "device.driver == 'sriovnetwork.k8snetworkplumbingwg.io'"),
    device_class("narrow", 'device.attributes["dra.net"].ifName.startsWith("e")', 'device.driver == "dra.net"'),
    device_class("channel", "device.driver == 'compute-domain.nvidia.com' && device.attributes['x'].id == 0"),
    device_class("gpu", "device.driver == 'gpu.nvidia.com' && device.attributes['gpu.nvidia.com'].type == 'gpu'"),
    device_class("looks-like-rdma", "device.driver == 'gpu.nvidia.com'"),
    device_class("either", "device.driver == 'dra.net' || device.driver == 'gpu.nvidia.com'"),
    device_class("ternary", "device.driver == 'dra.net' && false ? false : true"),
    device_class("not", "!(device.driver == 'dra.net')"),
    device_class("other-driver", "device.driver == 'dra.netx' + ''"),
    device_class("any"),
)


class ClaimCase(NamedTuple):
    """The request of a claim template, and the words of the finding, "" for none."""

    request: Json
    words: str


CASES = {
    "RDMA by the driver": ClaimCase(exactly("rdma"), ""),
    "a network card": ClaimCase(exactly("nic"), ""),
    "one of several selectors requires the driver": ClaimCase(exactly("narrow"), ""),
    "a channel of a compute domain": ClaimCase(exactly("channel"), ""),
    "a class of NVIDIA's compute domains that is not listed": ClaimCase(
        exactly("compute-domain-default-channel.nvidia.com"), ""
    ),
    "the first of several network cards": ClaimCase(first(("rdma", 1), ("nic", 1)), ""),
    "a GPU": ClaimCase(exactly("gpu"), "of the device class 'gpu'"),
    "a GPU under another name": ClaimCase(exactly("looks-like-rdma"), "'looks-like-rdma'"),
    "a GPU if no network card is free": ClaimCase(first(("rdma", 1), ("gpu", 1)), "'gpu'"),
    "one driver or the other": ClaimCase(exactly("either"), "'either'"),
    "a conditional expression": ClaimCase(exactly("ternary"), "'ternary'"),
    "any driver but one": ClaimCase(exactly("not"), "'not'"),
    "a driver that is computed": ClaimCase(exactly("other-driver"), "'other-driver'"),
    "a class without selectors": ClaimCase(exactly("any"), "'any'"),
    "a class that is not known": ClaimCase(exactly("rdma.example.com"), "'rdma.example.com'"),
    "a request of a later version": ClaimCase({"later": {}}, "template 't', whose device classes are unknown"),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_claim_is_reported_if_it_may_get_a_gpu(case: ClaimCase) -> None:
    claims = view_of(template("t", case.request), *CLASSES).claim_context("team")
    found = find_violations(claiming("t").build(), claiming=claims)
    assert names(found) == (["resourceClaims"] if case.words else [])
    assert all(case.words in finding.message for _, finding in found)


def test_only_the_claims_for_gpus_are_counted() -> None:
    claims = view_of(template("net", exactly("rdma")), template("gpu", exactly("gpu")), *CLASSES).claim_context("team")
    [(_, finding)] = find_violations(claiming("net", "gpu", "net").build(), claiming=claims)
    assert finding.message.endswith("found the resource claim 'c1' of the device class 'gpu'")


UNREADABLE = {
    "no template of that name": claiming("missing"),
    "a claim by name, which another claim may replace": make_pod().spec(
        resourceClaims=[{"name": "c0", "resourceClaimName": "t"}]
    ),
}


@pytest.mark.parametrize("pod", UNREADABLE.values(), ids=UNREADABLE)
def test_a_claim_that_cannot_be_read_is_reported(pod: PodMaker) -> None:
    claims = view_of(template("t", exactly("rdma")), *CLASSES).claim_context("team")
    assert names(find_violations(pod.build(), claiming=claims)) == ["resourceClaims"]


def test_a_template_of_another_namespace_says_nothing() -> None:
    claims = view_of(template("t", exactly("rdma")), *CLASSES).claim_context("other")
    assert names(find_violations(claiming("t").build(), claiming=claims)) == ["resourceClaims"]


def test_a_device_class_as_an_extended_resource_follows_the_same_rule() -> None:
    classes = view_of(*CLASSES).claim_context("team")
    network = make_pod().requests(f"{RESOURCE_NAME}rdma", "1").build()
    assert names(find_violations(network, claiming=classes)) == []
    assert names(find_violations(network, claiming=NO_CLAIMS)) == ["resourceClaims"]
    assert names(find_violations(make_pod().requests(f"{RESOURCE_NAME}gpu", "1").build(), claiming=classes)) == [
        "resourceClaims"
    ]


SERVED = {
    "GPUs under a name of another domain": (NVIDIA, "example.com/gpu", "1", ["GPU-S306"]),
    "none of them": (NVIDIA, "example.com/gpu", "0", []),
    "an amount that cannot be read": (NVIDIA, "example.com/gpu", "one", ["GPU-S306"]),
    "a part of a GPU": (NVIDIA, f"{RESOURCE_NAME}served", "500m", ["GPU-S306"]),
    "GPUs under the implicit name": (NVIDIA, f"{RESOURCE_NAME}served", "1", ["GPU-S306"]),
    "none of them under the implicit name": (NVIDIA, f"{RESOURCE_NAME}served", "0", []),
    "network cards": ("dra.net", "example.com/nic", "1", []),
    "GPUs under the name of the device plugin": (NVIDIA, "nvidia.com/gpu", "1", []),
}


@pytest.mark.parametrize(("driver", "name", "amount", "codes"), SERVED.values(), ids=SERVED)
def test_a_name_that_a_device_class_gives_follows_the_same_rule(
    driver: str, name: str, amount: str, codes: list[str]
) -> None:
    served = device_builders.device_class(
        "served", f"device.driver == '{driver}'", "" if name.startswith(RESOURCE_NAME) else name
    )
    view = view_of(make_node("n", {}), resource_slice("s", NVIDIA, "n", nodeName="n", devices=[card("gpu-0")]), served)
    deny = policies_of(policy("mode: enforce\nsecurity: {deny: [resourceClaims]}"))
    pod = make_pod().namespace("team").requests(name, amount).build()
    found = DecisionCache().decide(request_of(pod), deny, view, NO_USAGE, NOW).findings
    assert [each.code for each in found if each.code.startswith("GPU-S")] == codes
    message = f"GPUs must be requested as nvidia.com resources, found {name!r}, a resource of a device class"
    assert [each.message for each in found if each.code.startswith("GPU-S")] == [message] * len(codes)


def test_a_claim_for_another_device_is_no_sign_of_gpus() -> None:
    claims = view_of(template("t", exactly("rdma")), *CLASSES).claim_context("team")
    privileged = claiming("t").spec(hostIPC=True).build()
    assert names(find_violations(privileged, claiming=claims)) == []
    assert names(find_violations(privileged)) == ["resourceClaims", "hostNamespaces", "privilegeEscalation"]


def test_the_webhook_reads_templates_of_its_view() -> None:
    deny = policies_of(policy("mode: enforce\nsecurity: {deny: [resourceClaims]}"))
    known, unknown = view_of(template("t", exactly("rdma")), *CLASSES), view_of(*CLASSES)
    cache, request = DecisionCache(), request_of(claiming("t").namespace("team").build())
    found = [cache.decide(request, deny, view, NO_USAGE, NOW).findings for view in (unknown, unknown, known, unknown)]
    assert [[each.code for each in some] for some in found] == [["GPU-S306"], ["GPU-S306"], [], ["GPU-S306"]]
