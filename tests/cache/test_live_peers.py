"""What default topology spread counts pods by is read from a live cluster only where a scheduler needs it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from webhook.cache.informers import ClusterInformers, empty_view
from webhook.cache.live_view import ViewPublisher
from webhook.kube.reflector import WatchStatus
from webhook.model.filters.pod_topology_spread import UNKNOWN_SELECTOR, Service, ServiceSpec
from webhook.model.pods import ObjectMeta, PodLabelSelector, TopologySpreadConstraint
from webhook.model.schedulers import SchedulerRules, Schedulers

SPREAD = TopologySpreadConstraint(topology_key="zone", when_unsatisfiable="DoNotSchedule")
REQUIRED = {"default-scheduler": SchedulerRules((SPREAD,))}
LABELS = (("app", "a"), ("tier", "x"))


@pytest.mark.parametrize(("schedulers", "want"), [({}, False), (REQUIRED, True)])
def test_services_are_watched_only_for_constraints_that_exclude_nodes(schedulers: Schedulers, want: bool) -> None:
    holder: Any = SimpleNamespace(view=empty_view().with_schedulers(schedulers))
    informers = ClusterInformers(**parts_of(holder))
    watched = {each.name for each in informers.states}

    assert ({"services", "statefulsets"} <= watched) is want
    assert watched.isdisjoint({"services", "statefulsets"}) is not want


def test_claims_are_watched_once_there_are_devices() -> None:
    holder: Any = SimpleNamespace(view=empty_view())
    watched = {each.name for each in ClusterInformers(**parts_of(holder)).states}

    assert {"resourceslices", "deviceclasses"} <= watched
    assert watched.isdisjoint({"resourceclaims", "resourceclaimtemplates", "devicetaintrules"})


def parts_of(holder: Any) -> Any:
    """Return what informers are made of, without an API server."""
    return {"api": None, "holder": holder, "random": None, "events": None, "namespace": "rightslice-system"}


async def test_a_live_view_follows_services_once_they_were_listed() -> None:
    holder: Any = SimpleNamespace(view=empty_view().with_schedulers(REQUIRED))
    publisher = ViewPublisher(holder, fleet_seconds=0.0)
    statuses = WatchStatus("services"), WatchStatus("statefulsets", synced=True)
    publisher.peer_watches = statuses
    seen = []
    for synced, selector in ((False, {"app": "a"}), (True, {"app": "a"}), (True, {"tier": "x"}), (True, {"app": "b"})):
        statuses[0].synced = synced
        publisher.services.upsert(Service(ObjectMeta("s", namespace="team"), ServiceSpec(selector)))
        await publisher.publish()
        seen.append(holder.view.find_peers("team", LABELS, None))

    assert seen == [UNKNOWN_SELECTOR, PodLabelSelector({"app": "a"}), PodLabelSelector({"tier": "x"}), None]
