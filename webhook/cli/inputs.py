"""What the commands read: policies, a cluster, namespace labels, the moment. Wrong input ends with exit code 2."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from webhook.audit.adjusted_view import with_namespace_labels
from webhook.audit.object_files import document_files, read_content
from webhook.cache.bundled_files import bundled_folder
from webhook.cache.snapshot import ClusterSnapshot, collect_snapshot, read_snapshot
from webhook.cli.cluster_flags import exit_on_cluster_errors
from webhook.cli.output import exit_with_error, print_note
from webhook.documents.decode import POLICY_BOUNDS
from webhook.errors import RightsliceError
from webhook.model.cluster_view import ClusterView
from webhook.model.usage import UsageView
from webhook.policy.loader import LoadResult, load_policies
from webhook.policy.policy_set import PolicySet, halt_rollouts
from webhook.report.text import pluralize, sanitize
from webhook.server.policy_sources import LastLoaded, combine_sources

if TYPE_CHECKING:
    from webhook.audit.cluster_reader import ClusterReader, PodObserver
import typer

from webhook.audit.object_files import SkippedDocument, SourceObject
from webhook.cli.output import WRONG_INPUT
from webhook.policy.fair_share import FairShare

LIVE = "live"
STDIN = "-"


def read_policy_files(paths: Sequence[str] | None) -> list[tuple[str, str]]:
    """Names and texts of policy files, "-" for standard input; of the shipped library where none are named.

    Stops the program where a path cannot be read.
    """
    wanted = list(paths) if paths else [relative_path(bundled_folder("policies"))]
    files = [file for path in wanted for file in ([path] if path == STDIN else document_files(path))]
    if not files:
        exit_with_error(
            f"{', '.join(wanted)}: no policy files (.yaml, .yml, .json) here. Name a file or a folder with some"
        )
    return [(file, _policy_file_text(file)) for file in files]


def _policy_file_text(file: str) -> str:
    if file == STDIN:
        return sys.stdin.buffer.read(POLICY_BOUNDS.size + 1).decode(errors="surrogateescape")
    try:
        return read_content(file, POLICY_BOUNDS.size + 1).decode(errors="surrogateescape")
    except OSError as error:
        exit_with_error(f"{file}: cannot be read: {error.strerror or error}")


def relative_path(path: Path) -> str:
    """A path as it is seen from here."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


def load_policy_set(paths: Sequence[str] | None, *, verbose: bool = False) -> PolicySet:
    """Load policies. Stops the program, with every fault, where they cannot be used."""
    files = read_policy_files(paths)
    loaded = load_policies(files)
    if loaded.policies is None:
        for line in policy_error_lines(loaded):
            print_note(line)
        exit_with_error("the policies cannot be used")
    if verbose:
        names = ", ".join(policy.name for policy in loaded.policies.policies)
        print_note(f"policies: {names or 'none'} (from {len(files)} files, digest {loaded.policies.digest})")
    return loaded.policies


def policy_error_lines(loaded: LoadResult) -> Iterable[str]:
    """Every fault of policy files, one a line."""
    return (f"{error.location}  error  {error.code}  {error.message}" for error in loaded.errors)


class ClusterFlags(NamedTuple):
    """How a live cluster is reached: the flags --kubeconfig and --context."""

    kubeconfig: str | None = None
    context: str | None = None


DEFAULT_ACCESS = ClusterFlags()


def load_cluster_policies(
    cluster: ClusterReader, paths: Sequence[str] | None, namespace: str, *, verbose: bool = False
) -> PolicySet:
    """The policies of the files where any are named; else those that a webhook in the cluster has."""
    if paths:
        return load_policy_set(paths, verbose=verbose)
    sources = cluster.policies(namespace)
    if sources.unread_reason:
        print_note(f"note: the policy files of the cluster are not known: {sanitize(sources.unread_reason)}")
    combined = combine_sources(sources.files, sources.objects, LastLoaded(), load_policies)
    for note in unused_policy_notes(combined.errors, sources.ready):
        print_note(f"note: {sanitize(note)}")
    stopped = {source.partition("/")[2] for source in sources.halted if source not in combined.unused}
    policies = halt_rollouts(combined.policies or PolicySet(), stopped)
    for name in sorted(stopped):
        print_note(f"note: the rollout of policy {sanitize(name)} was halted, so it is on trial for everybody")
    if not policies.policies and not sources.ready:
        others = f"Name others: --policies {relative_path(bundled_folder('policies'))}"
        unseen = "What a server outside the cluster reads from files is not seen"
        print_note(f"note: no policy is in force in this cluster, as an object or in our ConfigMap. {unseen}. {others}")
    if verbose:
        names = sanitize(", ".join(policy.name for policy in policies.policies))
        print_note(f"policies: {names or 'none'} (in force in the cluster, digest {policies.digest})")
    return policies


