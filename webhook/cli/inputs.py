"""What the commands read: policies, a cluster, namespace labels, the moment. Wrong input ends with exit code 2."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from webhook.audit.files import content_of, files_under
from webhook.audit.views import with_labels
from webhook.cache.shipped import shipped
from webhook.cache.snapshot import Snapshot, gather, read_snapshot
from webhook.cli.console import stop, tell
from webhook.cli.reaching import reached
from webhook.documents.bounds import POLICY
from webhook.errors import RightsliceError
from webhook.model.cluster import ClusterView
from webhook.model.usage import UsageView
from webhook.policy.capping import halted
from webhook.policy.compiled import PolicySet
from webhook.policy.loading import Loaded, load
from webhook.report.words import count, shown
from webhook.server.policysources import Good, combine

if TYPE_CHECKING:
    from webhook.audit.cluster import Cluster, Look

LIVE = "live"
STDIN = "-"


def policy_files(paths: Sequence[str] | None) -> list[tuple[str, str]]:
    """Names and texts of policy files, "-" for standard input; of the shipped library where none are named.

    Stops the program where a path cannot be read.
    """
    wanted = list(paths) if paths else [nearby(shipped("policies"))]
    files = [file for path in wanted for file in ([path] if path == STDIN else files_under(path))]
    if not files:
        stop(f"{', '.join(wanted)}: no policy files (.yaml, .yml, .json) here. Name a file or a folder with some")
    return [(file, _text(file)) for file in files]


def _text(file: str) -> str:
    if file == STDIN:
        return sys.stdin.buffer.read(POLICY.size + 1).decode(errors="surrogateescape")
    try:
        return content_of(file, POLICY.size + 1).decode(errors="surrogateescape")
    except OSError as error:
        stop(f"{file}: cannot be read: {error.strerror or error}")


def nearby(path: Path) -> str:
    """A path as it is seen from here."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


def policies_of(paths: Sequence[str] | None, *, verbose: bool = False) -> PolicySet:
    """Load policies. Stops the program, with every fault, where they cannot be used."""
    files = policy_files(paths)
    loaded = load(files)
    if loaded.policies is None:
        for line in fault_lines(loaded):
            tell(line)
        stop("the policies cannot be used")
    if verbose:
        names = ", ".join(policy.name for policy in loaded.policies.policies)
        tell(f"policies: {names or 'none'} (from {len(files)} files, digest {loaded.policies.digest})")
    return loaded.policies


def fault_lines(loaded: Loaded) -> Iterable[str]:
    """Every fault of policy files, one a line."""
    return (f"{error.place}  error  {error.code}  {error.sentence}" for error in loaded.errors)


class Reach(NamedTuple):
    """How a live cluster is reached: the flags --kubeconfig and --context."""

    kubeconfig: str | None = None
    context: str | None = None


HERE = Reach()


def policies_in_force(
    cluster: Cluster, paths: Sequence[str] | None, namespace: str, *, verbose: bool = False
) -> PolicySet:
    """The policies of the files where any are named; else those that a webhook in the cluster has."""
    if paths:
        return policies_of(paths, verbose=verbose)
    sources = cluster.policies(namespace)
    if sources.unread:
        tell(f"note: the policy files of the cluster are not known: {shown(sources.unread)}")
    combined = combine(sources.files, sources.objects, Good(), load)
    for note in left_out(combined.faults, sources.ready):
        tell(f"note: {shown(note)}")
    stopped = {source.partition("/")[2] for source in sources.halted if source not in combined.unused}
    policies = halted(combined.policies or PolicySet(), stopped)
    for name in sorted(stopped):
        tell(f"note: the rollout of policy {shown(name)} was halted, so it is on trial for everybody")
    if not policies.policies and not sources.ready:
        others = f"Name others: --policies {nearby(shipped('policies'))}"
        unseen = "What a server outside the cluster reads from files is not seen"
        tell(f"note: no policy is in force in this cluster, as an object or in our ConfigMap. {unseen}. {others}")
    if verbose:
        names = shown(", ".join(policy.name for policy in policies.policies))
        tell(f"policies: {names or 'none'} (in force in the cluster, digest {policies.digest})")
    return policies


def left_out(faults: Mapping[str, str], ready: Collection[str]) -> Iterator[str]:
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
def live_cluster(reach: Reach) -> Iterator[Cluster]:
    """A live cluster. Stops the program where it cannot be reached, or holds what cannot be read."""
    from webhook.audit.cluster import Cluster  # the HTTP client takes its time: only who needs it pays

    try:
        with reached(), Cluster(reach.kubeconfig, reach.context) as cluster:
            yield cluster
    except RightsliceError as error:
        stop(str(error))


