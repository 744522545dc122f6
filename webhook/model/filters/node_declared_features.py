"""NodeDeclaredFeatures: features of the kubelet that a pod needs, and that nodes declare in `status.declaredFeatures`.

Kubernetes 1.36 and later; a cluster that is older stores no pod that needs one. Other features that nodes declare only
concern pods that are resized or attached to.

Source: the NodeDeclaredFeatures plugin of kube-scheduler, and `k8s.io/component-helpers/nodedeclaredfeatures`.
"""

from __future__ import annotations

from collections.abc import Iterator

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
    return tuple(dict.fromkeys(_features_of(pod)))


def _features_of(pod: Pod) -> Iterator[str]:
    spec = pod.spec
    if spec.host_network and spec.host_users is False:
        yield USERS_OF_HOST_NETWORK
    for container in (*spec.containers, *spec.init_containers):
        if container.restart_policy_rules and any(
            rule.action == RESTART_ALL_ACTION for rule in container.restart_policy_rules
        ):
            yield RESTART_ALL
    for container in (*spec.containers, *spec.init_containers, *spec.ephemeral_containers):
        if any(mount.bind_mount_options for mount in container.volume_mounts):
            yield BIND_OPTIONS
