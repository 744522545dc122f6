"""`accounting`: what a cluster needs before every form of GPU can be counted by one quota."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from webhook.cli import flags
from webhook.cli.cluster_flags import call_api
from webhook.cli.commands.doctor import diagnosis_exit_code, diagnosis_table
from webhook.cli.output import paint_for, print_result
from webhook.installing.accounting_check import accounting_results, read_accounting_facts
from webhook.model.gpu_resources import ACCOUNTING_RESOURCE
from webhook.report.serialization import yaml_text

accounting = typer.Typer(help="Count every form of GPU in one quota.", no_args_is_help=True)

QuotaNamespace = Annotated[
    str,
    typer.Option(
        "-n", "--namespace", metavar="NAME", callback=flags.validate_namespace_name, help="The namespace of the quota."
    ),
]
MAX_GPUS = 1_000_000
QuotaGpus = Annotated[
    int, typer.Option("--gpus", min=0, max=MAX_GPUS, metavar="COUNT", help="Whole GPUs that the quota allows.")
]


@accounting.command("enable")
def enable_accounting(namespace: QuotaNamespace = "default", gpus: QuotaGpus = 8) -> None:
    """Print what makes the accounting resource work: an entry for kube-scheduler, and a quota to start from.

    The entry has no verbs: the scheduler never calls it, and only learns to leave the resource alone. Without it, pods
    that ask for the resource stay Pending. Where the scheduler cannot be configured, run the agent with --gpu-milli.
    """
    print_result("# Add to the KubeSchedulerConfiguration of every kube-scheduler, and restart it:\n")
    print_result(yaml_text({"extenders": [_managed_resource_extender()]}))
    print_result(
        "---\n# Then write limits: {accounting: native, accountingScheduler: configured} in a policy, and a quota:\n"
    )
    print_result(yaml_text(_starting_quota(namespace, gpus)))


@accounting.command("check")
def check_accounting(
    namespace: QuotaNamespace = "default",
    no_color: flags.NoColor = False,
    kubeconfig: flags.Kubeconfig = None,
    context: flags.Context = None,
) -> None:
    """Look whether accounting works in a cluster: policies, scheduler, nodes, quotas. A pod is tried, never stored.

    Exit code: 0 nothing to act on, 1 something is, 2 a flag or the kubeconfig is wrong, 3 the cluster did not answer.
    """
    lines = list(accounting_results(call_api(kubeconfig, context, lambda api: read_accounting_facts(api, namespace))))
    print_result(diagnosis_table(lines, paint_for(no_color=no_color)))
    raise typer.Exit(diagnosis_exit_code(lines))


def _managed_resource_extender() -> dict[str, Any]:
    managed = [{"name": ACCOUNTING_RESOURCE, "ignoredByScheduler": True}]
    return {"urlPrefix": "http://127.0.0.1:1/never-called", "managedResources": managed}


def _starting_quota(namespace: str, gpus: int) -> dict[str, Any]:
    metadata = {"name": "gpus", "namespace": namespace}
    hard = {f"requests.{ACCOUNTING_RESOURCE}": str(1000 * gpus)}
    return {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": metadata, "spec": {"hard": hard}}
