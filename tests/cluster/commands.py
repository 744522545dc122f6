"""The command line of each program of a plane: what it needs to run here, and defaults otherwise."""

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
    "garbage-collector-controller",
    "job-controller",
    "namespace-controller",
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
"""Pods that are created, with the annotations that webhooks add; nothing else."""


def etcd(program: Path, data: Path, port: int, peers: int) -> list[str]:
    """etcd with one member. It need not outlive this machine, so it does not wait for the disk."""
    url, peer = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{peers}"
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
    program: Path, port: int, etcd_port: int, made: Credentials, folder: Path, gates: Mapping[str, bool]
) -> list[str]:
    """kube-apiserver with RBAC and its usual admission plugins."""
    return [
        str(program),
        f"--etcd-servers=http://127.0.0.1:{etcd_port}",
        "--bind-address=127.0.0.1",
        f"--secure-port={port}",
        f"--tls-cert-file={made.certificate}",
        f"--tls-private-key-file={made.key}",
        f"--client-ca-file={made.ca}",
        f"--token-auth-file={made.tokens}",
        "--authorization-mode=RBAC",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={made.signing_key}",
        f"--service-account-signing-key-file={made.signing_key}",
        "--service-cluster-ip-range=10.0.0.0/24",
        "--endpoint-reconciler-type=none",
        "--allow-privileged=true",
        "--shutdown-watch-termination-grace-period=2s",  # else it waits a minute for its watchers to go
        f"--audit-policy-file={folder / 'audit-policy.json'}",
        f"--audit-log-path={folder / 'audit.log'}",
        *feature_gates(gates),
    ]


def controller_manager(program: Path, made: Credentials, gates: Mapping[str, bool]) -> list[str]:
    """kube-controller-manager, not slowed down by its own limit on requests."""
    return [
        str(program),
        f"--kubeconfig={made.kubeconfig}",
        f"--controllers={','.join(CONTROLLERS)}",
        "--leader-elect=false",
        "--secure-port=0",
        "--kube-api-qps=500",
        "--kube-api-burst=1000",
        *feature_gates(gates),
    ]


def scheduler(program: Path, config: Path, gates: Mapping[str, bool]) -> list[str]:
    """kube-scheduler."""
    return [str(program), f"--config={config}", "--secure-port=0", *feature_gates(gates)]


def scheduler_config(kubeconfig: Path, more: Mapping[str, Any]) -> dict[str, Any]:
    """A KubeSchedulerConfiguration: ours, and what is added to it (extenders, profiles)."""
    return {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "clientConnection": {"kubeconfig": str(kubeconfig), "qps": 500, "burst": 1000},
        "leaderElection": {"leaderElect": False},
        **more,
    }


def kwok(program: Path, made: Credentials, stages: Sequence[Path]) -> list[str]:
    """kwok, which plays every node and what runs there."""
    configs = [f"--config={stage}" for stage in stages]
    return [str(program), f"--kubeconfig={made.kubeconfig}", "--manage-all-nodes=true", "--enable-crds=", *configs]


def feature_gates(gates: Mapping[str, bool]) -> list[str]:
    """The flag for gates; none without any."""
    listed = ",".join(f"{name}={str(on).lower()}" for name, on in gates.items())
    return [f"--feature-gates={listed}"] if listed else []