def unused_policy_notes(faults: Mapping[str, str], ready: Collection[str]) -> Iterator[str]:
    """What of the cluster's policies does not count here, one sentence each.

    Args:
        faults: Why some of it does not load, and what each is about.
        ready: What a server says that it uses: with policies in files, which may be all that is missing here.
    """
    yield from (f"not in use as it is written: {fault}" for fault, source in faults.items() if source not in ready)
    for source in sorted({source for source in faults.values() if source in ready}):
        yield (
            f"{source} is in use, as its status says, and does not count here: it needs a server's policy files, which "
            "cannot be seen. To judge by all of them, write --policies for those files and for files of the objects"
        )


@contextmanager
def open_live_cluster(reach: ClusterFlags) -> Iterator[ClusterReader]:
    """A live cluster. Stops the program where it cannot be reached, or holds what cannot be read."""
    from webhook.audit.cluster_reader import ClusterReader

    try:
        with exit_on_cluster_errors(), ClusterReader(reach.kubeconfig, reach.context) as cluster:
            yield cluster
    except RightsliceError as error:
        exit_with_error(str(error))


def read_live_view(
    cluster: ClusterReader, labels: Mapping[str, str], *, verbose: bool = False, look: PodObserver | None = None
) -> ClusterView:
    """What a webhook in the cluster would judge by now; `look` sees the pods that make it."""
    view = cluster.view(look)
    if verbose:
        note_snapshot(cluster.server, ClusterSnapshot(view))
    return with_namespace_labels(view, labels)


def read_cluster_view(
    name: str | None, labels: Mapping[str, str], reach: ClusterFlags = DEFAULT_ACCESS, *, verbose: bool = False
) -> ClusterView:
    """Read a snapshot or list a live cluster; without a name, a cluster of which nothing is known."""
    if name == LIVE:
        with open_live_cluster(reach) as cluster:
            return read_live_view(cluster, labels, verbose=verbose)
    reject_access_flags(reach)
    try:
        snapshot = read_snapshot(name) if name else collect_snapshot(())
    except RightsliceError as error:
        exit_with_error(str(error))
    except OSError as error:
        exit_with_error(f"{name}: cannot be read: {error.strerror or error}")
    if verbose:
        note_snapshot(name or "not known", snapshot)
    return with_namespace_labels(snapshot.view, labels)


def read_usage_view(name: str | None, moment: datetime, *, verbose: bool = False) -> UsageView:
    """What workloads were seen to use, of a file of recorded use; nothing where none is named, or it is too old.

    Stops the program where the file cannot be used.
    """
    if name is None:
        return UsageView()
    from webhook.usage import loader
    from webhook.usage.estimator import estimate_usage
    from webhook.usage.history import count_pods
    from webhook.usage.record_file import read_record as read_usage

    try:
        recorded = read_usage(Path(name))
    except RightsliceError as error:
        exit_with_error(f"--usage {error}")
    now = moment.timestamp()
    if fault := loader.future_record_error(recorded.now, now):
        exit_with_error(f"--usage {sanitize(name)}: {fault}")
    if note := loader.old_record_error(recorded.now, now) or loader.record_age_note(recorded.now, now):
        print_note(f"note: --usage {sanitize(name)}: {note}")
    if loader.old_record_error(recorded.now, now):
        return UsageView()
    view = estimate_usage(recorded.histories, recorded.now)
    if verbose:
        moment = datetime.fromtimestamp(recorded.now, UTC)
        pods, seen = pluralize(count_pods(recorded.histories), "pod"), pluralize(len(view.observed), "container")
        print_note(f"usage: {seen} of {pods}, recorded {moment:%Y-%m-%dT%H:%M:%SZ}")
    return view


def reject_access_flags(reach: ClusterFlags, flag: str = "--cluster") -> None:
    """Stops the program where flags say which live cluster, and `flag` means none."""
    if reach != DEFAULT_ACCESS:
        exit_with_error(f"--kubeconfig and --context say which live cluster: write {flag} live")


