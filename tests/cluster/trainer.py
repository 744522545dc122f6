"""Kubeflow's Trainer on a control plane: its controller of TrainJobs, without its own webhooks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.cluster.operator_crds import serve_operator_kinds
from tests.cluster.operators import operator_process
from tests.cluster.plane import Plane
from tests.controlplane.build import trainer_program

CERTIFICATES = "k8s-webhook-server/serving-certs"
"""The folder in that of temporary files where it looks for the certificate of its webhooks."""

SETTINGS = {"apiVersion": "config.trainer.kubeflow.org/v1alpha1", "certManagement": {"enable": False}}


@contextmanager
def run_trainer(plane: Plane, folder: Path) -> Iterator[None]:
    """Run the controller of TrainJobs for the block, with an empty folder for its files."""
    kinds = [f"{kind}.trainer.kubeflow.org" for kind in ("clustertrainingruntimes", "trainingruntimes", "trainjobs")]
    certificates, prefix = folder / CERTIFICATES, ["env", f"TMPDIR={folder}"]
    process = operator_process(plane, trainer_program(), folder, SETTINGS, certificates=certificates, prefix=prefix)
    with serve_operator_kinds(plane, "trainer", *kinds), process.run():
        yield
