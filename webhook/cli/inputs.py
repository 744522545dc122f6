"""Inputs of the commands: policies, a cluster, usage, labels and times. Invalid input exits with code 2."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

import msgspec
import typer

from webhook.audit.adjusted_view import with_namespace_labels
from webhook.audit.evaluate import EvaluationContext
from webhook.audit.object_files import SkippedDocument, SourceObject, document_files, read_content
from webhook.cache.bundled_files import bundled_folder, shown_name
from webhook.cache.snapshot import collect_snapshot, read_schedulers, read_snapshot
from webhook.cli.cluster_access import DEFAULT_ACCESS, LIVE, ClusterFlags, open_live_cluster, reject_access_flags
from webhook.cli.output import EXIT_INVALID_INPUT, exit_with_error, print_note
from webhook.documents.document import POLICY_BOUNDS
from webhook.errors import RightsliceError, read_problem
from webhook.model.cluster_view import ClusterView
from webhook.model.fleet import Fleet
from webhook.model.pods import DEFAULT_NAMESPACE
from webhook.model.schedulers import NO_SCHEDULERS, Schedulers
from webhook.model.usage import UsageView
from webhook.policy.fair_share import FairShare
from webhook.policy.loader import LoadResult, load_policies
from webhook.policy.policy_set import PolicySet, halt_rollouts
from webhook.report.text import pluralize, sanitize
from webhook.server.policy_sources import LastLoaded, combine_sources
from webhook.well_known import DEMO

if TYPE_CHECKING:
    from webhook.audit.cluster_reader import ClusterReader
    from webhook.usage.record_file import UsageRecord

STDIN = "-"
LOCAL_FOLDER = "policies"
"""The folder of policies and their tests that commands read if none is named."""

SAVE_CLUSTER = "Save the output of kubectl get nodes,pods -A -o yaml"


class EvaluationFlags(msgspec.Struct, frozen=True, kw_only=True):
    """The flags that select what objects are evaluated against."""

    cluster: str | None
    access: ClusterFlags
    policies: Sequence[str] | None
    policy_namespace: str
    labels: Mapping[str, str]
    usage: str | None
    now: datetime
    namespace: str = DEFAULT_NAMESPACE
    scheduler_config: Path | None = None
    verbose: bool

    def read_usage(self) -> UsageView:
        """Read the recorded usage, and estimate from it."""
        record = self.read_record()
        if record is None:
            return UsageView()
        from webhook.cli.usage_records import estimate_view  # numpy is slow to import

        return estimate_view(record, verbose=self.verbose)

    def read_record(self) -> UsageRecord | None:
        """Read the recorded usage; for the example cluster, by default the example's."""
        return read_recorded_usage(self.usage, self.cluster, self.now)


def read_recorded_usage(usage: str | None, cluster: str | None, moment: datetime) -> UsageRecord | None:
    """Read a file of usage; without one, the usage of the example cluster if that is the cluster."""
    if usage is None and cluster != DEMO:
        return None
    from webhook.cli import usage_records  # numpy is slow to import

    if usage is None:
        return usage_records.read_demo_record(moment)
    return usage_records.read_usage_file(usage, moment)


def read_evaluation_context(flags: EvaluationFlags, usage: UsageView) -> EvaluationContext:
    """Read the policies and the cluster to evaluate objects against.

    Without policy paths, these are a live cluster's own policies, else the shipped library.
    """
    verbose = flags.verbose
    if flags.cluster != LIVE:
        policies = load_policy_set(flags.policies, verbose=verbose)
        view = read_cluster_view(flags.cluster, flags.labels, flags.access, verbose=verbose)
        view = view.with_schedulers(read_scheduler_config(flags.scheduler_config, view.schedulers))
    else:
        with open_live_cluster(flags.access) as cluster:
            policies = load_cluster_policies(cluster, flags.policies, flags.policy_namespace, verbose=verbose)
            view = read_live_view(cluster, flags.labels, flags.scheduler_config, verbose=verbose)
    return EvaluationContext(policies, view, flags.now, usage, flags.namespace)


def note_demo(cluster: str | None) -> None:
    """Say that figures are of the example cluster, if they are."""
    if cluster == DEMO:
        print_note("note: demo is an example cluster, not yours")


# Policies


def read_policy_files(paths: Sequence[str] | None) -> list[tuple[str, str]]:
    """Return names and texts of policy files, "-" for standard input; without paths, of the shipped library.

    A file that is named twice, also by its folder, is read once. Exits if a path cannot be read.
    """
    paths = list(paths) if paths else [shipped_path("policies")]
    named = (file for path in paths for file in _list_policy_files(path))
    files: dict[str, str] = {}
    for file in named:
        files.setdefault(file if file == STDIN else os.path.realpath(file), file)
    if not files:
        missing = "no policy files (.yaml, .yml, .json) here. Name a file, or a folder that contains some"
        exit_with_error(f"{', '.join(paths)}: {missing}")
    limit, texts = POLICY_BOUNDS.size + 1, []
    for file in files.values():
        try:
            content = sys.stdin.buffer.read(limit) if file == STDIN else read_content(file, limit)
        except OSError as error:
            exit_with_error(f"{file}: {read_problem(error)}{_shipped_policy_hint(file)}")
        texts.append((shown_name(file), content.decode(errors="surrogateescape")))
    return texts


