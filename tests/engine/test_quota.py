"""ResourceQuotas: predicted rejections, their messages, and coverage of rewrites."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from tests.builders import Json, PodMaker, make_pod
from webhook.engine.quota.admission import predict_resize_refusals, predict_update_refusals
from webhook.engine.quota.charges import HoldsAtMost, escapes_quota, find_full_quota
from webhook.engine.quota.findings import quota_violations, update_quota_violations
from webhook.model.defaulting import apply_defaults
from webhook.model.limit_ranges import NO_LIMIT_RANGES
from webhook.model.objects import ResourceQuota
from webhook.model.pod_summary import summarize_pod
from webhook.model.pods import parse_pod
from webhook.model.quota_matching import CountedResource
from webhook.model.remaining_quota import QuotaConsumer, list_quota_consumers

GPU, SLICE = "nvidia.com/gpu", "nvidia.com/mig-1g.10gb"
CLASS = "deviceclass.resource.kubernetes.io/a"


def quota(hard: dict[str, str], used: dict[str, str] | None = None, **spec: Any) -> ResourceQuota:
    """Return a quota whose usage the controller has counted."""
    data = {
        "metadata": {"name": "team"},
        "spec": {"hard": hard} | spec,
        "status": {"hard": hard, "used": used or {}},
    }
    return msgspec.convert(data, ResourceQuota)


def quota_messages(limit: ResourceQuota, pod: PodMaker, *others: PodMaker) -> list[str]:
    """Return the messages about a pod, in a namespace with other pods."""
    read = parse_pod(pod.build())
    pods = {other.data["metadata"]["name"]: summarize_pod(parse_pod(other.build())) for other in others}

    def held(quota: ResourceQuota, what: CountedResource) -> Sequence[QuotaConsumer]:
        return list_quota_consumers(quota, what, pods)

    return [violation.message for violation in quota_violations(read, apply_defaults(read), [limit], held)]


FULL = "exceeded quota: team, requested: requests.nvidia.com/gpu={}, used: requests.nvidia.com/gpu={}, "
SAID = {
    "enough left": (quota({f"requests.{GPU}": "4"}, {f"requests.{GPU}": "1"}), make_pod().gpus(3), ""),
    "too many, some would fit": (
        quota({f"requests.{GPU}": "32"}, {f"requests.{GPU}": "31"}),
        make_pod().gpus(3),
        FULL.format(3, 31) + "limited: requests.nvidia.com/gpu=32; 1 would fit",
    ),
    "full": (
        quota({f"requests.{GPU}": "1"}, {f"requests.{GPU}": "1"}),
        make_pod().gpus(1),
        FULL.format(1, 1) + "limited: requests.nvidia.com/gpu=1; 0 would fit",
    ),
    "already exceeded": (
        quota({f"requests.{GPU}": "1"}, {f"requests.{GPU}": "3"}),
        make_pod().gpus(1),
        FULL.format(1, 3) + "limited: requests.nvidia.com/gpu=1; 0 would fit",
    ),
    "zero is never rejected": (quota({f"requests.{GPU}": "0"}, {f"requests.{GPU}": "3"}), make_pod().gpus(0), ""),
    "limits. keys are never enforced": (quota({f"limits.{GPU}": "0"}), make_pod().gpus(1), ""),
    "bare keys are never enforced": (quota({GPU: "0"}), make_pod().gpus(1), ""),
    "an unreadable limit is ignored": (quota({f"requests.{GPU}": "many"}), make_pod().gpus(1), ""),
    "pods are counted": (
        quota({"pods": "2"}, {"pods": "2"}),
        make_pod(),
        "exceeded quota: team, requested: pods=1, used: pods=2, limited: pods=2; 0 would fit",
    ),
    "CPU must be set where it is counted": (
        quota({"limits.cpu": "8", "requests.memory": "8Gi"}, {"limits.cpu": "0", "requests.memory": "0"}),
        make_pod().container("side"),
        "failed quota: team: must specify limits.cpu for: main,side; requests.memory for: main,side",
    ),
    "the pod level sets it for all containers": (
        quota({"limits.cpu": "8"}, {"limits.cpu": "0"}),
        make_pod().spec(resources={"limits": {"cpu": "1"}}),
        "",
    ),
    "not counted yet": (
        quota({f"requests.{GPU}": "8", "pods": "1"}, {"pods": "0"}),
        make_pod(),
        "status unknown for quota: team, resources: pods,requests.nvidia.com/gpu",
    ),
    "overhead counts": (
        quota({"requests.cpu": "1"}, {"requests.cpu": "0"}),
        make_pod().requests("cpu", "1").spec(overhead={"cpu": "250m"}),
        "exceeded quota: team, requested: requests.cpu=1250m, used: requests.cpu=0, limited: requests.cpu=1; "
        "1 would fit",
    ),
    "a device class by its own name": (
        quota(
            {"requests.deviceclass.resource.kubernetes.io/a": "1"},
            {"requests.deviceclass.resource.kubernetes.io/a": "1"},
        ),
        make_pod().requests("deviceclass.resource.kubernetes.io/a", "1"),
        f"exceeded quota: team, requested: requests.{CLASS}=1, used: requests.{CLASS}=1, limited: requests.{CLASS}=1; "
        "0 would fit",
    ),
    "best effort depends only on CPU and memory": (
        quota({f"requests.{GPU}": "0"}, {f"requests.{GPU}": "0"}, scopes=["BestEffort"]),
        make_pod().gpus(1).requests("cpu", "0"),
        FULL.format(1, 0) + "limited: requests.nvidia.com/gpu=0; 0 would fit",
    ),
}


@pytest.mark.parametrize(("limit", "pod", "words"), SAID.values(), ids=SAID)
def test_messages(limit: ResourceQuota, pod: PodMaker, words: str) -> None:
    read = dict(limit.status.used) or dict.fromkeys(limit.spec.hard, "0")
    counted = msgspec.structs.replace(limit, status=msgspec.structs.replace(limit.status, used=read))
    assert quota_messages(counted, pod) == ([words] if words else [])


FITS = "Request at most what would fit, or wait until another pod ends."
RAISED = "ask for a higher quota, or use another namespace."
ADVICE = {
    "some would fit": (quota({"pods": "9", "requests.cpu": "4"}, {"pods": "0", "requests.cpu": "1"}), "4", FITS),
    "none would fit": (
        quota({"requests.cpu": "4"}, {"requests.cpu": "4"}),
        "4",
        "Wait until another pod of the namespace ends.",
    ),
    "a limit of zero": (
        quota({"requests.cpu": "0"}, {"requests.cpu": "0"}),
        "4",
        f"Ending other pods is not enough: {RAISED}",
    ),
    "more than the limit": (
        quota({"requests.cpu": "2"}, {"requests.cpu": "0"}),
        "4",
        f"Request at most what would fit, {RAISED}",
    ),
    "more than the limit, and nothing is left": (
        quota({"requests.cpu": "2"}, {"requests.cpu": "2"}),
        "4",
        f"Ending other pods is not enough: {RAISED}",
    ),
    "more than the limit of one key": (
        quota({"pods": "0", "requests.cpu": "9"}, {"pods": "0", "requests.cpu": "8"}),
        "4",
        f"Request at most what would fit, {RAISED}",
    ),
}


@pytest.mark.parametrize(("limit", "cpu", "want"), ADVICE.values(), ids=ADVICE)
def test_the_fix_suggests_waiting_only_if_it_can_help(limit: ResourceQuota, cpu: str, want: str) -> None:
    read = parse_pod(make_pod().requests("cpu", cpu).build())
    (violation,) = quota_violations(read, apply_defaults(read), [limit], lambda *_: ())
    assert violation.fix == want


@pytest.mark.parametrize(
    ("before", "want"),
    [("1", "Wait until another pod of the namespace ends."), ("3", f"Ending other pods is not enough: {RAISED}")],
    ids=["others use the rest", "it uses all itself"],
)
def test_own_usage_is_not_released_for_a_resize(before: str, want: str) -> None:
    old, new = (parse_pod(make_pod().requests("cpu", cpu).build()) for cpu in (before, str(int(before) + 1)))
    limit = quota({"requests.cpu": "3"}, {"requests.cpu": "3"})
    (violation,) = update_quota_violations(old, new, "resize", [limit], lambda *_: (), NO_LIMIT_RANGES)
    assert violation.fix == want


def test_consumers_are_named_largest_first() -> None:
    full = quota({f"requests.{GPU}": "9"}, {f"requests.{GPU}": "9"})
    others = [make_pod("idle"), *[make_pod(name).gpus(n) for name, n in (("a", 1), ("b", 4), ("c", 2), ("d", 2))]]
    (message,) = quota_messages(full, make_pod().gpus(1), *others)
    assert message.endswith("; used by b (4), c (2), d (2) and 1 more")


def test_consumers_of_every_exceeded_key_are_named() -> None:
    hard = {f"requests.{GPU}": "2", "requests.nvidia.com/mig-1g.10gb": "1"}
    others = make_pod("a").gpus(2), make_pod("b").requests("nvidia.com/mig-1g.10gb", "1")
    pod = make_pod().gpus(1).requests("nvidia.com/mig-1g.10gb", "1")
    (message,) = quota_messages(quota(hard, hard), pod, *others)
    assert message.endswith("; requests.nvidia.com/gpu used by a (2); requests.nvidia.com/mig-1g.10gb used by b (1)")


UPDATES = {
    "no change of quotas": (None, None, False),
    "a deadline moves it into a full quota": (None, 60, True),
    "out of a full quota": (60, None, False),
    "a shorter deadline": (60, 30, False),
}


@pytest.mark.parametrize(("before", "after", "refused"), UPDATES.values(), ids=UPDATES)
def test_an_update_is_charged_if_it_moves_between_quotas(before: int | None, after: int | None, refused: bool) -> None:
    full = quota({f"requests.{GPU}": "1"}, {f"requests.{GPU}": "1"}, scopes=["Terminating"])
    old, new = (parse_pod(make_pod().gpus(1).spec(activeDeadlineSeconds=end).build()) for end in (before, after))
    found = predict_update_refusals(old, new, apply_defaults(old), apply_defaults(new), [full])
    assert bool(found) is refused


RESIZES = {
    "it grows within the remaining quota": ("2", "3", []),
    "it grows beyond the remaining quota": (
        "2",
        "4",
        ["requested: requests.cpu=2, used: requests.cpu=8, limited: requests.cpu=9"],
    ),
    "it shrinks in an exceeded quota": ("9", "1", []),
}


@pytest.mark.parametrize(("before", "after", "want"), RESIZES.values(), ids=RESIZES)
def test_a_resize_is_charged_for_what_it_adds(before: str, after: str, want: list[str]) -> None:
    full = quota({"requests.cpu": "9"}, {"requests.cpu": "8"})
    old, new = (apply_defaults(parse_pod(make_pod().requests("cpu", amount).build())) for amount in (before, after))
    found = predict_resize_refusals(parse_pod(make_pod().build()), old, new, [full])
    assert [one.message.removeprefix("exceeded quota: team, ") for one in found] == want


NAMELESS = make_pod().gpus(1).build()
NAMED = make_pod().gpus(1).requests("cpu", "1").build()
LATE = {
    "a container sets no CPU": (NAMELESS, {}, ["failed quota: team: must specify requests.cpu for: main"]),
    "every container sets CPU": (NAMED, {}, []),
    "the quota does not match": (NAMELESS, {"scopes": ["Terminating"]}, []),
}


@pytest.mark.parametrize(("pod", "scope", "want"), LATE.values(), ids=LATE)
def test_a_quota_created_after_the_pod_checks_its_form(pod: Json, scope: Json, want: list[str]) -> None:
    late = quota({"requests.cpu": "9"}, {"requests.cpu": "9"}, **scope)
    old, ending = parse_pod(pod), parse_pod(pod | {"spec": pod["spec"] | {"activeDeadlineSeconds": 60}})
    held = apply_defaults(old)

    assert [one.message for one in predict_resize_refusals(old, held, held, [late])] == want
    assert [one.message for one in predict_update_refusals(ending, old, held, held, [late])] == want
    assert predict_update_refusals(old, old, held, held, [late]) == [], (
        "only adding or removing a deadline matters to quotas"
    )


ESCAPES = {
    "nothing counted: nothing to escape": ([], False),
    "source counted, target not": ([quota({f"requests.{GPU}": "8"})], True),
    "both counted, enough left": ([quota({f"requests.{GPU}": "8", f"requests.{SLICE}": "1"})], False),
    "both counted, nothing left": (
        [quota({f"requests.{GPU}": "8", f"requests.{SLICE}": "1"}, {f"requests.{SLICE}": "1"})],
        False,
    ),
    "counted in two quotas of different scope": (
        [quota({f"requests.{GPU}": "8"}), quota({f"requests.{SLICE}": "8"})],
        True,
    ),
    "a quota that counts pods without CPU and memory": (
        [quota({f"requests.{GPU}": "8"}, scopes=["BestEffort"])],
        True,
    ),
    "a quota that does not match": ([quota({f"requests.{GPU}": "8"}, scopes=["Terminating"])], False),
}


@pytest.mark.parametrize(("quotas", "want"), ESCAPES.values(), ids=ESCAPES)
def test_escapes_quota(quotas: list[ResourceQuota], want: bool) -> None:
    assert escapes_quota(quotas, parse_pod(make_pod().build()), GPU, SLICE) is want


WITHOUT_ROOM = {
    "nothing counted": ([], ""),
    "enough left": ([quota({f"requests.{SLICE}": "1"})], ""),
    "not enough left": ([quota({f"requests.{SLICE}": "1"}, {f"requests.{SLICE}": "1"})], "team"),
    "a limit of zero": ([quota({f"requests.{SLICE}": "0"})], "team"),
    "nothing left in one that does not match": ([quota({f"requests.{SLICE}": "0"}, scopes=["Terminating"])], ""),
}


def holding(units: int) -> HoldsAtMost:
    """Return what a view tells of pods that hold so many units."""
    return lambda _quota, most: units <= most


@pytest.mark.parametrize(("quotas", "want"), WITHOUT_ROOM.values(), ids=WITHOUT_ROOM)
def test_find_full_quota(quotas: list[ResourceQuota], want: str) -> None:
    assert find_full_quota(quotas, parse_pod(make_pod().build()), SLICE, holding(0)) == want


HELD = {
    "pods hold less than the quota has counted": (1, 0, ""),
    "pods hold as much as the quota has counted": (1, 1, ""),
    "pods hold the rest, which the quota has not counted yet": (0, 2, "team"),
    "the quota has counted pods that are not known here": (2, 0, "team"),
}


@pytest.mark.parametrize(("used", "held", "want"), HELD.values(), ids=HELD)
def test_what_pods_hold_counts_where_the_usage_of_a_quota_lags_behind(used: int, held: int, want: str) -> None:
    limit = quota({f"requests.{SLICE}": "2"}, {f"requests.{SLICE}": str(used)})
    assert find_full_quota([limit], parse_pod(make_pod().build()), SLICE, holding(held)) == want


def test_a_quota_is_full_for_a_pod_that_needs_more_units_than_are_left() -> None:
    limit = quota({f"requests.{SLICE}": "2"}, {f"requests.{SLICE}": "1"})
    pod = parse_pod(make_pod().build())
    assert [find_full_quota([limit], pod, SLICE, holding(0), units) for units in (1, 2)] == ["", "team"]


def test_a_quota_on_the_accounting_resource_covers_both_forms() -> None:
    both = quota({f"requests.{GPU}": "8", "requests.rightslice.dev/gpu-milli": "8000"})
    pod = parse_pod(make_pod().build())
    assert escapes_quota([both], pod, GPU, SLICE)
    assert not escapes_quota([both], pod, GPU, SLICE, accounted="rightslice.dev/gpu-milli")
