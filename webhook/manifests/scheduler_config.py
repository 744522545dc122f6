"""What a kube-scheduler is told: to ask the extender about pods with GPUs, and to pass over the accounting resource.

A KubeSchedulerConfiguration is decoded strictly, and its list of resources knows no wildcards: so it is made from the
catalogue. Extenders belong to a scheduler as a whole; all its profiles share them.
"""

from __future__ import annotations

from typing import Any

from webhook.model.gpu_resources import ACCOUNTING_RESOURCE, MIG_PREFIX, SHARED_SUFFIX, WHOLE_GPU
from webhook.model.mig_catalogue import all_mig_profiles
from webhook.well_known import APP_NAME, SYSTEM_NAMESPACE

Json = dict[str, Any]

EXTENDER_NAME = f"{APP_NAME}-extender"
EXTENDER_HOST = f"{EXTENDER_NAME}.{SYSTEM_NAMESPACE}.svc"
SECOND_SCHEDULER_NAME = f"{APP_NAME}-scheduler"
"""The name that pods write in spec.schedulerName for the second scheduler."""

EXTENDER_WEIGHT = 10
"""Of the extender's score among the plugins': a node's full score is worth as much as theirs together, some 1,000."""

EXTENDER_TIMEOUT = "1s"
"""Twenty times what an answer may take at 5,000 nodes. A scheduler that waits schedules nothing."""

EXTENDER_CA_FILE = "/etc/kubernetes/rightslice/ca.crt"
"""Where the authority lies beside a scheduler."""


def extender_entry(url: str = f"https://{EXTENDER_HOST}") -> Json:
    """One entry of `extenders`.

    Args:
        url: Where the scheduler reaches it; where it cannot resolve names of Services, an address.
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
        "managedResources": managed_resources(),
    }


def managed_resources() -> list[Json]:
    """Resources whose pods the extender is asked about; the accounting resource is on no node, and not looked for."""
    mig = [f"{MIG_PREFIX}{name}" for name in all_mig_profiles()]
    media = [f"{name}.me" for name in mig if name.startswith(f"{MIG_PREFIX}1g.")]
    names = [WHOLE_GPU, f"{WHOLE_GPU}{SHARED_SUFFIX}", *mig, *media]
    return [{"name": ACCOUNTING_RESOURCE, "ignoredByScheduler": True}, *({"name": name} for name in names)]


def scheduler_configuration(**more: Any) -> Json:
    """A KubeSchedulerConfiguration."""
    return {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration", **more}


def first_scheduler_config() -> Json:
    """What is added to the configuration of the scheduler that is there. ADDRESS is that of our Service."""
    return scheduler_configuration(extenders=[extender_entry("https://ADDRESS")])


def second_scheduler_config() -> Json:
    """The whole configuration of a second scheduler, for the pods that name it."""
    lease = {"leaderElect": True, "resourceNamespace": SYSTEM_NAMESPACE, "resourceName": SECOND_SCHEDULER_NAME}
    profile = {"schedulerName": SECOND_SCHEDULER_NAME, "percentageOfNodesToScore": 100}
    return scheduler_configuration(leaderElection=lease, profiles=[profile], extenders=[extender_entry()])
