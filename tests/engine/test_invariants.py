"""Invariants of `decide`, for any pod, in several clusters, with several policies."""

from __future__ import annotations

import copy
from typing import Any

import jsonpatch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.builders import Json
from tests.engine.invariants import (
    ABOUT_PARTS,
    GPU,
    POLICIES,
    VIEWS,
    Scenario,
    all_pods,
    any_pods,
    containers_of,
    decision,
    everything,
    gpu_pods,
    scenarios,
)
from tests.example_cluster import policies_of
from webhook.engine.gpu_requests import gpu_requests_of_pod
from webhook.errors import ReviewError
from webhook.model.enums import PolicyMode
from webhook.model.gpu_resources import ACCOUNTING_RESOURCE
from webhook.model.pods import Pod, parse_pod
from webhook.model.quota_matching import quota_matches_pod
from webhook.report.object_diff import apply_json_patch

law = settings(max_examples=120)
TRIAL = policies_of(everything("audit"))
JUDGE, TRIAL_JUDGE = (policies_of(everything(mode, shapes=False)) for mode in ("enforce", "audit"))


def mutate(pod: Json, scenario: Scenario) -> Json:
    """Return the pod after its patch."""
    after: Json = apply_json_patch(pod, scenario.decide(pod).patch)
    return after


@law
@given(any_pods(), scenarios())
def test_a_second_and_a_third_pass_change_nothing(pod: Json, scenario: Scenario) -> None:
    once = mutate(pod, scenario)
    assert scenario.decide(once).patch == ()
    assert scenario.decide(copy.deepcopy(once)).patch == ()


@law
@given(any_pods(), scenarios())
def test_the_patch_only_adds_and_replaces_and_libraries_agree_on_the_result(pod: Json, scenario: Scenario) -> None:
    operations: Any = list(scenario.decide(pod).patch)
    assert {operation["op"] for operation in operations} <= {"add", "replace"}
    before = copy.deepcopy(pod)
    after = jsonpatch.apply_patch(pod, operations)
    assert after == apply_json_patch(pod, operations)
    assert pod == before
    assert isinstance(parse_pod(after), Pod)


OWNED_SPEC = ("tolerations", "topologySpreadConstraints", "runtimeClassName", "affinity")


def without_ours(pod: Json) -> Json:
    """Return a pod without the fields that Rightslice may change."""
    rest = copy.deepcopy(pod)
    for key in ("annotations", "labels"):
        rest["metadata"].pop(key, None)
    affinity = rest["spec"].get("affinity") or {}
    others = {key: value for key, value in affinity.items() if key not in ("nodeAffinity", "podAffinity")}
    for key in OWNED_SPEC:
        rest["spec"].pop(key, None)
    for _, _, container in containers_of(rest):
        resources = container.pop("resources", None) or {}
        container["resources"] = {
            key: value for key, value in resources.items() if key not in ("limits", "requests") and value is not None
        }
    rest["affinity"] = others
    return rest


@law
@given(any_pods(), scenarios())
def test_only_owned_fields_change(pod: Json, scenario: Scenario) -> None:
    assert without_ours(mutate(pod, scenario)) == without_ours(pod)


@law
@given(any_pods(), scenarios())
def test_user_fields_are_preserved(pod: Json, scenario: Scenario) -> None:
    after = mutate(pod, scenario)
    ours = {"rightslice.dev/decision", "rightslice.dev/original-resources"}
    for key in ("annotations", "labels"):
        had, has = pod["metadata"].get(key) or {}, after["metadata"].get(key) or {}
        assert {name: has.get(name) for name in had if name not in ours} == {
            name: value for name, value in had.items() if name not in ours
        }
    before, now = pod["spec"], after["spec"]
    for key in ("tolerations", "topologySpreadConstraints"):
        written = before.get(key) or []
        assert (now.get(key) or [])[: len(written)] == written
    assert now.get("runtimeClassName", "") == before["runtimeClassName"] if before.get("runtimeClassName") else True
    check_other_amounts(pod, after)


def check_other_amounts(pod: Json, after: Json) -> None:
    """Check that amounts of resources other than GPUs are unchanged."""
    for (_, _, had), (_, _, has) in zip(containers_of(pod), containers_of(after), strict=True):
        for side in ("limits", "requests"):
            written = (had.get("resources") or {}).get(side) or {}
            present = (has.get("resources") or {}).get(side) or {}
            kept = {name: amount for name, amount in written.items() if name not in (GPU, ACCOUNTING_RESOURCE)}
            assert {name: present.get(name) for name in kept} == kept