class PoliciesAndView(NamedTuple):
    """What objects are judged by, and in which cluster."""

    policies: PolicySet
    view: ClusterView


def read_policies_and_view(
    name: str | None,
    paths: Sequence[str] | None,
    labels: Mapping[str, str],
    reach: ClusterFlags,
    namespace: str,
    *,
    verbose: bool = False,
) -> PoliciesAndView:
    """Policies and cluster. Where no policies are named, a live cluster's own, and else the shipped library.

    Args:
        name: What --cluster says.
        paths: What --policies says.
        namespace: Where a live cluster keeps exceptions and policy files.
    """
    if name != LIVE:
        return PoliciesAndView(
            load_policy_set(paths, verbose=verbose), read_cluster_view(name, labels, reach, verbose=verbose)
        )
    with open_live_cluster(reach) as cluster:
        policies = load_cluster_policies(cluster, paths, namespace, verbose=verbose)
        return PoliciesAndView(policies, read_live_view(cluster, labels, verbose=verbose))


def note_snapshot(name: str, snapshot: ClusterSnapshot) -> None:
    """Say on stderr what a snapshot came to, and what of it was left out."""
    fleet = snapshot.view.fleet
    print_note(
        f"cluster: {sanitize(name)} ({pluralize(len(fleet.nodes), 'node')}, {pluralize(len(fleet.offers), 'offer')})"
    )
    for sentence in snapshot.skipped:
        print_note(f"cluster: {sanitize(sentence)}")


def parse_labels(texts: Sequence[str] | None) -> dict[str, str]:
    """Read labels written as on kubectl's command line: team=vision,tier=research."""
    labels = {}
    for part in filter(None, ",".join(texts or ()).split(",")):
        key, equals, value = part.partition("=")
        if not equals or not key:
            exit_with_error(f"--namespace-labels: must be KEY=VALUE, found {part!r}. Write team=vision,tier=research")
        labels[key.strip()] = value.strip()
    return labels


def parse_now(text: str) -> datetime:
    """Read RFC 3339; the clock where nothing is written. The only place where the command line reads it."""
    if not text:
        return datetime.now(UTC)
    moment = parse_timestamp(text)
    if moment is None:
        exit_with_error(f"--now: must be a moment with its zone, found {text!r}. Write 2026-06-01T00:00:00Z")
    return moment


def parse_timestamp(text: str) -> datetime | None:
    """A moment with its zone; None where the text is none."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment if moment.tzinfo is not None else None


def report_broken_files(found: Sequence[SourceObject | SkippedDocument]) -> bool:
    """Say what cannot be read, and why. Was there any?"""
    broken = [each for each in found if isinstance(each, SkippedDocument) and each.broken]
    for each in broken:
        print_note(sanitize(f"error: {each.place}: {each.reason}"))
    return bool(broken)


def reject_broken_files(found: Sequence[SourceObject | SkippedDocument]) -> None:
    """Stops the program, with every fault, where something cannot be read: a sum over the rest would be wrong."""
    if report_broken_files(found):
        raise typer.Exit(WRONG_INPUT)


def choose_fair_share(policies: PolicySet, name: str) -> FairShare:
    """The fair share that counts. Stops the program where it is not clear which."""
    having = {each.name: each.fair_share for each in policies.policies if each.fair_share is not None}
    if name:
        if name not in having:
            exit_with_error(
                f"--policy: no policy called {sanitize(name)!r} has a fairShare. Those "
                f"that have: {fair_share_policy_names(having)}"
            )
        return having[name]
    if len(having) > 1:
        exit_with_error(
            f"several policies have a fairShare: {fair_share_policy_names(having)}. Choose one with --policy NAME"
        )
    return next(iter(having.values()), FairShare())


def single_fair_share(policies: PolicySet, where: str) -> FairShare:
    """The one fair share that there is. Stops the program where there is none, or more than one.

    Args:
        policies: All that were read.
        where: What to call where they were read from.
    """
    having = {each.name: each.fair_share for each in policies.policies if each.fair_share is not None}
    if len(having) != 1:
        exit_with_error(
            f"{where}: must have one policy with a fairShare, found "
            f"{fair_share_policy_names(having)}. Name a file with one"
        )
    return next(iter(having.values()))


def fair_share_policy_names(having: dict[str, FairShare]) -> str:
    """The names of policies, or that there are none."""
    return ", ".join(having) or "none"
