"""`undo` restores the original request and nothing else."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from tests.builders import Json, make_node, make_pod
from tests.engine.decisions import NODES, SIZING
from tests.engine.test_claim_sizing import GPUS, api_view, claim, decide_claim
from tests.engine.test_class_offers import CLASSES
from tests.example_cluster import apply_patch, parse_documents, review, whole_node
from webhook.audit.object_files import SkippedDocument
from webhook.cli.commands.undo import OriginalRequest, original_request, read_changed_document

ACCOUNTED = SIZING + "\nlimits: {accounting: native, accountingScheduler: configured}"


def undone(pod: Json) -> Any:
    found = original_request(pod)
    assert isinstance(found, OriginalRequest)
    assert yaml.safe_load(str(found)) == found.fields
    return found.fields


def resources(pod: Json, name: str) -> Any:
    return next(one["resources"] for one in pod["spec"]["containers"] if one["name"] == name)


@pytest.mark.parametrize("policy", [SIZING, ACCOUNTED], ids=["sized", "sized and accounted"])
def test_the_original_request_is_restored(policy: str) -> None:
    pod = make_pod().gpus(1).needs("8Gi").requests("cpu", "2").container("plain", resources={"limits": {"cpu": "1"}})
    written = pod.build()
    after = apply_patch(written, review(written, policy, nodes=NODES))
    assert after != written
    undo = undone(after)
    assert resources(undo, "main") == resources(written, "main")
    assert [one["name"] for one in undo["spec"]["containers"]] == ["main"]
    assert undo["metadata"]["annotations"] == {"rightslice.dev/keep": "true"}


def test_a_restored_pod_is_not_changed_again() -> None:
    written = make_pod().gpus(1).needs("8Gi").build()
    after = apply_patch(written, review(written, SIZING, nodes=NODES))
    again = make_pod().gpus(1).needs("8Gi")
    for key, value in undone(after)["metadata"]["annotations"].items():
        again.annotate(key, value)
    assert not review(again, SIZING, nodes=NODES).applied


def test_a_slice_selected_by_node_affinity_alone_is_described() -> None:
    single = {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb", "nvidia.com/mig.strategy": "single"}
    labels = {**single, "nvidia.com/gpu.count": "7", "nvidia.com/gpu.memory": "4864", "nvidia.com/gpu.replicas": "1"}
    node = make_node("single", labels, **{"nvidia.com/gpu": 7})
    written = make_pod().gpus(1).needs("4Gi").build()
    after = apply_patch(written, review(written, SIZING, nodes=[node, whole_node()]))
    assert resources(after, "main") == resources(written, "main")
    assert undone(after) == {"metadata": {"annotations": {"rightslice.dev/keep": "true"}}}
    assert "only selected nodes where it is a slice" in str(original_request(after))


RECORD = '{"policies": ["p"], "digest": "0123456789ab", "changed": ["resources"], "resource": ""}'
UNCHANGED_PODS = {
    "never changed": make_pod().gpus(1),
    "an invalid record": make_pod().gpus(1).annotate("rightslice.dev/decision", "{}"),
    "a record of other changes": make_pod().gpus(1).annotate("rightslice.dev/decision", RECORD),
    "no resources recorded": make_pod().annotate("rightslice.dev/original-resources", '{"main": {}}'),
}


@pytest.mark.parametrize("pod", UNCHANGED_PODS.values(), ids=UNCHANGED_PODS)
def test_there_is_nothing_to_undo(pod: Any) -> None:
    assert original_request(pod.build()) is None


@pytest.mark.parametrize("kind", ["ResourceClaim", "ResourceClaimTemplate"])
def test_the_original_request_of_a_claim_is_restored(kind: str) -> None:
    written = claim(kind=kind)
    after = apply_patch(written, decide_claim(written, api_view(*GPUS, *CLASSES)))
    assert after["spec"] != written["spec"]
    assert undone(after)["spec"] == written["spec"]


def test_a_claim_whose_record_was_changed_has_an_unknown_original() -> None:
    after = apply_patch(claim(), decide_claim(claim(), api_view(*GPUS, *CLASSES)))
    after["metadata"]["annotations"]["rightslice.dev/original-resources"] = "{}"
    assert "ResourceClaim team/claim was right-sized" in str(original_request(after))


MALFORMED = {"a request that is text": {"devices": {"requests": ["x"]}}, "a number": 5, "text": "devices",
             "a list of devices": {"devices": [1]}}  # fmt: skip


@pytest.mark.parametrize("spec", MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_claim_in_a_file_is_an_error_of_the_file(spec: object) -> None:
    after = apply_patch(claim(), decide_claim(claim(), api_view(*GPUS, *CLASSES))) | {"spec": spec}
    [source] = parse_documents([after])
    assert isinstance(read_changed_document(source), SkippedDocument)


def test_the_original_request_of_a_pod_with_a_device_class_is_restored() -> None:
    written = make_pod().gpus(1).needs("8Gi").build()
    after = apply_patch(written, review(written, SIZING, view=api_view(*GPUS, *CLASSES)))
    assert after["spec"] != written["spec"]
    assert resources(undone(after), "main") == resources(written, "main")
