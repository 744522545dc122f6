"""`policy`: lint, list, show, compare and create policies."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from webhook.audit.object_files import SourceObject, read_objects
from webhook.audit.pod_audit import audit_claims
from webhook.cache.informers import empty_view
from webhook.cli import flags
from webhook.cli.cluster_access import LIVE, ClusterFlags, open_live_cluster, reject_access_flags
from webhook.cli.commands.policy_diff import diff_policies
from webhook.cli.inputs import (
    LOCAL_FOLDER,
    load_cluster_policies,
    load_policy_set,
    note_demo,
    note_skipped_documents,
    parse_now,
    policy_error_lines,
    read_cluster_view,
    read_policy_files,
    shipped_path,
    snapshot_path,
)
from webhook.cli.output import (
    EXIT_FINDINGS,
    EXIT_OK,
    RowFlags,
    document_reports,
    exit_with_error,
    join_lines,
    parse_targets,
    print_note,
    print_result,
    write_reports,
)
from webhook.documents.reader import read_documents
from webhook.engine.linting import find_device_problems
from webhook.manifests.objects import WEBHOOK_KINDS
from webhook.manifests.sent_resources import (
    SentResources,
    find_unsent_classes,
    read_sent_resources,
    resource_flags,
)
from webhook.model.cluster_view import ClusterView
from webhook.model.enums import PolicyMode
from webhook.model.field_paths import map_at
from webhook.policy.group_growth import find_group_problems
from webhook.policy.impossible_limits import find_impossible_limits
from webhook.policy.lint import find_missing_slices, find_unmatched
from webhook.policy.loader import LoadResult, load_policies
from webhook.policy.policy_set import Policy, PolicySet
from webhook.policy.written.kinds import GPUPolicy
from webhook.report.code_pages import closest_name
from webhook.report.policies import POLICY_ROWS, section_modes
from webhook.report.serialization import location_document
from webhook.report.text import pluralize, sanitize, without_style
from webhook.server.review_cost import measure_review_cost
from webhook.web.limits import MAX_CPU_SECONDS
from webhook.well_known import APP_NAME

policy = typer.Typer(help="Lint, list, show, compare and create policies.", no_args_is_help=True)

policy.command("diff")(diff_policies)

REJECT_ONLY_SECTIONS = ("quotas", "security")
"""Sections that deny pods and never change them."""

PolicyPaths = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="FILE|DIR",
        help=f"Policy files or folders. Default: those of .rightslice.yaml, else ./policies, else {flags.LIBRARY}.",
    ),
]

LintedCluster = Annotated[
    str | None, flags.cluster_option(f"The cluster that policies should match: {flags.CLUSTER_HELP}.")
]

ListedCluster = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        metavar=LIVE,
        help="live: the policies that the webhook of a cluster uses, of objects and its ConfigMap, instead of files.",
        autocompletion=flags.complete_words((LIVE,)),
    ),
]

PolicyToShow = Annotated[str, typer.Argument(metavar="NAME", help="Name of the policy.")]

LINT_FORMATS = ("text", "json", "yaml")
LintOutput = Annotated[list[str] | None, flags.output_option(LINT_FORMATS)]
SHOW_FORMATS = ("yaml", "json")
ShowOutput = Annotated[list[str] | None, flags.output_option(SHOW_FORMATS)]
LIST_FORMATS = ("table", "wide", "name", "json", "yaml")
ListOutput = Annotated[list[str] | None, flags.output_option(LIST_FORMATS)]

NewPolicyName = Annotated[str, typer.Argument(metavar="NAME", help="Name of the new policy.")]


@policy.command("lint")
def lint_policies(
    called: typer.Context,
    paths: PolicyPaths = None,
    filename: flags.Filenames = None,
    cluster: LintedCluster = None,
    kubeconfig: flags.Kubeconfig = None,
    context: flags.Context = None,
    now: flags.Now = "",
    output: LintOutput = None,
) -> None:
    """Check policy files: every error with its position and a fix.

    Also lists expired exemptions, policies that match no pod, limits that no pod can satisfy together, and policies
    that take too much CPU together. With --cluster, also lists policies that match no pod of that cluster, policies
    that right-size to slices that no node has, node groups that cannot grow, GPUs that are published twice, device
    classes by whose resource name pods are not sent to the webhooks, and findings about waiting resource claims and
    claim templates.

    Exit code: 0 no errors, 1 errors, 2 invalid input, 3 the cluster did not answer.
    """
    targets = parse_targets(output, LINT_FORMATS)
    paths = flags.join_paths(paths, filename) or called.lookup_default("policies") or _default_paths()
    files = read_policy_files(paths)
    loaded = load_policies(files)
    note_skipped_documents(loaded)
    text = {"text": lambda: join_lines(map(sanitize, policy_error_lines(loaded)))}
    write_reports(targets, text | document_reports(lambda: _errors_document(loaded)))
    note_demo(cluster)
    access = ClusterFlags(kubeconfig, context)
    view = read_cluster_view(cluster, {}, access) if cluster else None
    for note in _unsent_classes(view, cluster, access) if cluster and view is not None else ():
        print_note(sanitize(f"note: {note}"))
    for note in _policy_notes(loaded.policies, view, parse_now(now)) if loaded.policies is not None else ():
        print_note(sanitize(f"note: {note}"))
    errors = pluralize(len(loaded.errors), "error") if loaded.errors else "no errors"
    checked = files[0][0] if len(files) == 1 else f"{pluralize(len(files), 'file')} of {', '.join(paths)}"
    print_note(sanitize(f"{checked}: {errors}"))
    raise typer.Exit(EXIT_FINDINGS if loaded.errors else EXIT_OK)


def _default_paths() -> list[str]:
    """Return the local policies; without them the shipped ones, and print that."""
    if Path(LOCAL_FOLDER).is_dir():
        return [LOCAL_FOLDER]
    print_note(
        f"note: no policies are named or configured, and there is no folder {LOCAL_FOLDER}: reads {flags.LIBRARY}"
    )
    return [shipped_path("policies")]


def _errors_document(loaded: LoadResult) -> list[dict[str, Any]]:
    """Return every error of policy files as plain data."""
    return [
        {**location_document(each.location), "path": each.path, "code": each.code, "message": each.message}
        for each in loaded.errors
    ]


def _policy_notes(policies: PolicySet, view: ClusterView | None, now: datetime) -> Iterator[str]:
    """Yield settings that are valid and have no effect, or a surprising one."""
    for exemption in policies.exemptions:
        if now >= exemption.expires:
            expired = f"exemption {exemption.name} of {exemption.policy} expired on {exemption.expires:%Y-%m-%d}"
            yield f"{expired} and has no effect. Remove it, or set a later expirationTime"
    halting = [one for one in policies.policies if one.rollout and one.rollout.halt_thresholds is not None]
    for one in halting:
        yield f"haltOn of policy {one.name} works only for objects of a cluster; rollouts of files are not monitored"
    for one in halting:
        present = {name: section for name in REJECT_ONLY_SECTIONS if (section := getattr(one, name)) is not None}
        sections = " and ".join(name for name, section in present.items() if section.mode is PolicyMode.ENFORCE)
        if sections:
            yield (
                f"a halt of policy {one.name} also puts {sections} in audit mode, and failing pods can cause a halt. "
                f"Move {sections} to a policy without haltOn"
            )
    models = [source.model for source in policies.sources if isinstance(source.model, GPUPolicy)]
    for index, model in enumerate(models):
        yield from find_unmatched(model, view)
        yield from find_impossible_limits(model, models[:index])
    yield from _slow_reviews(policies, view or empty_view(), now)
    if view is not None:
        for one in policies.policies:
            yield from find_missing_slices(one, view)
        yield from (f"{summary}: {advice}" for summary, advice in find_group_problems(policies.policies, view))
        problems = find_device_problems(view.devices.pools, view.classes, view.fleet)
        yield from (f"{summary}: {advice}" for summary, advice in problems)
        for result in audit_claims(view):
            yield from (f"{result.title}: {found.finding}" for found in result.findings)


def _unsent_classes(view: ClusterView, cluster: str, access: ClusterFlags) -> Iterator[str]:
    """Yield the device classes of GPUs by whose resource name the webhooks get no pods."""
    if not any(find_unsent_classes(view.classes, SentResources())):
        return
    sent = _sent_resources(cluster, access)
    unsent = list(find_unsent_classes(view.classes, sent))
    names = dict.fromkeys((*sent.added, *(each.resource for each in unsent)))
    for each in unsent:
        yield (
            f"{each}, so no policy applies to them: rightslice install {resource_flags(names)}, or with Helm the value "
            "gpuResources"
        )


def _sent_resources(cluster: str, access: ClusterFlags) -> SentResources:
    """Return the resource names by which the webhooks of a cluster get pods: as shipped, if that is not known."""
    if cluster == LIVE:
        with open_live_cluster(access) as live:
            found = live.validating_webhooks()
    else:
        objects = (each.data for each in read_objects([snapshot_path(cluster)]) if isinstance(each, SourceObject))
        found = next((each for each in objects if _is_validating_webhooks(each)), None)
    return read_sent_resources(found) if found is not None else SentResources()


def _is_validating_webhooks(data: dict[str, Any]) -> bool:
    return data["kind"] == WEBHOOK_KINDS[1] and map_at(data, "metadata").get("name") == APP_NAME


def _slow_reviews(policies: PolicySet, view: ClusterView, now: datetime) -> Iterator[str]:
    """Yield a sentence if a review takes about as long as the server allows, or longer."""
    cost = measure_review_cost(policies, view, now)
    if cost.is_slow:
        costliest = ", ".join(f"{name} {seconds * 1000:.1f} ms" for name, seconds in cost.costliest)
        yield (
            f"{pluralize(cost.policies, 'policy', 'policies')} may match one pod, and its review takes up to "
            f"{cost.seconds * 1000:.0f} ms of CPU; the server stops a review after {MAX_CPU_SECONDS * 1000:.0f} ms, so "
            f"pods may fail to be created. Costliest: {costliest}. Let fewer policies match one pod: narrow match, "
            "merge policies, or shorten match conditions"
        )


class ListedPolicies(NamedTuple):
    """Policies of files or of a cluster, and a function that returns their texts by source."""

    policies: PolicySet
    read_texts: Callable[[], Sequence[tuple[str, str]]]


def _read_listed_policies(
    called: typer.Context,
    paths: list[str] | None,
    policies: list[str] | None,
    cluster: str | None,
    access: ClusterFlags,
    namespace: str,
) -> ListedPolicies:
    """Read the policies of files, or with `--cluster live` those in use. Exits if both are named."""
    if cluster is None:
        reject_access_flags(access)
        chosen = flags.choose_policies(called, paths, policies)
        return ListedPolicies(load_policy_set(chosen), lambda: read_policy_files(chosen))
    if cluster != LIVE:
        exit_with_error(f"--cluster: must be {LIVE}, found {sanitize(cluster)!r}: a snapshot says nothing of policies")
    if paths or flags.is_written(called, "policies"):
        exit_with_error(f"--cluster {LIVE}: must be used without policy files, found both. Leave one out")
    with open_live_cluster(access) as live:
        found, sources = load_cluster_policies(live, None, namespace), live.policies(namespace)
    return ListedPolicies(found, lambda: [*sources.files, *sources.objects])


@policy.command("list")
def list_policies(
    called: typer.Context,
    paths: flags.ListedPaths = None,
    policies: flags.ListedPolicies = None,
    cluster: ListedCluster = None,
    kubeconfig: flags.Kubeconfig = None,
    context: flags.Context = None,
    policy_namespace: flags.PolicyNamespace = "",
    sort_by: flags.SortBy = "",
    no_headers: flags.NoHeaders = False,
    output: ListOutput = None,
) -> None:
    """List policies.

    Shows name, mode, sections (with their mode if it differs), and position in the file; -o wide also the description.

    Exit code: 0, 2 invalid input, 3 the cluster did not answer.
    """
    targets, rows = parse_targets(output, LIST_FORMATS), RowFlags(sort_by, no_headers)
    access = ClusterFlags(kubeconfig, context)
    listed = _read_listed_policies(called, paths, policies, cluster, access, policy_namespace)
    found = rows.sort(POLICY_ROWS, listed.policies.policies, _policy_document)
    for_people = rows.reports(POLICY_ROWS, found, lambda each: f"{POLICY_NAME}/{each.name}", without_style)
    write_reports(targets, for_people | document_reports(lambda: list(map(_policy_document, found))))


def _policy_document(each: Policy) -> dict[str, Any]:
    description = {"description": each.description} if each.description else {}
    percent = {"rolloutPercent": each.rollout.percent} if each.rollout else {}
    return {
        "name": each.name,
        **description,
        "mode": str(each.mode),
        **percent,
        "sections": {name: str(mode) for name, mode in section_modes(each)},
        **location_document(each.location),
    }


POLICY_NAME = "gpupolicy.rightslice.dev"


@policy.command("show")
def show_policy(
    called: typer.Context,
    name: PolicyToShow,
    paths: flags.ListedPaths = None,
    policies: flags.ListedPolicies = None,
    cluster: ListedCluster = None,
    kubeconfig: flags.Kubeconfig = None,
    context: flags.Context = None,
    policy_namespace: flags.PolicyNamespace = "",
    output: ShowOutput = None,
) -> None:
    """Print a policy with all defaults filled in.

    Exit code: 0, 2 invalid input, or no such policy, 3 the cluster did not answer.
    """
    targets, access = parse_targets(output, SHOW_FORMATS), ClusterFlags(kubeconfig, context)
    listed = _read_listed_policies(called, paths, policies, cluster, access, policy_namespace)
    found = {each.name: each for each in listed.policies.policies}
    if name not in found:
        closest = closest_name(name, found)
        hint = f"Did you mean {closest}?" if closest else f"There are {', '.join(sorted(found)) or 'none'}."
        exit_with_error(f"no policy named {sanitize(name)!r}. {hint}")
    reports = document_reports(lambda: _policy_with_defaults(found[name], listed.read_texts()))
    write_reports(targets, reports)


def _policy_with_defaults(shown: Policy, files: Sequence[tuple[str, str]]) -> Any:
    [document] = (
        document
        for file, text in files
        if file == shown.location.file
        for document in read_documents(text, file)
        if document.locate() == shown.location
    )
    model = GPUPolicy.model_validate(document.data)
    filled = model.model_dump(mode="json", by_alias=True, exclude_none=True, warnings=False)
    return _keep_written_values(filled, document.data)


def _keep_written_values(filled: Any, written: Any) -> Any:
    """Replace values by their written form, so that sizes keep their units."""
    if isinstance(filled, dict) and isinstance(written, dict):
        return {
            key: _keep_written_values(value, written[key]) if key in written else value for key, value in filled.items()
        }
    if isinstance(filled, list) and isinstance(written, list):
        return [_keep_written_values(*pair) for pair in zip(filled, written, strict=True)]
    return written


@policy.command("new")
def new_policy(name: NewPolicyName) -> None:
    """Print a commented policy to start from.

    Exit code: 0, 2 an invalid name.
    """
    text = render_starter_policy(name)
    errors = load_policies([(name, text)]).errors
    if errors:
        exit_with_error(f"NAME: {errors[0].message}")
    print_result(text)


def render_starter_policy(name: str) -> str:
    """Return a commented GPUPolicy in audit mode.

    Args:
        name: The policy's name: lower-case letters, digits, "-" and ".".
    """
    return Path(__file__).with_name("starter_policy.yaml").read_text(encoding="utf-8").replace("{name}", name)
