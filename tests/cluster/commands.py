"""The command line of each program of a plane: the flags it needs here, and defaults otherwise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.cluster.credentials import Credentials

CONTROLLERS = [
    "clusterrole-aggregation-controller",
    "daemonset-controller",
    "deployment-controller",
    "disruption-controller",
    "ephemeral-volume-controller",
    "garbage-collector-controller",
    "horizontal-pod-autoscaler-controller",
    "job-controller",
    "namespace-controller",
    "persistentvolume-binder-controller",
    "persistentvolume-protection-controller",
    "persistentvolumeclaim-protection-controller",
    "pod-garbage-collector-controller",
    "replicaset-controller",
    "resourceclaim-controller",
    "resourcequota-controller",
    "serviceaccount-controller",
    "statefulset-controller",
]
"""Controllers that tests depend on. Not node-lifecycle: it would taint nodes whenever this machine is slow."""

AUDIT_POLICY: dict[str, Any] = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [
        {"level": "Metadata", "verbs": ["create"], "resources": [{"group": "", "resources": ["pods"]}]},
        {"level": "None"},
    ],
}
"""Records created pods with the annotations that webhooks add, and nothing else."""


def etcd(program: Path, data: Path, port: int, peer_port: int) -> list[str]:
    """etcd with one member. Its data need not survive a crash, so it does not wait for the disk."""
    url, peer = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{peer_port}"
    return [
        str(program),
        f"--data-dir={data}",
        f"--listen-client-urls={url}",
        f"--advertise-client-urls={url}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=default={peer}",
        "--unsafe-no-fsync",
        "--log-level=warn",
    ]


def apiserver(
    program: Path, port: int, etcd_port: int, credentials: Credentials, folder: Path, gates: Mapping[str, bool]
) -> list[str]:
    """kube-apiserver with RBAC and its usual admission plugins."""
    return [
        str(program),
        f"--etcd-servers=http://127.0.0.1:{etcd_port}",
        "--bind-address=127.0.0.1",
        f"--secure-port={port}",
        f"--tls-cert-file={credentials.certificate}",
        f"--tls-private-key-file={credentials.key}",
        f"--client-ca-file={credentials.ca}",
        f"--token-auth-file={credentials.tokens}",
        "--authorization-mode=RBAC",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={credentials.signing_key}",
        f"--service-account-signing-key-file={credentials.signing_key}",
        "--service-cluster-ip-range=10.0.0.0/24",
        "--endpoint-reconciler-type=none",
        "--allow-privileged=true",
        "--runtime-config=resource.k8s.io/v1beta1=true,resource.k8s.io/v1beta2=true",  # it converts claims of these
        "--shutdown-watch-termination-grace-period=2s",  # otherwise it waits a minute for watchers to disconnect
        "--request-timeout=5m",  # a busy machine may need more than the usual minute to delete a thousand pods
        "--delete-collection-workers=8",
        f"--audit-policy-file={folder / 'audit-policy.json'}",
        f"--audit-log-path={folder / 'audit.log'}",
        *feature_gates(gates),
    ]


def controller_manager(program: Path, credentials: Credentials, gates: Mapping[str, bool]) -> list[str]:
    """kube-controller-manager, with a client rate limit that does not slow tests down."""
    return [
        str(program),
        f"--kubeconfig={credentials.kubeconfig}",
        f"--controllers={','.join(CONTROLLERS)}",
        "--leader-elect=false",
        "--secure-port=0",
        "--kube-api-qps=500",
        "--kube-api-burst=1000",
        "--resource-quota-sync-period=24h",  # usually 5 min; it would undo the usage that tests write into a status
        *feature_gates(gates),
    ]


def scheduler(program: Path, config: Path, gates: Mapping[str, bool]) -> list[str]:
    """kube-scheduler."""
    return [str(program), f"--config={config}", "--secure-port=0", *feature_gates(gates)]


def scheduler_config(kubeconfig: Path, more: Mapping[str, Any]) -> dict[str, Any]:
    """Return our KubeSchedulerConfiguration with additions (extenders, profiles)."""
    return {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "clientConnection": {"kubeconfig": str(kubeconfig), "qps": 500, "burst": 1000},
        "leaderElection": {"leaderElect": False},
        **more,
    }


def kwok(program: Path, credentials: Credentials, stages: Sequence[Path]) -> list[str]:
    """kwok, which simulates every node and its pods."""
    configs = [f"--config={stage}" for stage in stages]
    return [
        str(program),
        f"--kubeconfig={credentials.kubeconfig}",
        "--manage-all-nodes=true",
        "--enable-crds=",
        *configs,
    ]


def feature_gates(gates: Mapping[str, bool]) -> list[str]:
    """Return the flag for feature gates; empty without gates."""
    value = ",".join(f"{name}={str(enabled).lower()}" for name, enabled in gates.items())
    return [f"--feature-gates={value}"] if value else []
