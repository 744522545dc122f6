"""A control plane: its processes, clients, and ways to disrupt it."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from tests.cluster import commands
from tests.cluster.client import Client
from tests.cluster.credentials import make_credentials
from tests.cluster.polling import eventually
from tests.cluster.processes import Process, free_port, is_up

STAGES = Path(__file__).with_name("stages.yaml")

KUBECTL_SECONDS = 600
"""The deadline of a kubectl command: it ends earlier by its own deadline, or hangs."""


class Plane:
    """etcd, the API server, its controllers, the scheduler, and kwok for the nodes; they run within a `with` block.

    Attributes:
        folder: Data, logs (`*.log`) and credentials.
        url: URL of the API server.
        ca: File of the CA that signed its certificate.
        token: A bearer token of group system:masters.
        kubeconfig: Kubeconfig file with that token.
        api: Client with that token.
        audit_log: A line of JSON for each pod that was created or rejected.
        etcd, apiserver, controllers, scheduler, kwok: The processes, which tests may stop, kill and restart.
    """

    def __init__(
        self,
        programs: Mapping[str, Path],
        folder: Path,
        *,
        feature_gates: Mapping[str, bool] | None = None,
        apiserver_flags: Sequence[str] = (),
    ) -> None:
        """Write the configuration of the programs without starting them.

        Args:
            programs: Paths by name, as `tests.controlplane.build.control_plane` returns them.
            folder: An empty folder for its files.
            feature_gates: Feature gates by name, for every Kubernetes program.
            apiserver_flags: Further flags of kube-apiserver, after our own.
        """
        gates = feature_gates or {}
        port, etcd_port = free_port(), free_port()
        self.folder = folder
        self.url = f"https://127.0.0.1:{port}"
        credentials = make_credentials(folder / "credentials", self.url)
        self.ca, self.token, self.kubeconfig = credentials.ca, credentials.token, credentials.kubeconfig
        self.api = Client(self.url, credentials.ca, credentials.token)
        self.audit_log = folder / "audit.log"
        self._kubectl = programs["kubectl"]
        self._scheduler_config = folder / "scheduler.json"
        self._configure_scheduler({})
        (folder / "audit-policy.json").write_text(json.dumps(commands.AUDIT_POLICY), encoding="utf-8")

        etcd = commands.etcd(programs["etcd"], folder / "etcd", etcd_port, free_port())
        server = commands.apiserver(programs["kube-apiserver"], port, etcd_port, credentials, folder, gates)
        manager = commands.controller_manager(programs["kube-controller-manager"], credentials, gates)
        scheduler = commands.scheduler(programs["kube-scheduler"], self._scheduler_config, gates)
        kwok = commands.kwok(programs["kwok"], credentials, [STAGES])
        self.etcd = self._process("etcd", etcd, lambda: is_up(f"http://127.0.0.1:{etcd_port}/readyz"))
        self.apiserver = self._process("kube-apiserver", [*server, *apiserver_flags], self._serves)
        self.controllers = self._process("kube-controller-manager", manager)
        self.scheduler = self._process("kube-scheduler", scheduler)
        self.kwok = self._process("kwok", kwok)

    def _process(self, name: str, command: Sequence[str], ready: Any = lambda: True) -> Process:
        return Process(name, command, self.folder / f"{name}.log", ready)

    @property
    def processes(self) -> tuple[Process, ...]:
        """Return all processes in start order."""
        return self.etcd, self.apiserver, self.controllers, self.scheduler, self.kwok

    def __enter__(self) -> Self:
        try:
            for process in self.processes:
                process.start()
            self._wait_for_controllers()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in reversed(self.processes):
            process.kill()

    def restore(self) -> None:
        """Restart whatever a test stopped.

        The clients of the API server are restarted too: with each outage they back off for longer, up to a minute.
        """
        for process in (self.etcd, self.apiserver):
            if not process.running:
                process.start()
        eventually(self.api.is_ready)
        for process in (self.controllers, self.scheduler, self.kwok):
            process.kill()
            process.start()

    def _wait_for_controllers(self) -> None:
        """Wait for the controllers' first result; a program that ended meanwhile is reported with its log."""
        account = "/api/v1/namespaces/default/serviceaccounts/default"
        eventually(lambda: self._ended() or self.api.exists(account))
        for process in self._ended():
            raise AssertionError(f"{process.name} ended:\n{process.tail()}")

    def _ended(self) -> list[Process]:
        return [process for process in self.processes if not process.running]

    def kubectl_environment(self) -> dict[str, str]:
        """Return the environment of a program that runs kubectl as the admin."""
        home = {"HOME": str(self.folder), "KUBECONFIG": str(self.kubeconfig), "KUBECTL_KUBERC": "false"}
        path = f"{Path(self._kubectl).parent}{os.pathsep}{os.environ['PATH']}"
        return {**os.environ, **home, "PATH": path, "NO_PROXY": "127.0.0.1"}

    def kubectl(
        self, *arguments: str, stdin: str | None = None, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Run kubectl as the admin.

        Args:
            arguments: As on the command line.
            stdin: For `-f -`.
            check: Whether it must succeed.

        Raises:
            AssertionError: it failed; the message has its output.
        """
        done = subprocess.run(
            [str(self._kubectl), *arguments],
            input=stdin,
            env=self.kubectl_environment(),
            capture_output=True,
            text=True,
            timeout=KUBECTL_SECONDS,
            check=False,
        )
        assert not check or done.returncode == 0, f"kubectl {' '.join(arguments)}: {done.stderr}{done.stdout}"
        return done

    def add_namespace(self, name: str, labels: Mapping[str, str] | None = None) -> str:
        """Create a namespace, and wait until pods can be created in it."""
        self.api.create("/api/v1/namespaces", {"metadata": {"name": name, "labels": dict(labels or {})}})
        eventually(lambda: self.api.exists(f"/api/v1/namespaces/{name}/serviceaccounts/default"))
        return name

    @contextmanager
    def namespace_called(self, name: str) -> Iterator[None]:
        """Create a namespace for the block, and delete it afterwards."""
        self.wait_until_gone(name)
        self.add_namespace(name)
        try:
            yield
        finally:
            self.api.delete(f"/api/v1/namespaces/{name}")

    def wait_until_gone(self, namespace: str) -> None:
        """Wait until a namespace is deleted. Its pods are deleted by force, since their node may be gone."""
        path = f"/api/v1/namespaces/{namespace}"

        def is_gone() -> bool:
            if not self.api.exists(path):
                return True
            self.api.delete(f"{path}/pods", gracePeriodSeconds="0")
            return False

        eventually(is_gone)

    @contextmanager
    def scheduler_with(self, **more: Any) -> Iterator[None]:
        """Run the scheduler with additional configuration within the block: `extenders=[...]`, `profiles=[...]`."""
        self._restart_scheduler(more)
        try:
            yield
        finally:
            self._restart_scheduler({})

    def _restart_scheduler(self, more: Mapping[str, Any]) -> None:
        self.scheduler.kill()
        self._configure_scheduler(more)
        self.scheduler.start()

    def _configure_scheduler(self, more: Mapping[str, Any]) -> None:
        config = commands.scheduler_config(self.kubeconfig, more)
        self._scheduler_config.write_text(json.dumps(config), encoding="utf-8")

    def _serves(self) -> bool:
        return self.api.is_ready()
