"""The programs, the Go module that each is built from, and the usual duration."""

from __future__ import annotations

import hashlib
import shutil
from dataclasses import dataclass
from pathlib import Path

MODULES = Path(__file__).resolve().parent
"""One folder for each Go module with one for each version: go.mod and go.sum, without code of our own."""

KUBERNETES = "1.36.3"
"""The default version to test."""

ETCD = "3.6.8"
KWOK = "0.8.0"
PROMETHEUS = "0.315.0"
"""The version of release 3.15.0 in Go's module proxy."""
KUEUE = "0.19.0"
JOBSET = "0.12.0"
"""The version that this Kueue is built with."""
TRAINER = "2.2.1"
"""The version that this Kueue is built with."""
KARPENTER = "1.14.1"
"""The newest release that Go 1.26 builds."""
HELM = "4.3.1"
KREW = "0.4.3"
"""The newest version in Go's module proxy."""
RUNC = "1.5.3"
UMOCI = "0.6.0"
CRANE = "0.22.1"


HAS_GCC = shutil.which("gcc") is not None
"""Whether programs that need an option of the linker that the C compiler from a wheel lacks can be built."""


@dataclass(frozen=True, slots=True)
class Program:
    """One program.

    Attributes:
        name: Name of its file.
        module: The folder of its go.mod.
        package: Argument of `go build`.
        seconds: Usual build time on two cores after the programs before it, with an empty cache.
        variables: Values that the linker sets, by the name of the Go variable.
        tags: Build tags.
        cgo: True if it needs a C compiler.
    """

    name: str
    module: Path
    package: str
    seconds: int
    variables: tuple[tuple[str, str], ...] = ()
    tags: tuple[str, ...] = ()
    cgo: bool = False

    @property
    def version(self) -> str:
        """Return the version that is built."""
        return self.module.name


def versions() -> list[str]:
    """Return the versions of Kubernetes that can be built."""
    return sorted(folder.name for folder in (MODULES / "kubernetes").iterdir())


def plane(kubernetes: str) -> tuple[Program, ...]:
    """Return the programs of a control plane, smallest first, so that missing tools are noticed early.

    Args:
        kubernetes: One of `versions()`.
    """
    etcd = Program("etcd", MODULES / "etcd" / ETCD, "go.etcd.io/etcd/server/v3", 40)
    kwok_version = (("sigs.k8s.io/kwok/pkg/consts.Version", KWOK),)
    kwok = Program("kwok", MODULES / "kwok" / KWOK, "sigs.k8s.io/kwok/cmd/kwok", 55, kwok_version)
    return (
        etcd,
        kwok,
        _kubernetes("kubectl", kubernetes, 40),
        _kubernetes("kube-apiserver", kubernetes, 150),
        _kubernetes("kube-controller-manager", kubernetes, 50),
        _kubernetes("kube-scheduler", kubernetes, 25),
    )


def filters(kubernetes: str) -> Program:
    """Return our program around the filters of kube-scheduler."""
    return _own_program("filters", kubernetes)


def selectors(kubernetes: str) -> Program:
    """Return our program around the selectors of devices."""
    return _own_program("selectors", kubernetes)


def quotas(kubernetes: str) -> Program:
    """Return our program around the quota admission of the API server."""
    return _own_program("quotas", kubernetes)


def prometheus() -> Program:
    """Return Prometheus without most service discovery, which is most of its size and which no test needs."""
    module = MODULES / "prometheus" / PROMETHEUS
    version = (("github.com/prometheus/common/version.Version", PROMETHEUS),)
    package = "github.com/prometheus/prometheus/cmd/prometheus"
    return Program("prometheus", module, package, 210, version, ("netgo", "remove_all_sd"))


def kueue() -> Program:
    """Return Kueue, which the tests of queued workloads start with the control plane."""
    return Program("kueue", MODULES / "kueue" / KUEUE, "sigs.k8s.io/kueue/cmd/kueue", 400)


def jobset() -> Program:
    """Return the controller of JobSets, which the tests of queued workloads start with Kueue."""
    return Program("jobset", MODULES / "jobset" / JOBSET, "sigs.k8s.io/jobset", 60)


def trainer() -> Program:
    """Return the controller of TrainJobs, which a test of queued workloads starts with that of JobSets."""
    package = "github.com/kubeflow/trainer/v2/cmd/trainer-controller-manager"
    return Program("trainer", MODULES / "trainer" / TRAINER, package, 90)


def karpenter() -> Program:
    """Return Karpenter with its provider of simulated nodes."""
    return Program("karpenter", MODULES / "karpenter" / KARPENTER, "sigs.k8s.io/karpenter/kwok", 240)


def helm() -> Program:
    """Return Helm, which installs the chart in tests."""
    version = (("helm.sh/helm/v4/internal/version.version", f"v{HELM}"),)
    return Program("helm", MODULES / "helm" / HELM, "helm.sh/helm/v4/cmd/helm", 150, version)


def krew() -> Program:
    """Return krew, which installs the plugin of kubectl in tests."""
    return Program("krew", MODULES / "krew" / KREW, "sigs.k8s.io/krew/cmd/krew", 20)


def runc() -> Program:
    """Return runc, which starts the image in tests. It enters namespaces with C."""
    return Program("runc", MODULES / "runc" / RUNC, "github.com/opencontainers/runc", 20, cgo=True)


def umoci() -> Program:
    """Return umoci, which unpacks the image in tests."""
    return Program("umoci", MODULES / "umoci" / UMOCI, "github.com/opencontainers/umoci/cmd/umoci", 15)


def crane() -> Program:
    """Return crane, whose registry gets the image in tests."""
    return Program("crane", MODULES / "crane" / CRANE, "github.com/google/go-containerregistry/cmd/crane", 10)


def _own_program(folder: str, kubernetes: str) -> Program:
    """Return a program of ours that uses packages of Kubernetes, named after its source."""
    source = MODULES / folder / "main.go"
    name = f"{folder}-{hashlib.sha256(source.read_bytes()).hexdigest()[:12]}"
    return Program(name, MODULES / "kubernetes" / kubernetes, str(source), 20)


def _kubernetes(name: str, version: str, seconds: int) -> Program:
    major, minor, _ = version.split(".")
    base = "k8s.io/component-base/version"
    variables = ((f"{base}.gitVersion", f"v{version}"), (f"{base}.gitMajor", major), (f"{base}.gitMinor", minor))
    return Program(name, MODULES / "kubernetes" / version, f"k8s.io/kubernetes/cmd/{name}", seconds, variables)
