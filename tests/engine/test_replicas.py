"""Replicas of a workload are charged to quotas one after another, as the API server creates them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.builders import Json, PodMaker, make_namespace, make_pod
from tests.engine.test_workload_review import workload
from tests.example_cluster import codes, mig_node, review, view_of, whole_node
from webhook.model.decisions import Decision

LIMITS = "mode: enforce\nlimits: {resourceQuotas: evaluate}"
GPU_KEY = "requests.nvidia.com/gpu"


def quota(hard: dict[str, Any], used: dict[str, Any], name: str = "gpus", **spec: Any) -> Json:
    amounts = {key: str(amount) for key, amount in hard.items()}
    status = {"hard": amounts, "used": {key: str(amount) for key, amount in used.items()}}
    metadata = {"name": name, "namespace": "team"}
    return {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": metadata, "spec": {"hard": amounts} | spec,
            "status": status}  # fmt: skip


def shared(milli: int, mode: str = "enforce") -> str:
    selector = "namespaceSelector: {matchLabels: {tier: research}}"
    return f"mode: {mode}\nquotas: {{shared: [{{name: lab, gpuMilli: {milli}, {selector}}}]}}"


def evaluate(data: Json, *texts: str, quotas: tuple[Json, ...] = (), **fields: Any) -> Decision:
    nodes = (whole_node(f"whole-{number}") for number in range(13))
    view = view_of(make_namespace("team", tier="research"), *nodes, *quotas)
    return review(data, *texts, view=view, **fields)


def deployment(replicas: int, pod: PodMaker | None = None) -> Json:
    return workload("Deployment", pod or make_pod().gpus(1), replicas=replicas)


def job_set(*counts: int) -> Json:
    """Return a JobSet with one job of each parallelism."""
    template = deployment(1)["spec"]["template"]
    jobs = [{"name": f"j{index}", "template": {"spec": {"parallelism": count, "completions": count,
             "template": template}}} for index, count in enumerate(counts)]  # fmt: skip
    metadata = {"name": "set", "namespace": "team"}
    return {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": metadata,
            "spec": {"replicatedJobs": jobs}}  # fmt: skip


SIX_FREE = (quota({GPU_KEY: 8}, {GPU_KEY: 2}),)
CASES: dict[str, tuple[Json, str, tuple[Json, ...], list[str]]] = {
    "all replicas fit": (deployment(6), LIMITS, SIX_FREE, []),
    "six of a hundred fit": (deployment(100), LIMITS, SIX_FREE, ["6 of 100 pods would be admitted"]),
    "two GPUs each": (deployment(4, make_pod().gpus(2)), LIMITS, SIX_FREE, ["3 of 4 pods would be admitted"]),
    "the first is rejected": (deployment(9, make_pod().gpus(7)), LIMITS, SIX_FREE, ["its pods will be denied"]),
    "pods are counted": (deployment(5), LIMITS, (quota({"pods": 4}, {"pods": 1}),), ["3 of 5 pods would be admitted"]),
    "the tightest of two quotas": (
        deployment(9),
        LIMITS,
        (*SIX_FREE, quota({"pods": 4}, {"pods": 0}, "count")),
        ["4 of 9 pods would be admitted"],
    ),
    "a quota of other pods": (
        deployment(9),
        LIMITS,
        (quota({GPU_KEY: 4}, {GPU_KEY: 0}, scopes=["Terminating"]),),
        [],
    ),
    "parallel pods of a Job": (
        workload("Job", make_pod().gpus(1), "batch/v1", parallelism=10, completions=7),
        LIMITS,
        SIX_FREE,
        ["6 of 7 pods would be admitted"],
    ),
    "templates one after another": (job_set(4, 4), LIMITS, SIX_FREE, ["2 of 4 pods would be admitted"]),
    "the second template finds nothing left": (job_set(6, 4), LIMITS, SIX_FREE, ["its pods will be denied"]),
    "a shared quota": (deployment(100), shared(6000), (), ["6 of 100 pods would be admitted"]),
    "a shared quota that the first uses up": (deployment(2), shared(1000), (), ["1 of 2 pods would be admitted"]),
    "an audited shared quota": (deployment(100), shared(6000, "audit"), (), ["6 of 100 pods would be admitted"]),
}


@pytest.mark.parametrize(("data", "text", "quotas", "want"), CASES.values(), ids=CASES)
def test_replicas_beyond_a_quota_are_reported(data: Json, text: str, quotas: tuple[Json, ...], want: list[str]) -> None:
    findings = [each for each in evaluate(data, text, quotas=quotas).findings if each.code in ("GPU-Q301", "GPU-Q303")]

    assert [each.message.partition(":")[0].partition(", then")[0] for each in findings] == want


def test_the_finding_has_the_message_of_the_first_rejected_pod() -> None:
    [found] = evaluate(deployment(100), LIMITS, quotas=SIX_FREE).findings

    assert found.message == (
        f"6 of 100 pods would be admitted, then: exceeded quota: gpus, requested: {GPU_KEY}=1, used: {GPU_KEY}=8, "
        f"limited: {GPU_KEY}=8; 0 would fit"
    )
    assert found.fix == "Run at most 6 of them at once, wait until other pods end, or ask for a higher quota."
    assert found.denies_pods


def test_replicas_that_get_another_resource_when_a_quota_is_full_are_counted_too() -> None:
    slices = "requests.nvidia.com/mig-1g.10gb"
    quotas = (quota({GPU_KEY: 3, slices: 2}, {GPU_KEY: 0, slices: 0}),)
    view = view_of(make_namespace("team"), whole_node(), mig_node(), *quotas)
    sizing = "mode: enforce\nlimits: {resourceQuotas: evaluate}\nrightSizing: {}"

    decision = review(deployment(100, make_pod().gpus(1).needs("8Gi")), sizing, view=view)

    messages = {each.code: each.message for each in decision.findings}
    assert messages["GPU-R101"].startswith("2 of its 100 pods will be right-sized to nvidia.com/mig-1g.10gb")
    others = "a quota admits no more of these: of the others, 3 will keep the request, 95 will be rejected"
    assert messages["GPU-R101"].endswith(others)
    assert messages["GPU-Q301"].startswith("5 of 100 pods would be admitted")
    assert decision.gpu_milli_before - decision.gpu_milli_after == 2 * (1000 - 143)


def test_an_audited_shared_quota_does_not_hide_the_namespaces_own() -> None:
    decision = evaluate(deployment(9), LIMITS, shared(2000, "audit"), quotas=SIX_FREE)

    assert codes(decision) == ["warn GPU-Q301", "audit GPU-Q303"]
    assert [each.message[:6] for each in decision.findings] == ["6 of 9", "2 of 9"]


def test_a_scaled_workload_is_charged_for_its_new_pods() -> None:
    quotas, before = (quota({GPU_KEY: 8}, {GPU_KEY: 5}),), deployment(5)
    same = evaluate(before, LIMITS, quotas=quotas, operation="UPDATE", load_old_object=lambda: before)
    more = evaluate(deployment(10), LIMITS, quotas=quotas, operation="UPDATE", load_old_object=lambda: before)

    assert codes(same) == []
    assert [each.message[:6] for each in more.findings] == ["3 of 5"]


def test_pods_that_are_denied_save_nothing_when_their_workload_is_changed() -> None:
    pod = make_pod().gpus(1).needs("8Gi")
    pod.main["securityContext"] = {"privileged": True}
    data = deployment(4, pod)
    policy = "mode: enforce\nsecurity: {deny: [privileged]}\nrightSizing: {}"
    view = view_of(make_namespace("team"), whole_node(), mig_node(), *SIX_FREE)

    for operation in ("CREATE", "UPDATE"):
        decision = review(data, policy, view=view, operation=operation, load_old_object=lambda: data)
        assert any(each.denies_pods for each in decision.findings)
        assert (decision.gpu_milli_before, decision.gpu_milli_after) == (4000, 4000)


def test_the_old_object_is_read_once_however_many_templates_it_has() -> None:
    before = job_set(*[1] * 20)
    reads: list[Json] = []

    def read() -> Json:
        reads.append(before)
        return before

    evaluate(before, LIMITS, operation="UPDATE", load_old_object=read)

    assert len(reads) == 1


def test_a_template_scaled_down_frees_no_shared_quota_for_the_next() -> None:
    before = job_set(4, 0)
    decision = evaluate(job_set(1, 7), shared(6000), operation="UPDATE", load_old_object=lambda: before)

    assert [each.message[:6] for each in decision.findings] == ["6 of 7"]


@given(
    replicas=st.integers(2, 40),
    amounts=st.tuples(st.integers(1, 4), st.integers(1, 3000)),
    free=st.tuples(st.integers(0, 60), st.integers(0, 60_000)),
    used=st.integers(0, 5),
)
def test_the_count_is_that_of_pods_created_one_by_one(
    replicas: int, amounts: tuple[int, int], free: tuple[int, int], used: int
) -> None:
    (gpus, cpu), (free_gpus, free_cpu) = amounts, free
    pod = make_pod().gpus(gpus).requests("cpu", f"{cpu}m")
    hard = {GPU_KEY: used + free_gpus, "requests.cpu": f"{used * 1000 + free_cpu}m"}
    quotas = (quota(hard, {GPU_KEY: used, "requests.cpu": used}),)

    decision = evaluate(deployment(replicas, pod), LIMITS, quotas=quotas)

    findings = [each for each in decision.findings if each.code == "GPU-Q301"]
    admitted = 0
    while admitted < replicas and (admitted + 1) * gpus <= free_gpus and (admitted + 1) * cpu <= free_cpu:
        admitted += 1
    want = [] if admitted == replicas else ["its pods"] if not admitted else [f"{admitted} of "]
    assert [each.message[: len(start)] for each, start in zip(findings, want, strict=True)] == want