def live_view(
    cluster: Cluster, labels: Mapping[str, str], *, verbose: bool = False, look: Look | None = None
) -> ClusterView:
    """What a webhook in the cluster would judge by now; `look` sees the pods that make it."""
    view = cluster.view(look)
    if verbose:
        tell_of(cluster.server, Snapshot(view))
    return with_labels(view, labels)


def cluster_of(
    name: str | None, labels: Mapping[str, str], reach: Reach = HERE, *, verbose: bool = False
) -> ClusterView:
    """Read a snapshot or list a live cluster; without a name, a cluster of which nothing is known."""
    if name == LIVE:
        with live_cluster(reach) as cluster:
            return live_view(cluster, labels, verbose=verbose)
    refuse_reach(reach)
    try:
        snapshot = read_snapshot(name) if name else gather(())
    except RightsliceError as error:
        stop(str(error))
    except OSError as error:
        stop(f"{name}: cannot be read: {error.strerror or error}")
    if verbose:
        tell_of(name or "not known", snapshot)
    return with_labels(snapshot.view, labels)


def usage_of(name: str | None, moment: datetime, *, verbose: bool = False) -> UsageView:
    """What workloads were seen to use, of a file of recorded use; nothing where none is named, or it is too old.

    Stops the program where the file cannot be used.
    """
    if name is None:
        return UsageView()
    from webhook.usage import ages
    from webhook.usage.estimating import estimate  # numpy takes its time: only who needs it pays
    from webhook.usage.files import read as read_usage
    from webhook.usage.history import pods_in

    try:
        recorded = read_usage(Path(name))
    except RightsliceError as error:
        stop(f"--usage {error}")
    now = moment.timestamp()
    if fault := ages.too_new(recorded.now, now):
        stop(f"--usage {shown(name)}: {fault}")
    if note := ages.too_old(recorded.now, now) or ages.worth_telling(recorded.now, now):
        tell(f"note: --usage {shown(name)}: {note}")
    if ages.too_old(recorded.now, now):
        return UsageView()
    view = estimate(recorded.histories, recorded.now)
    if verbose:
        moment = datetime.fromtimestamp(recorded.now, UTC)
        pods, seen = count(pods_in(recorded.histories), "pod"), count(len(view.observed), "container")
        tell(f"usage: {seen} of {pods}, recorded {moment:%Y-%m-%dT%H:%M:%SZ}")
    return view


def refuse_reach(reach: Reach, flag: str = "--cluster") -> None:
    """Stops the program where flags say which live cluster, and `flag` means none."""
    if reach != HERE:
        stop(f"--kubeconfig and --context say which live cluster: write {flag} live")


class Judged(NamedTuple):
    """What objects are judged by, and in which cluster."""

    policies: PolicySet
    view: ClusterView


def judged_by(
    name: str | None,
    paths: Sequence[str] | None,
    labels: Mapping[str, str],
    reach: Reach,
    namespace: str,
    *,
    verbose: bool = False,
) -> Judged:
    """Policies and cluster. Where no policies are named, a live cluster's own, and else the shipped library.

    Args:
        name: What --cluster says.
        paths: What --policies says.
        namespace: Where a live cluster keeps exceptions and policy files.
    """
    if name != LIVE:
        return Judged(policies_of(paths, verbose=verbose), cluster_of(name, labels, reach, verbose=verbose))
    with live_cluster(reach) as cluster:
        policies = policies_in_force(cluster, paths, namespace, verbose=verbose)
        return Judged(policies, live_view(cluster, labels, verbose=verbose))


def tell_of(name: str, snapshot: Snapshot) -> None:
    """Say on stderr what a snapshot came to, and what of it was left out."""
    fleet = snapshot.view.fleet
    tell(f"cluster: {shown(name)} ({count(len(fleet.nodes), 'node')}, {count(len(fleet.offers), 'offer')})")
    for sentence in snapshot.skipped:
        tell(f"cluster: {shown(sentence)}")


def labels_of(texts: Sequence[str] | None) -> dict[str, str]:
    """Read labels written as on kubectl's command line: team=vision,tier=research."""
    labels = {}
    for part in filter(None, ",".join(texts or ()).split(",")):
        key, equals, value = part.partition("=")
        if not equals or not key:
            stop(f"--namespace-labels: must be KEY=VALUE, found {part!r}. Write team=vision,tier=research")
        labels[key.strip()] = value.strip()
    return labels


def moment_of(text: str) -> datetime:
    """Read RFC 3339; the clock where nothing is written. The only place where the command line reads it."""
    if not text:
        return datetime.now(UTC)
    moment = zoned(text)
    if moment is None:
        stop(f"--now: must be a moment with its zone, found {text!r}. Write 2026-06-01T00:00:00Z")
    return moment


def zoned(text: str) -> datetime | None:
    """A moment with its zone; None where the text is none."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment if moment.tzinfo is not None else None
