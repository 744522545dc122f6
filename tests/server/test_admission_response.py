"""The responses of /mutate and /validate, as an API server reads them."""

from __future__ import annotations

import base64
import json
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.builders import make_pod
from webhook.model.admission import AdmissionRequest
from webhook.model.codes import CODES, MUTATION_CODES
from webhook.model.decisions import Decision, patch_add
from webhook.model.enums import PolicyMode
from webhook.model.findings import Finding
from webhook.model.pods import parse_pod
from webhook.server.admission_response import CACHE_ENTRIES, render_mutation, render_validation

LIMIT = ("spec", "containers", 0, "resources", "limits", "nvidia.com/gpu")
REFUSED = Finding(
    "GPU-L102", PolicyMode.ENFORCE, LIMIT, "must be one of 1, 2, 4, 8 (found 3)", "Write 4, or 2.", "team"
)
WARNED = Finding(
    "GPU-T201", PolicyMode.WARN, LIMIT, "no node offers nvidia.com/mig-9g.1gb", "Write nvidia.com/gpu.", "team"
)
SHAPED = Finding("GPU-R101", PolicyMode.ENFORCE, LIMIT, "1 GPU became 1 slice", "", "sizes")
TRIED = Finding("GPU-R102", PolicyMode.WARN, LIMIT, "would become a slice", "", "trial")
NOTED = Finding("GPU-S201", PolicyMode.AUDIT, LIMIT, "is privileged", "Remove it.", "guard")
PATCH = (patch_add(("metadata", "labels"), {"a": "é"}),)
EVERYTHING = Decision(findings=(REFUSED, WARNED, SHAPED, TRIED, NOTED), patch=PATCH, policies=("sizes", "team"))


def request() -> AdmissionRequest:
    return AdmissionRequest("CREATE", "", "Pod", "team", "train-0", parse_pod(make_pod().build()), dict, uid="u-1")


def of_workload() -> AdmissionRequest:
    fields = {
        "operation": "CREATE",
        "group": "batch",
        "kind": "Job",
        "namespace": "team",
        "name": "train",
        "uid": "u-1",
    }
    return AdmissionRequest(pod=None, load_object=dict, **fields)  # type: ignore[arg-type] # all of them are texts


def mutate_response(decision: Decision) -> dict[str, Any]:
    return _response(render_mutation(request(), decision, "d1g3st"))


def validate_response(decision: Decision, of: AdmissionRequest | None = None) -> dict[str, Any]:
    return _response(render_validation(of or request(), decision, "d1g3st"))


