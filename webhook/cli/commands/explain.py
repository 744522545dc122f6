"""`explain`: explain a finding code or a reason, or the evaluation of an object step by step."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated

import typer

from webhook.audit.evaluate import EvaluationContext
from webhook.audit.object_files import SourceObject, read_objects
from webhook.audit.pod_audit import audit_pod, evaluate_for_explain, without_right_sizing
from webhook.cli import flags
from webhook.cli.cluster_access import DEFAULT_ACCESS, LIVE, ClusterFlags, choose_cluster, open_live_cluster
from webhook.cli.commands.check import exit_code_of_checks
from webhook.cli.inputs import (
    EvaluationFlags,
    load_cluster_policies,
    parse_labels,
    parse_now,
    read_evaluation_context,
    read_live_view,
    reject_unread_files,
)
from webhook.cli.output import (
    ReportRenderer,
    document_reports,
    exit_with_error,
    join_lines,
    paint_for,
    parse_targets,
    write_reports,
)
from webhook.cli.references import (
    full_pod_name,
    parse_reference,
    read_live_pod,
    read_snapshot_pod,
    select_live_pods,
    select_snapshot_pods,
    split_arguments,
)
from webhook.cli.selection import choose_namespace, select_objects
from webhook.errors import ApiError
from webhook.model.annotations import MIRROR_ANNOTATION
from webhook.model.codes import CODES
from webhook.model.pods import DEFAULT_NAMESPACE
from webhook.report.check import check_document
from webhook.report.code_pages import (
    REASON_TEXTS,
    closest_code,
    code_document,
    code_list,
    codes_markdown,
    find_reason,
    is_documented,
    page_lines,
    reason_document,
)
from webhook.report.explain import event_lines, explain_lines
from webhook.report.text import sanitize

if TYPE_CHECKING:
    from webhook.audit.cluster_reader import ClusterReader

ExplainedThings = Annotated[
    list[str] | None,
    flags.paths_argument(
        "A finding code, for example GPU-L102, or a reason, for example MultipleGPUs; with --cluster a pod, also as "
        "NAMESPACE/POD, or one of the pods of a workload: deployment/serve; or files with objects.",
        "CODE|REASON|POD|KIND/NAME|FILE|DIR|-",
        (*CODES, *REASON_TEXTS),
    ),
]
ExplainCluster = Annotated[
    str | None,
    flags.cluster_option(
        f"The cluster: {flags.CLUSTER_HELP}. Default: live for a pod by name or label; with -f none, so nothing is "
        "right-sized, and placement is not checked."
    ),
]
FORMATS = ("text", "json", "yaml")
ExplainOutput = Annotated[list[str] | None, flags.output_option(FORMATS)]
AllCodes = Annotated[bool, typer.Option("--all", help="Print the pages of all codes, as in docs/codes.md.")]


def explain_command(
    explained: ExplainedThings = None,
    filename: flags.Filenames = None,
    every: AllCodes = False,
    policies: flags.PoliciesOrLive = None,
    cluster: ExplainCluster = None,
    kubeconfig: flags.Kubeconfig = None,
    context: flags.Context = None,
    policy_namespace: flags.PolicyNamespace = "",
    namespace: flags.PodNamespace = None,
    all_namespaces: flags.SelectedNamespaces = False,
    selector: flags.Selector = "",
    namespace_labels: flags.NamespaceLabels = None,
    usage: flags.Usage = None,
    scheduler_config: flags.SchedulerConfig = None,
    now: flags.Now = "",
    output: ExplainOutput = None,
    no_color: flags.NoColor = False,
    verbose: flags.Verbose = False,
) -> None:
    """Explain a finding code, a reason, or an evaluation.

    For files, with -l, or for a pod of a cluster, shows the evaluation step by step; as JSON or YAML, what `check`
    reports.

    Exit code: 0, 2 invalid input or an unknown code, 3 the cluster did not answer.
    """
    targets = parse_targets(output, FORMATS)
    if every:
        write_reports(targets, {**_code_reports(None), "text": codes_markdown})
        return
    namespace = choose_namespace(namespace, all_namespaces)
    names, file = split_arguments(explained, lambda each: _full_name(each, namespace), filename)
    if len(names) > 1:
        exit_with_error(f"explain takes one code, reason or pod, found {sanitize(', '.join(names))}. Name one")
    code = next(iter(names), None)
    if selector and code is not None:
        exit_with_error(f"explain takes {sanitize(code)} or -l, found both. Write explain -l {sanitize(selector)}")
    is_other = code is not None and not is_documented(code)
    access = ClusterFlags(kubeconfig, context)
    selects_pod = is_other and (namespace is not None or access != DEFAULT_ACCESS or "/" in str(code))
    if cluster is None and ((selector and not file) or selects_pod):
        cluster = choose_cluster(cluster, file or ())
    names_pod = cluster is not None and (is_other or bool(selector and not file))
    if not file and not names_pod:
        write_reports(targets, _code_reports(code))
        return
    if file and code is not None:
        command = f"rightslice explain -f {sanitize(file[0])}"
        exit_with_error(f"explain takes {sanitize(code)} or files, found both. For all objects of the file: {command}")
    given = EvaluationFlags(
        cluster=cluster,
        access=access,
        policies=policies,
        policy_namespace=policy_namespace,
        labels=parse_labels(namespace_labels),
        usage=usage,
        now=parse_now(now),
        namespace=namespace or DEFAULT_NAMESPACE,
        scheduler_config=scheduler_config,
        verbose=verbose,
    )
    observed = given.read_usage()
    events: list[list[str]] = []
    if names_pod and cluster == LIVE:
        with open_live_cluster(given.access) as live:
            pods = (
                select_live_pods(live, namespace, selector)
                if selector
                else [read_live_pod(live, parse_reference(str(code), namespace))]
            )
            events = [pod_event_lines(live, pod) for pod in pods]
            known = load_cluster_policies(live, policies, policy_namespace, verbose=verbose)
            view = read_live_view(live, given.labels, scheduler_config, verbose=verbose)
        evaluation = EvaluationContext(known, view, given.now, observed, given.namespace)
        results = [audit_pod(pod, evaluation, without_right_sizing(known)) for pod in pods]
    else:
        evaluation = read_evaluation_context(given, observed)
        if names_pod:
            named = str(cluster)
            pods = (
                select_snapshot_pods(named, namespace, selector)
                if selector
                else [read_snapshot_pod(named, parse_reference(str(code), namespace))]
            )
            results = [audit_pod(pod, evaluation, without_right_sizing(evaluation.policies)) for pod in pods]
        else:
            documents = list(read_objects(file or []))
            reject_unread_files(documents)
            selection = select_objects(selector=selector)
            selection.note_none_of(documents)
            results = list(evaluate_for_explain(selection.choose(documents), evaluation))
    paint, names = paint_for(no_color=no_color), evaluation.policies.names
    events = events or [[] for _ in results]
    reports = {
        "text": lambda: "\n".join(
            join_lines(explain_lines(*each, paint)) for each in zip(results, events, strict=True)
        ),
        **document_reports(lambda: check_document(results, names)),
    }
    write_reports(targets, reports)
    raise typer.Exit(exit_code_of_checks(results, flags.FailOn.NEVER))


def _full_name(name: str, namespace: str | None) -> str:
    """Return the name of a code, a reason or a pod that is never taken for a file."""
    return name if is_documented(name) else full_pod_name(name, namespace)


def pod_event_lines(cluster: ClusterReader, pod: SourceObject) -> list[str]:
    """Return the Events of a pod and its controller, or that listing them is forbidden."""
    metadata = pod.data["metadata"]
    owners = [each for each in metadata.get("ownerReferences") or () if each.get("controller")]
    names = [metadata["name"], *(each["name"] for each in owners)]
    mirrored = (metadata.get("annotations") or {}).get(MIRROR_ANNOTATION, "")  # a static pod: the digest of its file
    own_uids = {str(metadata.get("uid", "")), str(mirrored)} - {""}
    uids = {("Pod", str(metadata["name"])): own_uids}
    uids |= {(each["kind"], each["name"]): {each["uid"]} for each in owners}
    try:
        return list(event_lines(cluster.events(metadata["namespace"], names), uids))
    except ApiError as error:
        if error.status != HTTPStatus.FORBIDDEN:
            raise
        return [f"{'Events':<10}unknown: {sanitize(str(error))}"]


def _code_reports(code: str | None) -> dict[str, ReportRenderer]:
    """Return the renderers of the page of a code or reason, or of the list of all codes. Exits if it is neither."""
    if code is None:
        every = {"codes": list(map(code_document, CODES))}
        return {"text": lambda: join_lines(code_list()), **document_reports(lambda: every)}
    page = _find_page(code)
    return {"text": lambda: join_lines(page_lines(page)), **document_reports(lambda: page)}


def _find_page(code: str) -> dict[str, str]:
    if reason := find_reason(code):
        return reason_document(reason)
    if code.upper() not in CODES:
        closest = closest_code(code)
        hint = f"Did you mean {closest}?" if closest else "rightslice explain lists them."
        ways = "To explain a file, use -f FILE. To explain a pod, write NAMESPACE/POD, or pass -n or --cluster"
        exit_with_error(f"{sanitize(code)!r} is neither a finding code nor a reason. {hint} {ways}")
    return code_document(code.upper())
