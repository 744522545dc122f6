"""Gangs and queues, as one pod shows them."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from tests.builders import PodMaker, make_pod
from webhook.model.annotations import GANG_SIZE_ANNOTATION
from webhook.model.batch import Gang, gang_of, invalid_gang_size
from webhook.model.node_labels import CLIQUE_LABEL
from webhook.model.pods import parse_pod

LWS, JOB = "leaderworkerset.sigs.k8s.io", "batch.kubernetes.io"
ZONE = "topology.kubernetes.io/zone"


def near(key: str, selector: Any, **more: Any) -> dict[str, Any]:
    return {"topologyKey": key, "labelSelector": selector, **more}


def must(pod: PodMaker, *terms: Any) -> PodMaker:
    return pod.spec(affinity={"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": list(terms)}})


def likes(pod: PodMaker, *wishes: tuple[Any, Any]) -> PodMaker:
    said = [{"weight": weight, "podAffinityTerm": term} for weight, term in wishes]
    return pod.spec(affinity={"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": said}})


def job(**labels: str) -> PodMaker:
    pod = make_pod().label(f"{JOB}/job-name", "train")
    for key, value in labels.items():
        pod.label(key, value)
    return pod


OWN, OTHERS = {"matchLabels": {"app": "x"}}, {"matchLabels": {"app": "y"}}
EITHER = {"matchExpressions": [{"key": "app", "operator": "In", "values": ["y", "x"]}]}
ANY = {"matchExpressions": [{"key": "app", "operator": "Exists"}]}


def app() -> PodMaker:
    return make_pod().label("app", "x")


class Case(NamedTuple):
    pod: PodMaker
    want: Gang | None


CASES = {
    "a pod on its own": Case(make_pod(), None),
    "the coscheduling plugin's pod group": Case(
        make_pod().label("scheduling.x-k8s.io/pod-group", "g"),
        Gang("team/scheduling.x-k8s.io/pod-group=g", 0, CLIQUE_LABEL),
    ),
    "its older labels say how many must be there": Case(
        make_pod()
        .label("pod-group.scheduling.sigs.k8s.io/name", "g")
        .label("pod-group.scheduling.sigs.k8s.io/min-available", "4"),
        Gang("team/pod-group.scheduling.sigs.k8s.io/name=g", 4, CLIQUE_LABEL),
    ),
    "a group of plain pods in Kueue": Case(
        make_pod().label("kueue.x-k8s.io/pod-group-name", "g").annotate("kueue.x-k8s.io/pod-group-total-count", "3"),
        Gang("team/kueue.x-k8s.io/pod-group-name=g", 3, CLIQUE_LABEL),
    ),
    "one group of a LeaderWorkerSet": Case(
        make_pod().label(f"{LWS}/name", "llm").label(f"{LWS}/group-key", "k1").annotate(f"{LWS}/size", "2"),
        Gang(f"team/{LWS}/group-key=k1", 2, CLIQUE_LABEL),
    ),
    "a LeaderWorkerSet of single pods is none": Case(
        make_pod().label(f"{LWS}/group-key", "k1").annotate(f"{LWS}/size", "1"), None
    ),
    "a JobSet, and not the Jobs in it": Case(
        job(**{"jobset.sigs.k8s.io/jobset-name": "js"}),
        Gang("team/jobset.sigs.k8s.io/jobset-name=js", 0, CLIQUE_LABEL),
    ),
    "torchrun is told how many it waits for": Case(
        make_pod().label("training.kubeflow.org/job-name", "pt").env("PET_NNODES", "8"),
        Gang("team/training.kubeflow.org/job-name=pt", 8, CLIQUE_LABEL),
    ),
    "an elastic training says no number": Case(
        make_pod().label("training.kubeflow.org/job-name", "pt").env("PET_NNODES", "1:8"),
        Gang("team/training.kubeflow.org/job-name=pt", 0, CLIQUE_LABEL),
    ),
    "an Indexed Job": Case(
        job(**{f"{JOB}/job-completion-index": "0"}), Gang(f"team/{JOB}/job-name=train", 0, CLIQUE_LABEL)
    ),
    "a Job whose pods take what comes is none": Case(job(), None),
    "a Job whose user says how many belong together": Case(
        job().annotate(GANG_SIZE_ANNOTATION, "4"), Gang(f"team/{JOB}/job-name=train", 4, CLIQUE_LABEL)
    ),
    "the user's word before the controller's": Case(
        make_pod().label(f"{LWS}/group-key", "k").annotate(f"{LWS}/size", "2").annotate(GANG_SIZE_ANNOTATION, "3"),
        Gang(f"team/{LWS}/group-key=k", 3, CLIQUE_LABEL),
    ),
    "a number that nobody can tell whose it is": Case(make_pod().annotate(GANG_SIZE_ANNOTATION, "4"), None),
    "a number that is none": Case(job().annotate(GANG_SIZE_ANNOTATION, "four"), None),
    "a number beyond all pods": Case(job().annotate(GANG_SIZE_ANNOTATION, "9" * 18), None),
    "it must be where its like are": Case(must(app(), near(ZONE, OWN)), Gang("team/app=x", 0, ZONE)),
    "it would like to be, and the label of nodes is the one it says": Case(
        likes(
            job(app="x").annotate(GANG_SIZE_ANNOTATION, "2"),
            (1, near("kubernetes.io/hostname", OWN)),
            (50, near(ZONE, OWN)),
        ),
        Gang(f"team/{JOB}/job-name=train", 2, ZONE),
    ),
    "expressions that speak of its own labels": Case(must(app(), near(ZONE, EITHER)), Gang("team/app in x,y", 0, ZONE)),
    "near others, and not its like": Case(must(app(), near(ZONE, OTHERS)), None),
    "expressions that we do not follow": Case(must(app(), near(ZONE, ANY)), None),
    "near those of another namespace": Case(must(app(), near(ZONE, OWN, namespaces=["o"])), None),
    "near everybody": Case(must(make_pod(), near(ZONE, {})), None),
    "what is no term": Case(likes(must(make_pod(), "x", {"topologyKey": 5}), ("a", 1), (1, [])), None),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_gang_of_a_pod(case: Case) -> None:
    assert gang_of(parse_pod(case.pod.build())) == case.want


def test_pods_with_only_an_owner_in_common() -> None:
    pod = make_pod().annotate(GANG_SIZE_ANNOTATION, "4").build()
    pod["metadata"]["ownerReferences"] = [
        {"kind": "X", "name": "x", "uid": "u-0"},
        {"kind": "Train", "name": "t", "uid": "u-1", "controller": True},
    ]

    assert gang_of(parse_pod(pod)) == Gang("team/uid=u-1", 4, CLIQUE_LABEL)


def test_invalid_size_is_reported() -> None:
    said = [
        make_pod(),
        make_pod().annotate(GANG_SIZE_ANNOTATION, "4"),
        make_pod().annotate(GANG_SIZE_ANNOTATION, "some"),
    ]

    assert [invalid_gang_size(parse_pod(pod.build())) for pod in said] == [None, None, "some"]
