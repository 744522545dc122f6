"""GPU usage for commands: of a file, or of the example cluster. No HTTP client is imported."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from webhook.cli.inputs import shipped_path
from webhook.cli.output import exit_with_error, print_note
from webhook.errors import RightsliceError
from webhook.model.usage import UsageView
from webhook.report.text import pluralize, sanitize
from webhook.usage import loader
from webhook.usage.estimator import estimate_usage
from webhook.usage.history import count_pods
from webhook.usage.record_file import UsageRecord, read_record


class ClusterUsage(NamedTuple):
    """The usage that was read for a cluster.

    Attributes:
        record: None if there is none, or it is too old.
        problem: Why the cluster's own Prometheus was not read; "" if it was, or was not to be read.
    """

    record: UsageRecord | None
    problem: str = ""


@lru_cache(maxsize=1)
def read_usage_file(name: str, moment: datetime) -> UsageRecord | None:
    """Read a file of recorded GPU usage; None if it is too old. Exits if it cannot be used."""
    try:
        recorded = read_record(Path(name))
    except RightsliceError as error:
        exit_with_error(f"--usage {error}")
    return check_age(recorded, f"--usage {sanitize(name)}", moment, exit_with_error)


@lru_cache(maxsize=1)
def read_demo_record(moment: datetime) -> UsageRecord:
    """Read the usage of the example cluster, as if it had been recorded now."""
    print_note("note: demo is an example cluster with three weeks of example usage, not yours")
    return read_record(Path(shipped_path("examples", "usage", "demo.json"))).moved_to(int(moment.timestamp()))


def check_age(
    recorded: UsageRecord, source: str, moment: datetime, reject: Callable[[str], None]
) -> UsageRecord | None:
    """Return the record, None if it is too old; `reject` handles one of the future."""
    now = moment.timestamp()
    if error_text := loader.future_record_error(recorded.now, now):
        reject(f"{source}: {error_text}")
        return None
    too_old = loader.old_record_error(recorded.now, now)
    if note := too_old or loader.record_age_note(recorded.now, now):
        print_note(f"note: {source}: {note}")
    return None if too_old else recorded


def estimate_view(recorded: UsageRecord, *, verbose: bool = False) -> UsageView:
    """Estimate needs from a record."""
    view = estimate_usage(recorded.histories, recorded.now)
    if verbose:
        recorded_at = datetime.fromtimestamp(recorded.now, UTC)
        pods, containers = count_pods(recorded.histories), len(view.observed)
        of_pods = f"{pluralize(containers, 'container')} of {pluralize(pods, 'pod')}"
        print_note(f"usage: {of_pods}, recorded {recorded_at:%Y-%m-%dT%H:%M:%SZ}")
    return view
