"""Controllers of operators on a control plane, without their own webhooks."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.cluster.plane import Plane
from tests.cluster.processes import Process, free_port, is_up


def operator_process(
    plane: Plane,
    program: Path,
    folder: Path,
    settings: Mapping[str, Any],
    *,
    certificates: Path | None = None,
    prefix: Sequence[str] = (),
) -> Process:
    """Return the process of an operator that reads a Configuration; it is ready when its health probe says so.

    Args:
        folder: An empty folder for its files.
        settings: What its Configuration has besides the addresses and the certificates of its webhooks.
        certificates: Where it looks for these; by default in the folder, which the Configuration then names.
        prefix: The start of the command, before the program.
    """
    health, webhook = free_port(), {"host": "127.0.0.1", "port": free_port()}
    _copy_certificates(plane, certificates or folder)
    configuration = {
        "kind": "Configuration",
        "health": {"healthProbeBindAddress": f"127.0.0.1:{health}"},
        "metrics": {"bindAddress": "0"},
        "webhook": webhook if certificates else webhook | {"certDir": str(folder)},
        "leaderElection": {"leaderElect": False},
        **settings,
    }
    config = folder / "config.json"
    config.write_text(json.dumps(configuration), encoding="utf-8")
    command = [*prefix, str(program), f"--config={config}", f"--kubeconfig={plane.kubeconfig}"]
    name = program.name
    return Process(name, command, folder / f"{name}.log", lambda: is_up(f"http://127.0.0.1:{health}/readyz"))


def _copy_certificates(plane: Plane, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("crt", "key"):
        (folder / f"tls.{name}").write_bytes((plane.ca.parent / f"server.{name}").read_bytes())
    (folder / "ca.crt").write_bytes(plane.ca.read_bytes())
