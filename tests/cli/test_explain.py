"""`explain -f` of a stored pod: why it was changed, without findings about its node."""

from __future__ import annotations

import json
from typing import Any

import jsonpatch
import pytest

from tests.cli.conftest import FILES, INPUTS, JUNE, Run
from webhook.model.codes import CODES
from webhook.model.defaulting import default_object

GUARD = ("--policies", "../../../policies/guard.yaml", "--cluster", "cluster.yaml", "--now", JUNE)


@pytest.fixture
def sized_pod(rightslice: Run) -> dict[str, Any]:
    """The notebook as stored: changed at admission, and bound."""
    (found,) = json.loads(rightslice("check", "deploy/sized.json", *INPUTS, "-o", "json").out)["objects"]
    written = default_object(json.loads((FILES / "deploy/sized.json").read_text()), "team-vision")
    pod: dict[str, Any] = jsonpatch.apply_patch(written, found["patch"])
    pod["metadata"]["uid"] = "2b1f"
    pod["spec"]["nodeName"] = "mig-1"
    return pod


def test_a_right_sized_pod_is_explained(sized_pod: dict[str, Any], rightslice: Run) -> None:
    result = rightslice("explain", "-f", "-", *INPUTS, stdin=json.dumps(sized_pod))
    assert result.code == 0, result.err
    digest = json.loads(sized_pod["metadata"]["annotations"]["rightslice.dev/decision"])["digest"]
    lines = [line.strip() for line in result.out.splitlines()]
    assert lines[1] == "Running   on node mig-1; it will not be changed"
    assert lines[2].startswith("Record    Rightslice changed resources")
    assert lines[3] == f"By        sizing: resources, nodeAffinity (policy digest {digest})"
    assert lines[4] == "Matched   research, trial, without changes"
    assert lines[5] == "Before    main: nvidia.com/gpu 1"
    assert lines[6] == "Now       0.14 GPUs instead of each requested whole GPU, as nvidia.com/mig-1g.10gb"
    assert lines[7] == "Reason    it needs 8Gi declared, which nvidia.com/mig-1g.10gb covers"
    assert lines[8].endswith('rightslice.dev/keep: "true"')


def test_a_pod_whose_resource_kept_its_name_is_explained(sized_pod: dict[str, Any], rightslice: Run) -> None:
    notes = sized_pod["metadata"]["annotations"]
    record = json.loads(notes["rightslice.dev/decision"])
    steered = {"changed": ["nodeAffinity", "tolerations"], "resource": "nvidia.com/gpu", "gpuMilli": 143}
    by = {"sizing": ["nodeAffinity"], "trial": ["tolerations"]}
    notes["rightslice.dev/decision"] = json.dumps(record | steered | {"changedBy": by})
    del notes["rightslice.dev/original-resources"]
    output = rightslice("explain", "-f", "-", *INPUTS, stdin=json.dumps(sized_pod)).out

    assert "By        sizing: nodeAffinity; trial: tolerations (policy digest" in output
    assert "Before    nvidia.com/gpu, as now: node affinity selects the form" in output
    assert "Now       0.14 GPUs instead of each requested whole GPU, as nvidia.com/gpu" in output


def test_an_older_record_names_the_policies(sized_pod: dict[str, Any], rightslice: Run) -> None:
    notes = sized_pod["metadata"]["annotations"]
    record = json.loads(notes["rightslice.dev/decision"])
    older = {key: value for key, value in record.items() if key not in ("changedBy", "gpuMilli")}
    notes["rightslice.dev/decision"] = json.dumps(older)
    output = rightslice("explain", "-f", "-", *INPUTS, stdin=json.dumps(sized_pod)).out

    assert "By        research, sizing, trial (policy digest" in output
    assert "Matched" not in output
    assert "Now " not in output


def test_the_node_of_a_stored_pod_is_not_a_finding(sized_pod: dict[str, Any], rightslice: Run) -> None:
    stored = rightslice("explain", "-f", "-", *GUARD, stdin=json.dumps(sized_pod)).out
    assert "Verdict   allowed" in stored
    del sized_pod["metadata"]["uid"]
    fresh = rightslice("explain", "-f", "-", *GUARD, stdin=json.dumps(sized_pod)).out
    assert "Verdict   denied" in fresh
    assert "Running" not in fresh


def test_an_invalid_record_is_ignored(sized_pod: dict[str, Any], rightslice: Run) -> None:
    sized_pod["metadata"]["annotations"]["rightslice.dev/decision"] = "approved"
    result = rightslice("explain", "-f", "-", *GUARD, stdin=json.dumps(sized_pod)).out
    assert "Record" not in result.partition("Re-evaluated")[0]
    assert "GPU-S" in result


def test_a_pending_pod_is_named_pending(sized_pod: dict[str, Any], rightslice: Run) -> None:
    del sized_pod["spec"]["nodeName"]
    assert "Pending   no node yet" in rightslice("explain", "-f", "-", *INPUTS, stdin=json.dumps(sized_pod)).out


PYTORCH_JOB = """
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {name: train}
spec:
  pytorchReplicaSpecs:
    Master: {replicas: 1, template: {spec: {containers: [{name: c, image: x}]}}}
    Worker:
      replicas: 2
      template: {spec: {containers: [{name: c, image: x, resources: {limits: {nvidia.com/gpu: 2}}}]}}
"""


def test_each_template_of_a_workload_is_explained(rightslice: Run) -> None:
    lines = [line.strip() for line in rightslice("explain", "-f", "-", *INPUTS, stdin=PYTORCH_JOB).out.splitlines()]
    master = lines.index("Template  spec.pytorchReplicaSpecs.Master.template: 1 pod with 0 GPUs each")
    assert lines[master + 1] in ("Outcome   it requests no GPU", "Outcome   it does not use GPUs")
    worker = lines.index("Template  spec.pytorchReplicaSpecs.Worker.template: 2 pods with 2 GPUs each")
    assert lines[worker + 1].startswith("Outcome   not right-sized: ")


REACHES_GPUS = """
apiVersion: v1
kind: Pod
metadata: {name: a}
spec: {containers: [{name: c, image: x, env: [{name: NVIDIA_VISIBLE_DEVICES, value: all}]}]}
"""


def test_a_pod_that_requests_no_gpu_is_not_said_to_lack_a_policy(rightslice: Run) -> None:
    result = rightslice("explain", "-f", "-", *GUARD, stdin=REACHES_GPUS)
    assert "GPU-S101" in result.out
    assert "Outcome   it requests no GPU\n" in result.out


def test_an_evaluation_is_printed_with_the_fields_of_check(rightslice: Run) -> None:
    explained, checked = (rightslice(name, "-f", "deploy", *INPUTS, "-o", "json").out for name in ("explain", "check"))
    found = json.loads(explained)

    assert found == json.loads(checked)
    assert len(found["objects"]) > 1


def test_the_page_of_a_code_and_of_a_reason_is_printed_as_data(rightslice: Run) -> None:
    code, reason, every = (
        json.loads(rightslice("explain", *names, "-o", "json").out) for names in (["gpu-l102"], ["multiplegpus"], [])
    )

    assert (code["code"], code["fix"]) == ("GPU-L102", CODES["GPU-L102"].fix)
    assert (reason["code"], reason["title"]) == ("MultipleGPUs", "the pod keeps its GPU request")
    assert [each["code"] for each in every["codes"]] == list(CODES)
    assert every == json.loads(rightslice("explain", "--all", "-o", "json").out)
