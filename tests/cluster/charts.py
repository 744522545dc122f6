"""The Helm chart and what Helm renders from it, without an API server."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

from tests.cluster.client import Json
from tests.conftest import ROOT
from tests.controlplane.build import helm_program
from webhook import __version__
from webhook.documents.reader import read_documents
from webhook.well_known import SYSTEM_NAMESPACE

CHART = ROOT / "charts" / "rightslice"
HELM_SECONDS = 600
RELEASE_LABELS = {
    "app.kubernetes.io/instance": "rightslice",
    "app.kubernetes.io/version": __version__,
    "app.kubernetes.io/managed-by": "Helm",
    "helm.sh/chart": f"rightslice-{__version__}",
}
"""Labels of the objects of a release."""


def run_helm(
    *arguments: str, namespace: str = SYSTEM_NAMESPACE, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run Helm in the namespace of a release."""
    command = [str(helm_program()), *arguments, f"--namespace={namespace}"]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=HELM_SECONDS, check=False)


def helm_template(
    *flags: str, chart: Path = CHART, namespace: str = SYSTEM_NAMESPACE
) -> subprocess.CompletedProcess[str]:
    """Run `helm template`."""
    return run_helm("template", "rightslice", str(chart), *flags, namespace=namespace)


def render(*flags: str, chart: Path = CHART, namespace: str = SYSTEM_NAMESPACE) -> list[Json]:
    """Return the objects of the chart."""
    done = helm_template(*flags, chart=chart, namespace=namespace)
    assert done.returncode == 0, f"helm template {' '.join(flags)}: {done.stderr}{done.stdout}"
    return [document.data for document in read_documents(done.stdout, "chart", aliases=True)]
