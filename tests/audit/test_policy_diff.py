"""The effect of a policy change on each pod."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import orjson

from tests.audit.test_pod_audit import NODE, context_of, running
from tests.builders import Json, make_pod
from tests.console.conftest import demo_flags
from tests.example_cluster import policies_of, policy
from webhook.audit.object_files import SkippedDocument, SourceObject, parse_objects, read_objects
from webhook.audit.pod_audit import audit_pod, compare_pod, is_active_pod, without_right_sizing
from webhook.audit.policy_diff import (
    PodPolicyDiff,
    WorkloadPolicyDiff,
    compare_policies,
    policy_diff_document,
    policy_diff_table,
    policy_diffs_by_workload,
)
from webhook.cache.bundled_files import bundled_folder
from webhook.cache.snapshot import view_of_objects
from webhook.cli.console_inputs import ConsoleReader
from webhook.errors import SourceLocation
from webhook.report.results import CheckResult

MOST = "mode: enforce\nlimits: {{perPod: [{{resource: nvidia.com/gpu, max: {}}}]}}"
TOLERATES = "mode: enforce\ninjection: {tolerations: [{key: team, operator: Exists}]}"


def compared(old: Sequence[str], new: Sequence[str], *pods: Json) -> list[PodPolicyDiff]:
    """Compare policies with these specs, old and new."""
    items = {"apiVersion": "v1", "kind": "List", "items": [NODE, *pods]}
    found = list(parse_objects("f.json", orjson.dumps(items)))
    view = view_of_objects((each.data, each.locate()) for each in found if isinstance(each, SourceObject))
    before, after = (policies_of(*(policy(spec, f"p{i}") for i, spec in enumerate(specs))) for specs in (old, new))
    context = msgspec.structs.replace(context_of(view), policies=before)
    return [each for each in compare_policies(found, context, after) if isinstance(each, PodPolicyDiff)]


def test_tighter_limit_denies_and_a_wider_one_allows() -> None:
    pods = [running("a", 1), running("b", 3)]
    [_, tighter] = compared([MOST.format(4)], [MOST.format(2)], *pods)
    assert (tighter.denied, tighter.allowed, tighter.patched, tighter.codes) == (True, False, False, ("GPU-L103",))
    [_, wider] = compared([MOST.format(2)], [MOST.format(4)], *pods)
    assert (wider.denied, wider.allowed, wider.codes) == (False, True, ("GPU-L103",))


def test_same_policies_change_nothing() -> None:
    specs = [MOST.format(2), TOLERATES]
    assert not [each for each in compared(specs, specs, running("a", 1), running("b", 3)) if each.differs]


def test_added_field_is_patched_differently() -> None:
    [found] = compared([MOST.format(2)], [MOST.format(2), TOLERATES], running("a", 1))
    assert (found.denied, found.allowed, found.patched) == (False, False, True)


def test_different_digest_alone_is_not_a_change() -> None:
    """Our record has the digest of all policies, including those that do not match the pod."""
    [bare, noted] = compared(
        [TOLERATES],
        [TOLERATES, "mode: audit\nlimits: {perPod: [{resource: nvidia.com/gpu, max: 8}]}"],
        running("a", 1),
        make_pod("b").gpus(1).annotate("team", "vision").build(),
    )
    assert not bare.differs
    assert not noted.differs


def test_invalid_document_is_returned() -> None:
    context = context_of(view_of_objects(()))
    [fault] = compare_policies(
        [SkippedDocument(SourceLocation("a"), "gone", invalid=True), SkippedDocument(SourceLocation("b"), "no object")],
        context,
        policies_of(),
    )
    assert isinstance(fault, CheckResult)
    assert fault.invalid


def one(workload: str, kind: str, milli: int = 0) -> PodPolicyDiff:
    return PodPolicyDiff("team", workload, kind == "denied", kind == "allowed", kind == "patched", ("GPU-L103",), milli)


def test_changes_are_summed_by_workload() -> None:
    found = policy_diffs_by_workload(
        [one("Job/a", "denied"), one("Job/b", "denied"), one("Job/b", "denied"), one("Job/a", "patched", 857)]
    )
    assert found == [
        WorkloadPolicyDiff("denied", "team", "Job/b", 2, ("GPU-L103",), 0),
        WorkloadPolicyDiff("denied", "team", "Job/a", 1, ("GPU-L103",), 0),
        WorkloadPolicyDiff("patched", "team", "Job/a", 1, ("GPU-L103",), 857),
    ]
    assert list(policy_diff_table(["research: changed"], found)) == [
        "research: changed",
        "  newly denied         3 pods  team/Job/b (2) GPU-L103, team/Job/a GPU-L103",
        "  newly allowed        0 pods",
        "  patched differently  1 pod  team/Job/a GPU-L103",
        "  newly warned         0 pods",
        "  GPUs                 0.86 less for pods that are patched differently",
        "Newly denied pods keep running; they would be denied when they are created again.",
    ]
    assert [len(each) for each in policy_diff_document([], found).values()] == [0, 2, 0, 1, 0]


def test_new_warnings_have_their_codes() -> None:
    wary = MOST.format(2).replace("enforce", "warn")
    before, after = [MOST.format(8)], [MOST.format(8), wary]
    small, large = compared(before, after, running("a", 1), running("b", 3))
    assert (small.differs, large.warned, large.differs) == (False, ("GPU-L103",), True)
    assert (large.denied, large.allowed, large.patched) == (False, False, False)
    [again] = compared(after, after, running("b", 3))
    assert not again.differs
    [refused] = compared([wary], [MOST.format(2)], running("b", 3))
    assert (refused.denied, refused.warned) == (True, ())
    found = policy_diffs_by_workload([large])
    assert list(policy_diff_table([], found))[3] == f"  newly warned         1 pod  team/{found[0].workload} GPU-L103"
    assert [change["codes"] for change in policy_diff_document([], found)["newlyWarned"]] == [["GPU-L103"]]


def test_gpus_of_an_admitted_and_patched_pod_count_once() -> None:
    lines = list(
        policy_diff_table([], policy_diffs_by_workload([PodPolicyDiff("team", "Job/a", False, True, True, (), 857)]))
    )
    assert lines[-1] == "  GPUs                 0.86 less for pods that are patched differently"


def test_table_names_a_few_and_counts_the_rest() -> None:
    lines = list(policy_diff_table([], policy_diffs_by_workload(one(f"Job/{i}", "allowed") for i in range(9))))
    assert lines[1].endswith("team/Job/4 GPU-L103, 4 more")


def test_a_comparison_decides_as_the_audit_does() -> None:
    """Of every pod of the example cluster, of its static twin, and of a pod that is invalid."""
    context = ConsoleReader(demo_flags()).read().context
    unsized = without_right_sizing(context.policies)
    pods = [
        each
        for each in read_objects([str(bundled_folder("examples") / "cluster")])
        if isinstance(each, SourceObject) and is_active_pod(each.data)
    ]
    pods += [msgspec.structs.replace(each, data=static_twin(each.data)) for each in pods]
    pods.append(msgspec.structs.replace(pods[0], data=pods[0].data | {"spec": 1}))

    saving = 0
    for each in pods:
        [compared], audited = compare_pod(each, [context], [unsized]), audit_pod(each, context, unsized)
        assert decision_of(compared) == decision_of(audited)
        saving += compared.decision.gpu_milli_after < compared.decision.gpu_milli_before
    assert saving


def static_twin(pod: Json) -> Json:
    annotations = {"kubernetes.io/config.mirror": "x", "kubernetes.io/config.source": "file"}
    return pod | {"metadata": pod["metadata"] | {"annotations": annotations}}


def decision_of(result: CheckResult) -> tuple[object, ...]:
    """Return what a comparison uses."""
    decision = result.decision
    saved = decision.gpu_milli_before - decision.gpu_milli_after
    return result.verdict, result.namespace, result.workload, result.findings, decision.patch, saved
