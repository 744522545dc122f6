"""Kubeflow's Trainer on a control plane: its controller of TrainJobs, without its own webhooks."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

from tests.cluster.operator_crds import serve_operator_kinds
from tests.cluster.plane import Plane
from tests.cluster.processes import Process, free_port
from tests.controlplane.build import trainer_program

CERTIFICATES = "k8s-webhook-server/serving-certs"
"""The folder in that of temporary files where it looks for the certificate of its webhooks."""


@contextmanager
def run_trainer(plane: Plane, folder: Path) -> Iterator[None]:
    """Run the controller of TrainJobs for the block, with an empty folder for its files."""
    kinds = [f"{kind}.trainer.kubeflow.org" for kind in ("clustertrainingruntimes", "trainingruntimes", "trainjobs")]
    with serve_operator_kinds(plane, "trainer", *kinds):
        process = _trainer_process(plane, folder)
        process.start()
        try:
            yield
        finally:
            process.kill()


def _trainer_process(plane: Plane, folder: Path) -> Process:
    health, config, certificates = free_port(), folder / "config.json", folder / CERTIFICATES
    certificates.mkdir(parents=True)
    for name in ("crt", "key"):
        shutil.copyfile(plane.ca.parent / f"server.{name}", certificates / f"tls.{name}")
    settings = {
        "apiVersion": "config.trainer.kubeflow.org/v1alpha1",
        "kind": "Configuration",
        "health": {"healthProbeBindAddress": f"127.0.0.1:{health}"},
        "metrics": {"bindAddress": "0"},
        "webhook": {"host": "127.0.0.1", "port": free_port()},
        "leaderElection": {"leaderElect": False},
        "certManagement": {"enable": False},
    }
    config.write_text(json.dumps(settings), encoding="utf-8")
    program = [str(trainer_program()), f"--config={config}", f"--kubeconfig={plane.kubeconfig}"]
    command = ["env", f"TMPDIR={folder}", *program]
    return Process("trainer", command, folder / "trainer.log", lambda: _is_up(f"http://127.0.0.1:{health}/readyz"))


def _is_up(url: str) -> bool:
    with urlopen(url, timeout=5) as response:
        return bool(response.status == 200)