def _list_policy_files(path: str) -> list[str]:
    if path == STDIN:
        return [path]
    try:
        return document_files(path)
    except OSError as error:
        exit_with_error(f"{error.filename or path}: {read_problem(error)}")


def _shipped_policy_hint(path: str) -> str:
    """Return how to name shipped policies, for a path that only a checkout has; "" for other paths."""
    file = PurePath(path)
    shipped = bundled_folder("policies").joinpath(*file.parts[1:])
    if file.parts[:1] != ("policies",) or not shipped.exists():
        return ""
    if shipped.is_dir():
        return ". Without --policies, the shipped policies are read"
    return f". To save the shipped policy, write rightslice policy show {file.stem} > {file.name}, and name that file"


def shipped_path(*names: str) -> str:
    """Return the path of a shipped file or folder, relative to the current directory if it is below it."""
    here, path = Path.cwd(), bundled_folder(names[0]).joinpath(*names[1:])
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


def load_policy_set(paths: Sequence[str] | None, *, verbose: bool = False) -> PolicySet:
    """Load policy files. Exits, after printing every error, if they cannot be used."""
    files = read_policy_files(paths)
    loaded = load_policies(files)
    note_skipped_documents(loaded)
    if loaded.policies is None:
        for line in policy_error_lines(loaded):
            print_note(line)
        exit_with_error("the policies cannot be used")
    if verbose:
        names = ", ".join(policy.name for policy in loaded.policies.policies)
        print_note(
            f"policies: {names or 'none'} (from {pluralize(len(files), 'file')}, digest {loaded.policies.digest})"
        )
    return loaded.policies


def note_skipped_documents(loaded: LoadResult) -> None:
    """Print the objects among policy files that are not policies."""
    for sentence in loaded.skipped:
        print_note(sanitize(f"note: {sentence}"))


def policy_error_lines(loaded: LoadResult) -> Iterable[str]:
    """Return every error of policy files, one per line."""
    return (f"{error.location}  error  {error.code}  {error.message}" for error in loaded.errors)


def load_cluster_policies(
    cluster: ClusterReader,
    paths: Sequence[str] | None,
    namespace: str,
    *,
    verbose: bool = False,
    note: Callable[[str], None] = print_note,
) -> PolicySet:
    """Load the policies of the files, if any are named; else those that a webhook in the cluster uses."""
    if paths:
        return load_policy_set(paths, verbose=verbose)
    sources = cluster.policies(namespace)
    if sources.unread_reason:
        note(f"note: the cluster's policy files are unknown: {sanitize(sources.unread_reason)}")
    combined = combine_sources(sources.files, sources.objects, LastLoaded(), load_policies)
    for unused in unused_policy_notes(combined.errors, sources.ready):
        note(f"note: {sanitize(unused)}")
    halted = {source.partition("/")[2] for source in sources.halted if source not in combined.unused}
    policies = halt_rollouts(combined.policies or PolicySet(), halted)
    for name in sorted(halted):
        note(f"note: the rollout of policy {sanitize(name)} was halted, so it is in audit mode for all workloads")
    if not policies.policies and not sources.ready and not combined.errors:
        unseen = "Policy files of a server outside the cluster cannot be seen"
        hint = f"Name others: --policies {shipped_path('policies')}"
        places = "neither as objects nor in the ConfigMap rightslice-policies"
        note(f"note: this cluster has no policies, {places}. {unseen}. {hint}")
    if verbose:
        names = sanitize(", ".join(policy.name for policy in policies.policies))
        print_note(f"policies: {names or 'none'} (of the cluster, digest {policies.digest})")
    return policies


def unused_policy_notes(errors: Mapping[str, str], ready: Collection[str]) -> Iterator[str]:
    """Yield a sentence for each source of the cluster's policies that is not used here.

    Args:
        errors: Why sources do not load, each with its source.
        ready: Sources that a server reports as in use. They may depend on policy files of that server.
    """
    yield from (f"not in use as it is written: {error}" for error, source in errors.items() if source not in ready)
    for source in sorted({source for source in errors.values() if source in ready}):
        yield (
            f"{source} is in use according to its status, but is not evaluated here: it needs a server's policy files, "
            "which cannot be seen. To evaluate all policies, pass --policies for those files and for files of the "
            "objects"
        )


def choose_fair_share(policies: PolicySet, name: str) -> FairShare:
    """Return the fair share of the named policy, or the only one. Exits if that is ambiguous."""
    shares = _fair_shares(policies)
    if name:
        if name not in shares:
            choices = f"Policies with one: {', '.join(shares) or 'none'}"
            exit_with_error(f"--policy: no policy named {sanitize(name)!r} has a fairShare. {choices}")
        return shares[name]
    if len(shares) > 1:
        exit_with_error(f"several policies have a fairShare: {', '.join(shares)}. Choose one with --policy NAME")
    return next(iter(shares.values()), FairShare())


