"""/policies rejects an object with the errors of `policy lint` for the same file, and warns of one without effect."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from tests.builders import Json, make_node
from tests.example_cluster import view_of
from tests.policy.policy_texts import exception_text, policy_text
from tests.policy.test_validation import CASES, HEAD
from tests.server.site import NOW, encoded, review, serve_site
from webhook.cache.bundled_files import bundled_folder
from webhook.cache.snapshot import view_of_objects
from webhook.documents.reader import read_documents
from webhook.errors import DocumentError
from webhook.model.usage import UsageView
from webhook.policy.loader import load_policies
from webhook.server.admission_state import AdmissionState, PolicyLoadStatus
from webhook.server.policy_admission import ACCEPTED_SECONDS, PolicyAdmissionHandler
from webhook.telemetry.logs import make_logger
from webhook.telemetry.telemetry import Telemetry
from webhook.web.http_messages import HttpRequest

FILES = [(file.name, file.read_text()) for file in sorted(bundled_folder("policies").glob("*.yaml"))]
RULED = policy_text("classes", injection={"runtimeClassName": "nvidia"})
OF_THE_SERVER = {"uid": "1", "generation": 2, "resourceVersion": "7", "managedFields": [], "selfLink": "", "x": {}}


def state_with(*texts: str) -> AdmissionState:
    """Return the state with these policies active."""
    loaded = load_policies([(f"{number}.yaml", text) for number, text in enumerate(texts)])
    assert loaded.policies is not None, loaded.errors
    return AdmissionState(loaded.policies, view_of_objects(()), UsageView(), PolicyLoadStatus(NOW))


def of(data: Json, **request: Any) -> Json:
    """Return a review of a policy or exception."""
    kind = {"group": "rightslice.dev", "version": "v1alpha1", "kind": data["kind"]}
    resource = {"group": "rightslice.dev", "version": "v1alpha1", "resource": "gpupolicies"}
    name = data["metadata"].get("name", "")
    return review(data, kind=kind, resource=resource, name=name, namespace="", **request)


def answers(data: Json, *in_force: str, **request: Any) -> Json:
    """Return the response of the route."""
    with serve_site(state=state_with(*in_force)) as site:
        answer = site.evaluate(of(data, **request), "/policies")
    assert answer.status == 200, answer.body
    response: Json = answer.response
    return response


def response_lines(response: Json) -> list[str]:
    """Return the errors, without the first line."""
    if response["allowed"]:
        return []
    lines: list[str] = response["status"]["message"].splitlines()
    return lines[1:]


def whole(text: str) -> Json | None:
    """Return the single document of a text; None for invalid YAML or a missing value."""
    try:
        (document,) = read_documents(text, "p.yaml")
    except DocumentError:
        return None
    data: Json = json.loads(json.dumps(document.data))
    return None if "null" in json.dumps(data) else data


OBJECTS = {name: data for name, case in CASES.items() if (data := whole(HEAD + case.spec)) is not None}


def test_errors_are_those_of_lint() -> None:
    assert len(OBJECTS) > 40
    with serve_site(state=state_with()) as site:
        for name, data in OBJECTS.items():
            faults = load_policies([("p.yaml", HEAD + CASES[name].spec)]).errors
            response = site.evaluate(of(data), "/policies").response
            assert sorted(response_lines(response)) == sorted(f"[{one.code}] {one.message}" for one in faults), name


@pytest.mark.parametrize("file", [name for name, _ in FILES])
def test_every_shipped_policy_is_admitted_with_the_others(file: str) -> None:
    texts = dict(FILES)
    data = whole(texts[file])
    assert data is not None
    data["metadata"] |= OF_THE_SERVER

    response = answers(data, *texts.values())

    assert response.pop("warnings")[0].startswith(f"GPUPolicy {data['metadata']['name']} has the same name as one in")
    assert response == {"uid": "u-1", "allowed": True}


def test_the_message_has_the_object_and_the_number_of_errors() -> None:
    data = json.loads(policy_text("twice", mode="enforced", securty={}))

    message = answers(data)["status"]["message"]

    assert message == (
        "2 errors in GPUPolicy twice\n"
        "[GPU-P103] spec.mode: must be enforce, warn or audit, found 'enforced'. Write enforce\n"
        "[GPU-P102] spec.securty: must be a field of spec, found 'securty'. Did you mean security? Write security"
    )


def test_a_policy_that_contradicts_an_active_one_is_rejected() -> None:
    response = answers(json.loads(policy_text("other", injection={"runtimeClassName": "kata"})), RULED)

    assert response_lines(response) == [
        "[GPU-P104] spec.injection.runtimeClassName: must agree with policy 'classes', which may match the same "
        "pod, found 'kata' here in 'other' and 'nvidia' at 0.yaml:1:140. Write the same value in both, or make their "
        "matches disjoint"
    ]


def test_a_policy_may_contradict_its_previous_version() -> None:
    assert answers(json.loads(policy_text("classes", injection={"runtimeClassName": "kata"})), RULED)["allowed"]


def test_an_exception_needs_its_policy() -> None:
    data = json.loads(exception_text(policyName="class"))

    assert response_lines(answers(data, RULED)) == [
        "[GPU-P103] spec.policyName: must be the name of a policy in this set, found 'class'. Write classes"
    ]
    assert answers(data, policy_text("class"))["allowed"]


BROKEN = json.loads(policy_text("broken", mode="enforced"))
LEFT_ALONE = {
    "a deletion": {"operation": "DELETE", "object": None, "oldObject": BROKEN},
    "a status": {"operation": "UPDATE", "subResource": "status", "oldObject": BROKEN},
    "new labels only": {
        "operation": "UPDATE",
        "oldObject": BROKEN,
        "object": BROKEN | {"metadata": {"name": "broken", "labels": {"a": "b"}}},
    },
    "the last finalizer of a deleted object": {
        "operation": "UPDATE",
        "oldObject": json.loads(policy_text("broken")),
        "object": BROKEN | {"metadata": {"name": "broken", "deletionTimestamp": "2026-06-01T00:00:00Z"}},
    },
}


@pytest.mark.parametrize("request_", LEFT_ALONE.values(), ids=LEFT_ALONE)
def test_an_update_without_changes_of_the_spec_is_admitted(request_: Json) -> None:
    assert answers(BROKEN, **request_)["allowed"]


def test_a_generated_name_is_valid() -> None:
    data = json.loads(policy_text("x")) | {"metadata": {"generateName": "trial-"}}

    assert answers(data)["allowed"]


def test_objects_of_other_kinds_are_rejected() -> None:
    with serve_site() as site:
        answer = site.evaluate(review(), "/policies")

    assert (answer.status, answer.json) == (
        400,
        {"error": "request.kind must be a kind of rightslice.dev: GPUPolicy, GPUPolicyException"},
    )


def mine(name: str, **spec: Any) -> Json:
    """Return a policy as data."""
    data: Json = json.loads(policy_text(name, **spec))
    return data


KATA, NVIDIA = {"injection": {"runtimeClassName": "kata"}}, {"injection": {"runtimeClassName": "nvidia"}}


def handler_of(*texts: str) -> tuple[PolicyAdmissionHandler, list[float]]:
    """Return a handler with these policies active, and its clock, which a test sets."""
    now = [0.0]
    telemetry = Telemetry(make_logger("info", io.StringIO()))
    return PolicyAdmissionHandler(state_with(*texts), telemetry, seconds=lambda: now[0]), now


def is_accepted(handler: PolicyAdmissionHandler, data: Json, **request: Any) -> bool:
    """Return whether an object is accepted."""
    body = encoded(of(data, **request))
    answer = handler.handle(HttpRequest(body, "", 0.0, {}))
    return bool(json.loads(answer.body)["response"]["allowed"])


def test_of_two_contradicting_policies_applied_together_one_is_rejected() -> None:
    handler, now = handler_of()

    assert is_accepted(handler, mine("one", **KATA))
    assert not is_accepted(handler, mine("two", **NVIDIA)), "no watch has delivered the first"
    assert is_accepted(handler, mine("one", **NVIDIA)), "the author corrects the first"
    assert is_accepted(handler, mine("two", **NVIDIA))
    now[0] += ACCEPTED_SECONDS
    assert is_accepted(handler, mine("two", **KATA)), "nothing was ever delivered: another webhook rejected both"


def test_what_a_watch_delivers_replaces_what_was_accepted() -> None:
    handler, _ = handler_of(policy_text("one", **NVIDIA))
    assert is_accepted(handler, mine("one", **KATA))
    assert not is_accepted(handler, mine("two", **NVIDIA))

    handler.state.activate_policies(state_with(policy_text("one", mode="warn")).policies)
    assert is_accepted(handler, mine("two", **NVIDIA)), "a later change of the first was accepted by another replica"


def test_a_policy_that_was_delivered_and_deleted_rejects_no_other() -> None:
    handler, _ = handler_of(policy_text("first"))
    assert is_accepted(handler, mine("one", **KATA))

    handler.state.activate_policies(state_with(policy_text("first"), policy_text("later")).policies)
    assert not is_accepted(handler, mine("two", **NVIDIA)), "others were delivered"
    handler.state.activate_policies(state_with(policy_text("first"), policy_text("one", **KATA)).policies)
    handler.state.activate_policies(state_with(policy_text("first")).policies)
    assert is_accepted(handler, mine("two", **NVIDIA))


def test_a_dry_run_is_not_remembered() -> None:
    handler, _ = handler_of()

    assert is_accepted(handler, mine("one", **KATA), dryRun=True)
    assert is_accepted(handler, mine("two", **NVIDIA))


def test_an_exception_may_follow_its_policy_at_once() -> None:
    handler, _ = handler_of()

    assert not is_accepted(handler, json.loads(exception_text(policyName="classes")))
    assert is_accepted(handler, mine("classes", **KATA))
    assert is_accepted(handler, json.loads(exception_text(policyName="classes")))


NAMESPACES = [
    {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}
    for name, labels in {"team-a": {"tier": "gold"}, "ml": {}, "kube-system": {}}.items()
]
NODES = [make_node("n1", {"nvidia.com/gpu.product": "NVIDIA-H100"}, **{"nvidia.com/gpu": 8})]
WITHOUT_EFFECT: dict[str, tuple[Json, str]] = {
    "a namespace that does not exist": (
        {"namespaces": ["team-b", "x-*"]},
        "none of the cluster's 3 namespaces satisfies match",
    ),
    "only namespaces that are excluded by default": ({"namespaces": ["kube-system"]}, "excludes all of match.namesp"),
    "a label that no namespace has": (
        {"namespaceSelector": {"matchLabels": {"tier": "silver"}}},
        "none of the cluster's 3 namespaces satisfies match",
    ),
    "labels that exclude each other": (
        {"objectSelector": {"matchLabels": {"a": "b"}, "matchExpressions": [{"key": "a", "operator": "DoesNotExist"}]}},
        "no labels satisfy every expression of match.objectSelector",
    ),
    "a resource that no node offers": (
        {"resources": ["nvidia.com/mig-*"]},
        "match.resources has nvidia.com/mig-*, and the cluster's nodes offer nvidia.com/gpu",
    ),
    "a resource of another vendor": ({"resources": ["amd.com/gpu"]}, "match.resources must include a name of nvidia"),
    "a namespace that exists": ({"namespaces": ["team-*"]}, ""),
    "a label that a namespace has": ({"namespaceSelector": {"matchLabels": {"tier": "gold"}}}, ""),
    "a resource that nodes offer": ({"resources": ["nvidia.com/*"]}, ""),
    "labels that no pod has yet": ({"objectSelector": {"matchLabels": {"a": "b"}}}, ""),
}


@pytest.mark.parametrize(("match", "text"), WITHOUT_EFFECT.values(), ids=WITHOUT_EFFECT)
def test_a_policy_that_matches_nothing_is_accepted_with_a_warning(match: Json, text: str) -> None:
    state = state_with()
    state.view = view_of(*NAMESPACES, *NODES)
    with serve_site(state=state) as site:
        response = site.evaluate(of(mine("p", match=match, **KATA)), "/policies").response

    assert response["allowed"]
    warnings = response.get("warnings", [])
    assert len(warnings) == bool(text)
    assert all(text in warning and len(warning) <= 256 for warning in warnings)


def test_limits_that_no_pod_can_satisfy_together_are_accepted_with_a_warning() -> None:
    def only(count: int) -> Json:
        return {"mode": "enforce", "limits": {"perPod": [{"resource": "nvidia.com/gpu", "allowed": [count]}]}}

    response = answers(mine("b", **only(2)), policy_text("a", **only(1)))

    assert response["allowed"]
    assert "limits.perPod allows 2 in b and 1 in a" in response["warnings"][0]
    assert "warnings" not in answers(mine("b", **only(1)), policy_text("a", **only(1)))


def test_a_policy_object_may_have_the_name_of_another_object() -> None:
    with serve_site(state=state_with()) as site:
        loaded = load_policies([("GPUPolicy/classes", RULED)])
        assert loaded.policies is not None
        site.server.state.policies = loaded.policies
        assert "warnings" not in site.evaluate(of(mine("classes", **KATA)), "/policies").response
