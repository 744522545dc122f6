"""NodeDeclaredFeatures: features of the kubelet that a pod needs, and that nodes declare in `status.declaredFeatures`.

Kubernetes 1.36 and later; a cluster that is older stores no pod that needs one. Other features that nodes declare only
concern pods that are resized or attached to.

Source: the NodeDeclaredFeatures plugin of kube-scheduler, and `k8s.io/component-helpers/nodedeclaredfeatures`.
"""

from __future__ import annotations

from webhook.model.pods import Pod

FEATURES_UNMATCHED = "node(s) didn't match Pod's required features"

RESTART_ALL = "RestartAllContainersOnContainerExits"
USERS_OF_HOST_NETWORK = "UserNamespacesHostNetworkSupport"
BIND_OPTIONS = "VolumeBindMountOptions"
SCHEDULING_FEATURES = frozenset({RESTART_ALL, USERS_OF_HOST_NETWORK, BIND_OPTIONS})
"""The features that a pod may need of its node."""

RESTART_ALL_ACTION = "RestartAllContainers"


def required_features(pod: Pod) -> tuple[str, ...]:
    """Return the features that a pod needs; () for most pods."""
    spec = pod.spec
    found: set[str] = set()
    if spec.host_network and spec.host_users is False:
        found.add(USERS_OF_HOST_NETWORK)
    for container in (*spec.containers, *spec.init_containers, *spec.ephemeral_containers):  # the last have no rules
        for rule in container.restart_policy_rules:
            if rule.action == RESTART_ALL_ACTION:
                found.add(RESTART_ALL)
        for mount in container.volume_mounts:
            if mount.bind_mount_options:
                found.add(BIND_OPTIONS)
    return tuple(sorted(found)) if found else ()