def single_fair_share(policies: PolicySet, source: str) -> FairShare:
    """Return the only fair share. Exits if there is none, or more than one."""
    shares = _fair_shares(policies)
    if len(shares) != 1:
        found = ", ".join(shares) or "none"
        exit_with_error(f"{source}: must have one policy with a fairShare, found {found}. Name a file with one")
    return next(iter(shares.values()))


def _fair_shares(policies: PolicySet) -> dict[str, FairShare]:
    return {each.name: each.fair_share for each in policies.policies if each.fair_share is not None}


# Clusters


def snapshot_path(cluster: str) -> str:
    """Return the file or folder of a snapshot; of `demo`, the shipped example."""
    return shipped_path("examples", "cluster") if cluster == DEMO else cluster


def read_live_view(
    cluster: ClusterReader, labels: Mapping[str, str], scheduler_config: Path | None = None, *, verbose: bool = False
) -> ClusterView:
    """List a live cluster, whose schedulers have a configuration."""
    view = cluster.view(schedulers=read_scheduler_config(scheduler_config))
    if verbose:
        note_cluster(cluster.server, view.fleet)
    return with_namespace_labels(view, labels)


def read_scheduler_config(path: Path | None, present: Schedulers = NO_SCHEDULERS) -> Schedulers:
    """Return the schedulers of a configuration file; without one, those that are present. Exits if it is invalid."""
    if path is None:
        return present
    try:
        return read_schedulers(str(path))
    except RightsliceError as error:
        exit_with_error(f"--scheduler-config: {error}")


def read_cluster_view(
    name: str | None, labels: Mapping[str, str], access: ClusterFlags = DEFAULT_ACCESS, *, verbose: bool = False
) -> ClusterView:
    """Read a snapshot or list a live cluster; without a name, return an unknown cluster."""
    if name == LIVE:
        with open_live_cluster(access) as cluster:
            return read_live_view(cluster, labels, verbose=verbose)
    reject_access_flags(access)
    try:
        snapshot = read_snapshot(name) if name else collect_snapshot(())
    except RightsliceError as error:
        exit_with_error(str(error))
    except OSError as error:
        exit_with_error(f"{name}: {read_problem(error)}")
    if verbose:
        note_cluster(name or "unknown", snapshot.view.fleet, snapshot.skipped)
    return with_namespace_labels(snapshot.view, labels)


def note_cluster(name: str, fleet: Fleet, skipped: Iterable[str] = ()) -> None:
    """Print to stderr what a cluster contains, and what of it was skipped."""
    nodes, offers = len(fleet.nodes), len(fleet.offers)
    print_note(f"cluster: {sanitize(name)} ({pluralize(nodes, 'node')}, {pluralize(offers, 'offer')})")
    for sentence in skipped:
        print_note(f"cluster: {sanitize(sentence)}")


# Files


def report_broken_files(documents: Sequence[SourceObject | SkippedDocument]) -> bool:
    """Print what cannot be read or is not evaluated, and why. Returns whether anything is invalid."""
    skipped = [each for each in documents if isinstance(each, SkippedDocument)]
    for each in skipped:
        print_note(sanitize(f"{'error' if each.invalid else 'note'}: {each.location}: {each.reason}"))
    return any(each.invalid for each in skipped)


def reject_broken_files(documents: Sequence[SourceObject | SkippedDocument]) -> None:
    """Exit, after printing every error, if something cannot be read: a sum over the rest would be wrong."""
    if report_broken_files(documents):
        raise typer.Exit(EXIT_INVALID_INPUT)


def reject_unread_files(documents: Sequence[SourceObject | SkippedDocument]) -> None:
    """Exit, after printing every error, if nothing can be read."""
    if documents and all(isinstance(each, SkippedDocument) and each.invalid for each in documents):
        reject_broken_files(documents)


# Values


def parse_labels(texts: Sequence[str] | None) -> dict[str, str]:
    """Parse labels as kubectl writes them: team=vision,tier=research."""
    labels = {}
    for part in filter(None, ",".join(texts or ()).split(",")):
        key, equals, value = part.partition("=")
        if not equals or not key:
            exit_with_error(f"--namespace-labels: must be KEY=VALUE, found {part!r}. Write team=vision,tier=research")
        labels[key.strip()] = value.strip()
    return labels


def parse_now(text: str) -> datetime:
    """Parse --now; without a value, read the clock. Commands read the clock nowhere else."""
    if not text:
        return datetime.now(UTC)
    moment = parse_timestamp(text)
    if moment is None:
        exit_with_error(f"--now: must be a time with its zone, found {text!r}. Write 2026-06-01T00:00:00Z")
    return moment


def parse_timestamp(text: str) -> datetime | None:
    """Parse RFC 3339 with a time zone; None if the text is not that."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment if moment.tzinfo is not None else None