@law
@given(all_pods(), scenarios(), st.sampled_from(["CREATE", "UPDATE", "DELETE", "CONNECT"]))
def test_a_decision_is_returned_for_every_pod_that_can_be_parsed(pod: Json, scenario: Scenario, operation: str) -> None:
    try:
        parse_pod(pod)
    except ReviewError:
        assume(False)
    found = scenario.decide(pod, operation)
    assert operation == "CREATE" or found.patch == ()
    assert all(finding.message and str(finding) for finding in found.findings)


@law
@given(any_pods(), scenarios())
def test_gpu_milli_never_rises(pod: Json, scenario: Scenario) -> None:
    found = scenario.decide(pod)
    assert 0 <= found.gpu_milli_after <= found.gpu_milli_before
    assert scenario.decide(apply_json_patch(pod, found.patch)).gpu_milli_before <= found.gpu_milli_before


@law
@given(any_pods(), scenarios())
def test_mutation_never_makes_an_admissible_pod_inadmissible(pod: Json, scenario: Scenario) -> None:
    names = [container["name"] for _, _, container in containers_of(pod)]
    first = scenario.decide(pod)
    assume(not first.denials and len(set(names)) == len(names))
    again = scenario.decide(apply_json_patch(pod, first.patch))
    assert [str(finding) for finding in again.denials] == []


@law
@given(gpu_pods(), st.sampled_from(["free", "counted"]))
def test_right_sizing_triggers_no_other_policy_or_denial(pod: Json, view: str) -> None:
    first = decision(pod, VIEWS[view], ABOUT_PARTS)
    assume(not first.denials)
    again = decision(apply_json_patch(pod, first.patch), VIEWS[view], ABOUT_PARTS)
    assert [str(finding) for finding in again.denials] == []
    assert again.patch == ()
    assert set(again.policies) <= set(first.policies)


@law
@given(gpu_pods(), st.sampled_from(sorted(POLICIES)), st.sampled_from(["counted", "demo"]))
def test_a_counted_pod_never_bypasses_its_quota(pod: Json, policies: str, view: str) -> None:
    after = mutate(pod, Scenario(view, policies))
    namespace = pod["metadata"]["namespace"]
    for quota in VIEWS[view].quotas(namespace):
        hard = quota.status.hard or quota.spec.hard
        if (
            f"requests.{GPU}" in hard
            and quota_matches_pod(quota, parse_pod(pod))
            and GPU in gpu_requests_of_pod(parse_pod(pod)).totals
        ):
            assert quota_matches_pod(quota, parse_pod(after))
            totals = gpu_requests_of_pod(parse_pod(after)).totals
            assert all(
                f"requests.{name}" in hard for name in totals if name not in gpu_requests_of_pod(parse_pod(pod)).totals
            )


@law
@given(any_pods(), scenarios())
def test_required_affinity_only_narrows(pod: Json, scenario: Scenario) -> None:
    fleet = VIEWS[scenario.view].fleet

    def selected(data: Json) -> int:
        spec = parse_pod(data).spec
        node = spec.affinity.node_affinity if spec.affinity else None
        terms = node.required.node_selector_terms if node and node.required else None
        return fleet.select_nodes(spec.node_selector, terms)

    assert selected(mutate(pod, scenario)) & ~selected(pod) == 0


@law
@given(gpu_pods(), scenarios(), st.randoms(use_true_random=False))
def test_the_order_of_containers_does_not_change_the_codes(pod: Json, scenario: Scenario, random: Any) -> None:
    shuffled = copy.deepcopy(pod)
    random.shuffle(shuffled["spec"]["containers"])
    codes = {(finding.code, finding.mode) for finding in scenario.decide(pod).findings}
    assert {(finding.code, finding.mode) for finding in scenario.decide(shuffled).findings} == codes


@law
@given(any_pods(), st.sampled_from(sorted(VIEWS)))
def test_a_policy_in_audit_mode_patches_nothing_and_denies_nothing(pod: Json, view: str) -> None:
    found = decision(pod, VIEWS[view], TRIAL)
    assert found.patch == ()
    assert {finding.mode for finding in found.findings} <= {PolicyMode.AUDIT}


@law
@given(any_pods(), st.sampled_from(sorted(VIEWS)))
def test_a_policy_in_audit_mode_reports_its_rejections(pod: Json, view: str) -> None:
    """Except where an amount cannot be read that accounting would replace: the API server rejects such a pod."""
    found = [decision(pod, VIEWS[view], policies).findings for policies in (TRIAL_JUDGE, JUDGE)]
    unreadable = any(each.path[-1:] == (ACCOUNTING_RESOURCE,) for each in found[0])
    trial, enforced = ([each.code for each in findings] for findings in found)
    assert trial == enforced or unreadable
