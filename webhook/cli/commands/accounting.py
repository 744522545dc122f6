"""`accounting`: set up and check the resource that counts every form of GPU in one quota."""

from __future__ import annotations

from typing import Annotated

import typer

from webhook.cli import flags
from webhook.cli.cluster_access import ClusterFlags, call_api
from webhook.cli.commands.doctor import FORMATS, DoctorOutput, diagnosis_exit_code, diagnosis_reports
from webhook.cli.output import RowFlags, paint_for, parse_targets, print_result, write_reports
from webhook.installing.accounting_check import accounting_results, read_accounting_facts
from webhook.model.gpu_resources import ACCOUNTING_RESOURCE
from webhook.report.serialization import yaml_text

accounting = typer.Typer(help="Set up or check one quota for whole GPUs, slices and shares.", no_args_is_help=True)

QuotaNamespace = Annotated[str, flags.namespace_option("The namespace of the quota.")]
CheckedNamespace = Annotated[
    str, flags.namespace_option("The namespace whose quotas are checked, and where the pod of the dry run is created.")
]
MAX_GPUS = 1_000_000
QuotaGpus = Annotated[
    int, typer.Option("--gpus", min=0, max=MAX_GPUS, metavar="COUNT", help="Whole GPUs that the quota allows.")
]


@accounting.command("enable")
def enable_accounting(namespace: QuotaNamespace = "default", gpus: QuotaGpus = 8) -> None:
    """Print a scheduler configuration and a quota for accounting.

    The extender entry has no verbs, so the scheduler never calls it and only ignores the resource. Without the entry,
    pods that request the resource stay Pending. If you cannot configure the scheduler, run the agent with --gpu-milli.

    Exit code: 0, 2 invalid input.
    """
    extender = {
        "urlPrefix": "http://127.0.0.1:1/never-called",
        "managedResources": [{"name": ACCOUNTING_RESOURCE, "ignoredByScheduler": True}],
    }
    print_result("# Add to the KubeSchedulerConfiguration of every kube-scheduler, and restart it:\n")
    print_result(yaml_text({"extenders": [extender]}))
    policy = "limits: {accounting: native, accountingScheduler: configured}"
    print_result(f"---\n# Then set {policy} in a policy, and create a quota:\n")
    metadata = {"name": "gpus", "namespace": namespace}
    hard = {f"requests.{ACCOUNTING_RESOURCE}": str(1000 * gpus)}
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": metadata, "spec": {"hard": hard}}
    print_result(yaml_text(quota))


@accounting.command("check")
def check_accounting(
    namespace: CheckedNamespace = "default",
    sort_by: flags.SortBy = "",
    no_headers: flags.NoHeaders = False,
    output: DoctorOutput = None,
    no_color: flags.NoColor = False,
    kubeconfig: flags.Kubeconfig = None,
    context: flags.Context = None,
) -> None:
    """Check whether accounting works in a cluster.

    Checks policies, scheduler, nodes and quotas, and creates a pod as a dry run.

    Exit code: 0 nothing to act on, 1 problems, 2 invalid input, 3 the cluster did not answer.
    """
    targets = parse_targets(output, FORMATS)
    facts = call_api(ClusterFlags(kubeconfig, context), lambda api: read_accounting_facts(api, namespace))
    results = list(accounting_results(facts))
    write_reports(targets, diagnosis_reports(results, paint_for(no_color=no_color), RowFlags(sort_by, no_headers)))
    raise typer.Exit(diagnosis_exit_code(results))
