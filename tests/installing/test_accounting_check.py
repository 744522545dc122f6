"""`accounting check`: results and advice for clusters with and without working accounting."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, NamedTuple

import pytest

from tests.builders import Json, make_node, make_pod
from tests.installing.test_doctor import HEALTHY, policy
from tests.policy.policy_texts import load_policy
from webhook.documents.reader import read_documents
from webhook.installing.accounting_check import QUOTA_KEY, AccountingFacts, accounting_results
from webhook.installing.facts import CheckState
from webhook.manifests.scheduler_config import second_scheduler_config
from webhook.model.gpu_resources import ACCOUNTING_RESOURCE

NATIVE: Json = {"mode": "enforce", "limits": {"accounting": "native"}}
CONFIGURED: Json = {"mode": "enforce", "limits": {"accounting": "native", "accountingScheduler": "configured"}}
QUOTA = {"metadata": {"name": "q", "namespace": "team"}, "spec": {"hard": {QUOTA_KEY: "8000"}}}
COUNTED = make_pod("tried").gpus(1).requests(ACCOUNTING_RESOURCE, "1000").build()
PLAIN = make_pod("tried").gpus(1).build()
GPUS = make_node("n1", {}, **{"nvidia.com/gpu": 8})
COUNTING = make_node("n2", {}, **{"nvidia.com/gpu": 8, ACCOUNTING_RESOURCE: 8_000_000})
SPACES: list[Json] = [{"metadata": {"name": "ml", "labels": {"gpus": "yes"}}}, {"metadata": {"name": "team"}}]
PENDING = f"0/2 nodes are available: 2 Insufficient {ACCOUNTING_RESOURCE}."


def pending_pod() -> Json:
    """A pod that waits for the resource."""
    conditions = [{"type": "PodScheduled", "status": "False", "message": PENDING}]
    return make_pod("stuck").requests(ACCOUNTING_RESOURCE, "1000").build() | {"status": {"conditions": conditions}}


def account_facts(running: list[Json] | None = None, dry_run: Json | str = COUNTED, **facts: Any) -> AccountingFacts:
    """A cluster with working accounting, except for the arguments."""
    well = {"policies": [policy(**CONFIGURED)], "quotas": [QUOTA], "nodes": [GPUS]}
    return AccountingFacts(replace(HEALTHY, **{**well, **facts}), running or [], dry_run, "team", SPACES)


class Case(NamedTuple):
    facts: AccountingFacts
    state: CheckState
    summary: str


CASES = {
    "a policy that adds it": Case(account_facts(), CheckState.OK, "1 policy adds rightslice.dev/gpu-milli"),
    "no policy that adds it": Case(account_facts(policies=[]), CheckState.WARN, "no GPUPolicy object adds it"),
    "accountingScheduler: configured": Case(account_facts(), CheckState.OK, "a policy says that schedulers ignore it"),
    "an unknown scheduler": Case(
        account_facts(policies=[policy(**NATIVE)]),
        CheckState.SKIP,
        "whether the scheduler ignores it cannot be read from any API",
    ),
    "a running pod shows that the scheduler ignores it": Case(
        account_facts(
            [make_pod("runs").requests(ACCOUNTING_RESOURCE, "500").spec(nodeName="n1").build()],
            policies=[policy(**NATIVE)],
        ),
        CheckState.OK,
        "the scheduler ignores it: a pod",
    ),
    "the second scheduler ignores it": Case(
        account_facts(policies=[policy(**NATIVE)], scheduler=json.dumps(second_scheduler_config())),
        CheckState.OK,
        "rightslice-scheduler ignores it",
    ),
    "a running pod on a node that advertises it": Case(
        account_facts(
            [make_pod("runs").requests(ACCOUNTING_RESOURCE, "500").spec(nodeName="n2").build()],
            policies=[policy(**NATIVE)],
            nodes=[COUNTING],
        ),
        CheckState.SKIP,
        "whether the scheduler ignores it cannot be read",
    ),
    "a pending pod in spite of accountingScheduler: configured": Case(
        account_facts(waiting=[pending_pod()]), CheckState.FAIL, "team/stuck is Pending"
    ),
    "a node that does not advertise it": Case(
        account_facts(nodes=[GPUS, COUNTING]), CheckState.SKIP, "1 of 2 GPU nodes do not advertise it"
    ),
    "nodes that advertise it": Case(account_facts(nodes=[COUNTING]), CheckState.OK, "1 GPU node advertises it"),
    "a dry-run pod gets it": Case(account_facts(), CheckState.OK, "a dry-run pod with one GPU in team gets"),
    "a dry-run pod does not get it": Case(
        account_facts(dry_run=PLAIN), CheckState.WARN, "a dry-run pod with one GPU in team does not get it"
    ),
    "no policy covers the namespace of the dry-run pod": Case(
        account_facts(
            dry_run=PLAIN,
            policies=[policy(**CONFIGURED, match={"namespaceSelector": {"matchLabels": {"gpus": "yes"}}})],
        ),
        CheckState.SKIP,
        "no policy adds it in team",
    ),
    "a policy covers the namespace but does not add it": Case(
        account_facts(dry_run=PLAIN, policies=[policy(**CONFIGURED, match={"namespaces": ["team"]})]),
        CheckState.WARN,
        "a dry-run pod with one GPU in team does not get it",
    ),
    "a rejected dry-run pod": Case(
        account_facts(dry_run="full"), CheckState.WARN, "a dry-run pod with one GPU in team was"
    ),
    "a dry-run pod rejected by a full quota": Case(
        account_facts(
            dry_run=(
                f"pods is forbidden: exceeded quota: gpus, requested: {QUOTA_KEY}=1000, "
                f"used: {QUOTA_KEY}=8000, limited: 8000"
            )
        ),
        CheckState.OK,
        f"a dry-run pod with one GPU in team was rejected by a full quota on {QUOTA_KEY}: the quota works",
    ),
    "a quota": Case(account_facts(), CheckState.OK, "1 namespace has a quota on requests.rightslice.dev/gpu-milli"),
    "no quota": Case(account_facts(quotas=[]), CheckState.WARN, "no quota on requests.rightslice.dev/gpu-milli"),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_lines(case: Case) -> None:
    found = [line for line in accounting_results(case.facts) if line.summary.startswith(case.summary)]
    assert [line.state for line in found] == [case.state]
    assert case.state in (CheckState.OK,) or all(line.advice for line in found)


def test_working_accounting_has_no_problem() -> None:
    assert {line.state for line in accounting_results(account_facts())} <= {CheckState.OK, CheckState.SKIP}


def test_advice_names_a_covered_namespace() -> None:
    elsewhere = account_facts(dry_run=PLAIN, policies=[policy(**CONFIGURED, match={"namespaces": ["ml*"]})])
    [line] = [line for line in accounting_results(elsewhere) if line.summary.startswith("no policy adds it in team")]

    assert line.advice == "check a namespace with such a policy: rightslice accounting check -n ml"


def test_unknown_namespaces_give_no_advice() -> None:
    elsewhere = account_facts(dry_run=PLAIN, policies=[policy(**CONFIGURED, match={"namespaces": ["ml"]})])

    assert "does not get it" in " ".join(line.summary for line in accounting_results(replace(elsewhere, namespaces=[])))


def test_advice_is_a_valid_policy_setting() -> None:
    advice = next(
        line.advice
        for line in accounting_results(account_facts(waiting=[pending_pod()]))
        if line.state is CheckState.FAIL
    )
    (key, value), *_ = read_documents(advice.partition("until then ")[2], "advice")[0].data.items()

    assert key == "limits.accounting"
    assert load_policy(limits={"accounting": value}).limits is not None
