"""KubeSchedulerConfiguration: call the extender for pods with GPUs, and ignore the accounting resource.

Its list of resources supports no wildcards, so it is generated from the MIG catalog. Extenders apply to all
profiles of a scheduler. For pods with claims there is an entry without such a list, because a scheduler looks at names
in requests and limits only.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from webhook.model.gpu_resources import ACCOUNTING_RESOURCE, MIG_PREFIX, SHARED_GPU, WHOLE_GPU
from webhook.model.mig_catalog import all_mig_profiles
from webhook.well_known import APP_NAME, SYSTEM_NAMESPACE, Json

EXTENDER_NAME = f"{APP_NAME}-extender"
EXTENDER_HOST = f"{EXTENDER_NAME}.{SYSTEM_NAMESPACE}.svc"
SECOND_SCHEDULER_NAME = f"{APP_NAME}-scheduler"
"""Value of spec.schedulerName for pods of the second scheduler."""

EXTENDER_WEIGHT = 10
"""Weight of the extender's score: its maximum equals that of all plugins together, about 1,000."""

EXTENDER_TIMEOUT = "1s"
"""Twenty times the latency target at 5,000 nodes. The scheduler blocks while it waits."""

EXTENDER_CA_FILE = "/etc/kubernetes/rightslice/ca.crt"
"""Path of the CA on the scheduler's host."""


CLAIMS_VERB = "prioritize-claims"
"""Path that answers for pods with claims. No entry with managed resources is called for them."""


CLAIMS_TIMEOUT = "500ms"
"""Pods without GPUs wait for this too."""


def extender_entry(url: str = f"https://{EXTENDER_HOST}") -> Json:
    """Return an entry of `extenders`.

    Args:
        url: URL of the extender; an address if the scheduler cannot resolve Service names.
    """
    return {
        "urlPrefix": url,
        "filterVerb": "filter",
        "prioritizeVerb": "prioritize",
        "preemptVerb": "preempt",
        "weight": EXTENDER_WEIGHT,
        "enableHTTPS": True,
        "tlsConfig": {"serverName": EXTENDER_HOST, "caFile": EXTENDER_CA_FILE},
        "httpTimeout": EXTENDER_TIMEOUT,
        "nodeCacheCapable": True,
        "ignorable": True,
        "managedResources": [
            {"name": name} | ({"ignoredByScheduler": True} if name == ACCOUNTING_RESOURCE else {})
            for name in managed_resources()
        ],
    }


def claims_entry(url: str = f"https://{EXTENDER_HOST}") -> Json:
    """Return the entry of `extenders` for pods with claims. Without managed resources, it is called for each pod."""
    others = ("filterVerb", "preemptVerb", "managedResources")
    entry = {key: value for key, value in extender_entry(url).items() if key not in others}
    return entry | {"prioritizeVerb": CLAIMS_VERB, "httpTimeout": CLAIMS_TIMEOUT}


@cache
def managed_resources() -> tuple[str, ...]:
    """Return the resources whose pods the extender handles: the accounting resource, which schedulers ignore, first."""
    mig = [f"{MIG_PREFIX}{name}" for name in all_mig_profiles()]
    media = [f"{name}.me" for name in mig if name.startswith(f"{MIG_PREFIX}1g.")]
    return (ACCOUNTING_RESOURCE, WHOLE_GPU, SHARED_GPU, *mig, *media)


def scheduler_configuration(**more: Any) -> Json:
    """Return a KubeSchedulerConfiguration."""
    return {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration", **more}


def first_scheduler_config() -> Json:
    """Return what to add to the existing scheduler's configuration; ADDRESS stands for the extender's Service."""
    return scheduler_configuration(extenders=[extender_entry("https://ADDRESS")])


def claims_scheduler_config() -> Json:
    """Return what to add for pods with claims to the existing scheduler's configuration."""
    return scheduler_configuration(extenders=[claims_entry("https://ADDRESS")])


def second_scheduler_config() -> Json:
    """Return the configuration of a second scheduler."""
    lease = {"leaderElect": True, "resourceNamespace": SYSTEM_NAMESPACE, "resourceName": SECOND_SCHEDULER_NAME}
    profile = {"schedulerName": SECOND_SCHEDULER_NAME, "percentageOfNodesToScore": 100}
    return scheduler_configuration(
        leaderElection=lease, profiles=[profile], extenders=[extender_entry(), claims_entry()]
    )