def _response(content: bytes) -> dict[str, Any]:
    review = json.loads(content)
    assert (review["apiVersion"], review["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
    response: dict[str, Any] = review["response"]
    assert response["uid"] == "u-1"
    return response


def test_an_empty_decision_adds_nothing_to_the_response() -> None:
    assert mutate_response(Decision()) == validate_response(Decision()) == {"uid": "u-1", "allowed": True}


def test_mutate_patches_and_never_denies() -> None:
    response = mutate_response(EVERYTHING)
    assert response["allowed"] is True
    assert response["patchType"] == "JSONPatch"
    assert json.loads(base64.b64decode(response["patch"])) == [
        {"op": "add", "path": "/metadata/labels", "value": {"a": "é"}}
    ]
    assert "status" not in response


def test_mutate_reports_only_its_own_changes() -> None:
    response = mutate_response(EVERYTHING)
    assert [line[1:9] for line in response["warnings"]] == ["GPU-R101", "GPU-R102"]
    assert response["auditAnnotations"] == {
        "policies": "sizes,team",
        "digest": "d1g3st",
        "codes": "GPU-R101=enforce,GPU-R102=warn",
        "patched": "1",
    }


def test_mutate_warns_of_a_pod_that_the_api_server_rejects_before_validate() -> None:
    invalid = Finding("GPU-L203", PolicyMode.ENFORCE, LIMIT, "LimitRange 'lr' gives cpu a default limit", "", "team")
    response = mutate_response(Decision(findings=(invalid, REFUSED), policies=("team",)))
    assert response["allowed"]
    assert [line.partition(":")[0] for line in response["warnings"]] == [str(invalid).partition(":")[0]]


def test_without_a_patch_there_is_no_patch_type() -> None:
    response = mutate_response(Decision(findings=(TRIED,)))
    assert "patch" not in response
    assert "patchType" not in response
    assert "patched" not in response["auditAnnotations"]


def test_validate_denies_with_every_reason_and_never_patches() -> None:
    second = Finding("GPU-S201", PolicyMode.ENFORCE, ("spec",), "must not be privileged", "Remove it.", "guard")
    response = validate_response(Decision(findings=(REFUSED, second, WARNED), patch=PATCH, policies=("guard", "team")))
    assert response["allowed"] is False
    assert response["status"]["code"] == 403
    assert response["status"]["reason"] == "Forbidden"
    assert response["status"]["message"].split("\n") == [
        "2 problems in Pod team/train-0 (policy guard, team)",
        "[GPU-L102] spec.containers[0].resources.limits['nvidia.com/gpu']: "
        "must be one of 1, 2, 4, 8 (found 3). Write 4, or 2.",
        "[GPU-S201] spec: must not be privileged. Remove it.",
        "Try: kubectl rightslice explain -f FILE",
    ]
    assert "patch" not in response
    assert [line[1:9] for line in response["warnings"]] == ["GPU-T201"]
    assert response["auditAnnotations"]["codes"] == "GPU-L102=enforce,GPU-S201=enforce,GPU-T201=warn"


def test_a_single_problem_is_in_the_singular() -> None:
    message = validate_response(Decision(findings=(REFUSED,)))["status"]["message"]
    assert message.startswith("1 problem in Pod team/train-0 (policy team)\n")


def test_a_pod_without_a_name_is_named_by_its_generate_name() -> None:
    pod = make_pod("").build()
    pod["metadata"]["generateName"] = "train-"
    nameless = AdmissionRequest("CREATE", "", "Pod", "team", "", parse_pod(pod), dict, uid="u-1")
    assert "in Pod team/train-* (" in validate_response(Decision(findings=(REFUSED,)), nameless)["status"]["message"]


def test_mutation_findings_never_deny() -> None:
    assert validate_response(Decision(findings=(SHAPED,)))["allowed"] is True


def test_audit_findings_are_not_in_warnings() -> None:
    response = validate_response(Decision(findings=(NOTED,)))
    assert "warnings" not in response
    assert response["auditAnnotations"]["codes"] == "GPU-S201=audit"


def test_validate_reports_all_findings_of_a_workload() -> None:
    response = validate_response(Decision(findings=(WARNED, TRIED)), of_workload())
    assert [line[1:9] for line in response["warnings"]] == ["GPU-T201", "GPU-R102"]


def test_a_fix_that_has_no_room_after_its_message_is_the_next_warning() -> None:
    long = Finding("GPU-D102", PolicyMode.WARN, ("spec",), "x" * 300, "Write 'a' in b.", "p")
    found = validate_response(Decision(findings=(long,)))["warnings"]
    assert found == [f"[GPU-D102] spec: {'x' * 236}...", "[GPU-D102] Write 'a' in b."]


def test_a_fix_that_is_longer_than_a_warning_is_omitted() -> None:
    long = Finding("GPU-T201", PolicyMode.WARN, (), "no node offers it", "Write " + "x" * 300 + ".", "p")
    assert validate_response(Decision(findings=(long,)))["warnings"] == ["[GPU-T201] no node offers it."]


def test_duplicate_warnings_are_removed() -> None:
    assert len(validate_response(Decision(findings=(WARNED, WARNED)))["warnings"]) == 1


def test_a_thousand_denials_fit() -> None:
    many = tuple(
        Finding("GPU-L102", PolicyMode.ENFORCE, ("spec", number), "x" * 90, "Write 4.", "team")
        for number in range(1000)
    )
    message = validate_response(Decision(findings=many))["status"]["message"]
    assert len(message) < 9000
    assert message.startswith("1000 problems in Pod")
    last = message.split("\n")[-2]
    assert last == f"and {1000 - (len(message.splitlines()) - 3)} more"


def test_a_thousand_warnings_fit() -> None:
    many = tuple(Finding("GPU-T201", PolicyMode.WARN, ("spec", number), "x" * 90, "", "team") for number in range(1000))
    lines = validate_response(Decision(findings=many))["warnings"]
    assert sum(map(len, lines)) <= 4096
    assert lines[-1] == f"and {1000 - (len(lines) - 1)} more"


findings = st.builds(
    Finding,
    code=st.sampled_from(sorted(CODES)),
    mode=st.sampled_from(PolicyMode),
    path=st.tuples(st.text(max_size=20), st.integers(0, 300)),
    message=st.text(max_size=400),
    fix=st.text(max_size=400),
    policy=st.text(max_size=80),
)


@settings(max_examples=200)
@given(st.lists(findings, max_size=30), st.text(max_size=40))
def test_any_response_is_within_the_api_servers_limits(found: list[Finding], policy: str) -> None:
    decision = Decision(findings=tuple(found), policies=(policy,))
    for response in (
        mutate_response(decision),
        validate_response(decision),
        validate_response(decision, of_workload()),
    ):
        warnings = response.get("warnings", [])
        assert all(line.isascii() and line.isprintable() and len(line) <= 256 for line in warnings)
        assert sum(map(len, warnings)) <= 4096
        notes = response["auditAnnotations"]
        assert set(notes) <= {"policies", "codes", "patched", "digest"}
        assert all(value.isascii() and value.isprintable() and len(value) <= 1024 for value in notes.values())
        message = response.get("status", {}).get("message", "")
        assert len(message) < 9500
        assert all(line.isprintable() or not line.isascii() for line in message.split("\n"))


def test_denied_if_and_only_if_a_validation_finding_denies() -> None:
    for code in CODES:
        found = Finding(code, PolicyMode.ENFORCE, (), "is so", "", "p")
        assert validate_response(Decision(findings=(found,)))["allowed"] is (code in MUTATION_CODES)
        assert mutate_response(Decision(findings=(found,)))["allowed"] is True


def test_copies_that_share_a_decision_get_their_own_uid_and_the_current_digest() -> None:
    decision = Decision(patch=(patch_add(("metadata", "labels"), {"a": "b"}),), policies=("p",))
    requests = [msgspec.structs.replace(request(), uid=uid) for uid in ("one", "two", 'quo"ted')]
    first, second, third = (json.loads(render_mutation(one, decision, "d1"))["response"] for one in requests)
    assert [answer.pop("uid") for answer in (first, second, third)] == [one.uid for one in requests]
    assert first == second == third
    later = json.loads(render_mutation(requests[0], decision, "d2"))["response"]
    assert later["auditAnnotations"]["digest"] == "d2"


def test_cached_responses_are_never_mixed_up() -> None:
    for number in range(3 * CACHE_ENTRIES):
        decision = Decision(patch=(patch_add(("metadata", "labels"), {"number": str(number)}),))
        patch = json.loads(base64.b64decode(mutate_response(decision)["patch"]))
        assert patch[0]["value"] == {"number": str(number)}
