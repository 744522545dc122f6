"""`accounting`: what a cluster needs before every form of GPU can be counted by one quota."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from webhook.cli.console import say
from webhook.model.resources import ACCOUNTING
from webhook.report.data import as_yaml

accounting = typer.Typer(help="Count every form of GPU in one quota.", no_args_is_help=True)

Namespace = Annotated[str, typer.Option("-n", "--namespace", metavar="NAME", help="The namespace of the quota.")]
Gpus = Annotated[int, typer.Option("--gpus", min=0, metavar="COUNT", help="Whole GPUs that the quota allows.")]


@accounting.command("enable")
def enable(namespace: Namespace = "default", gpus: Gpus = 8) -> None:
    """Print what makes the accounting resource work: an entry for kube-scheduler, and a quota to start from.

    The entry has no verbs: the scheduler never calls it, and only learns to leave the resource alone. Without it, pods
    that ask for the resource stay Pending. Where the scheduler cannot be configured, leave limits.accounting off.
    """
    say("# Add to the KubeSchedulerConfiguration of every kube-scheduler, and restart it:\n")
    say(as_yaml({"extenders": [_extender()]}))
    say("---\n# Then, with limits.accounting: native in a policy, this bounds GPUs in every form:\n")
    say(as_yaml(_quota(namespace, gpus)))


def _extender() -> dict[str, Any]:
    managed = [{"name": ACCOUNTING, "ignoredByScheduler": True}]
    return {"urlPrefix": "http://127.0.0.1:1/never-called", "managedResources": managed}


def _quota(namespace: str, gpus: int) -> dict[str, Any]:
    metadata = {"name": "gpus", "namespace": namespace}
    hard = {f"requests.{ACCOUNTING}": str(1000 * gpus)}
    return {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": metadata, "spec": {"hard": hard}}
