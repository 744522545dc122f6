"""What a kube-scheduler is told: to ask the extender about pods with GPUs, and to pass over the accounting resource.

A KubeSchedulerConfiguration is decoded strictly, and its list of resources knows no wildcards: so it is made from the
catalogue. Extenders belong to a scheduler as a whole; all its profiles share them.
"""

from __future__ import annotations

from typing import Any

from webhook.manifests.hooks import NAME, NAMESPACE
from webhook.model.catalogue import profiles
from webhook.model.resources import ACCOUNTING, MIG_PREFIX, SHARED_SUFFIX, WHOLE_GPU

Json = dict[str, Any]

EXTENDER = f"{NAME}-extender"
HOST = f"{EXTENDER}.{NAMESPACE}.svc"
SCHEDULER = f"{NAME}-scheduler"
"""The name that pods write in spec.schedulerName for the second scheduler."""

WEIGHT = 10
"""Of the extender's score among the plugins': a node's full score is worth as much as theirs together, some 1,000."""

TIMEOUT = "1s"
"""Twenty times what an answer may take at 5,000 nodes. A scheduler that waits schedules nothing."""

LIES_AT = "/etc/kubernetes/rightslice/ca.crt"
"""Where the authority lies beside a scheduler."""


def extender(url: str = f"https://{HOST}") -> Json:
    """One entry of `extenders`.

    Args:
        url: Where the scheduler reaches it; where it cannot resolve names of Services, an address.
    """
    return {
        "urlPrefix": url,
        "filterVerb": "filter",
        "prioritizeVerb": "prioritize",
        "preemptVerb": "preempt",
        "weight": WEIGHT,
        "enableHTTPS": True,
        "tlsConfig": {"serverName": HOST, "caFile": LIES_AT},
        "httpTimeout": TIMEOUT,
        "nodeCacheCapable": True,
        "ignorable": True,
        "managedResources": managed(),
    }


def managed() -> list[Json]:
    """Resources whose pods the extender is asked about; the accounting resource is on no node, and not looked for."""
    mig = [f"{MIG_PREFIX}{name}" for name in profiles()]
    media = [f"{name}.me" for name in mig if name.startswith(f"{MIG_PREFIX}1g.")]
    names = [WHOLE_GPU, f"{WHOLE_GPU}{SHARED_SUFFIX}", *mig, *media]
    return [{"name": ACCOUNTING, "ignoredByScheduler": True}, *({"name": name} for name in names)]


def configuration(**more: Any) -> Json:
    """A KubeSchedulerConfiguration."""
    return {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration", **more}


def first() -> Json:
    """What is added to the configuration of the scheduler that is there. ADDRESS is that of our Service."""
    return configuration(extenders=[extender("https://ADDRESS")])


def second() -> Json:
    """The whole configuration of a second scheduler, for the pods that name it."""
    lease = {"leaderElect": True, "resourceNamespace": NAMESPACE, "resourceName": SCHEDULER}
    profile = {"schedulerName": SCHEDULER, "percentageOfNodesToScore": 100}
    return configuration(leaderElection=lease, profiles=[profile], extenders=[extender()])
