"""`accounting`: what a cluster needs before every form of GPU can be counted by one quota."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from webhook.cli import flags
from webhook.cli.console import paint_for, say
from webhook.cli.diagnosis import code_of, table
from webhook.cli.live import with_api
from webhook.installing.accounting import accounting_lines, read_accounted
from webhook.model.resources import ACCOUNTING
from webhook.report.data import as_yaml

accounting = typer.Typer(help="Count every form of GPU in one quota.", no_args_is_help=True)

Namespace = Annotated[
    str,
    typer.Option(
        "-n", "--namespace", metavar="NAME", callback=flags.namespace_name, help="The namespace of the quota."
    ),
]
MOST_GPUS = 1_000_000
Gpus = Annotated[
    int, typer.Option("--gpus", min=0, max=MOST_GPUS, metavar="COUNT", help="Whole GPUs that the quota allows.")
]


@accounting.command("enable")
def enable(namespace: Namespace = "default", gpus: Gpus = 8) -> None:
    """Print what makes the accounting resource work: an entry for kube-scheduler, and a quota to start from.

    The entry has no verbs: the scheduler never calls it, and only learns to leave the resource alone. Without it, pods
    that ask for the resource stay Pending. Where the scheduler cannot be configured, run the agent with --gpu-milli.
    """
    say("# Add to the KubeSchedulerConfiguration of every kube-scheduler, and restart it:\n")
    say(as_yaml({"extenders": [_extender()]}))
    say("---\n# Then write limits: {accounting: native, accountingScheduler: configured} in a policy, and a quota:\n")
    say(as_yaml(_quota(namespace, gpus)))


@accounting.command("check")
def check(
    namespace: Namespace = "default",
    no_color: flags.NoColor = False,
    kubeconfig: flags.Kubeconfig = None,
    context: flags.Context = None,
) -> None:
    """Look whether accounting works in a cluster: policies, scheduler, nodes, quotas. A pod is tried, never stored.

    Exit code: 0 nothing to act on, 1 something is, 2 a flag or the kubeconfig is wrong, 3 the cluster did not answer.
    """
    lines = list(accounting_lines(with_api(kubeconfig, context, lambda api: read_accounted(api, namespace))))
    say(table(lines, paint_for(no_color=no_color)))
    raise typer.Exit(code_of(lines))


def _extender() -> dict[str, Any]:
    managed = [{"name": ACCOUNTING, "ignoredByScheduler": True}]
    return {"urlPrefix": "http://127.0.0.1:1/never-called", "managedResources": managed}


def _quota(namespace: str, gpus: int) -> dict[str, Any]:
    metadata = {"name": "gpus", "namespace": namespace}
    hard = {f"requests.{ACCOUNTING}": str(1000 * gpus)}
    return {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": metadata, "spec": {"hard": hard}}
