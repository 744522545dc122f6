"""GPU usage for commands: of a file, of the example cluster, of a named Prometheus, or of the cluster's own."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

from webhook.audit.prometheus_service import PrometheusService, find_prometheus_service
from webhook.cli.cluster_access import ClusterFlags, call_api
from webhook.cli.inputs import shipped_path
from webhook.cli.output import EXIT_NO_ANSWER, exit_with_error, print_note
from webhook.errors import ApiError, RightsliceError, UsageError
from webhook.kube.api import KubeClient
from webhook.model.usage import UsageView
from webhook.report.text import pluralize, sanitize
from webhook.usage import loader
from webhook.usage.estimator import estimate_usage
from webhook.usage.history import count_pods
from webhook.usage.history_reader import PrometheusReading, read_histories
from webhook.usage.prometheus import PrometheusClient
from webhook.usage.prometheus_source import PrometheusSource
from webhook.usage.record_file import UsageRecord, read_record

CREDENTIALS_HINT = "If it needs credentials, write a file with rightslice usage record, and name it with --usage"


@cache
def read_usage_file(name: str, moment: datetime) -> UsageRecord | None:
    """Read a file of recorded GPU usage; None if it is too old. Exits if it cannot be used."""
    try:
        recorded = read_record(Path(name))
    except RightsliceError as error:
        exit_with_error(f"--usage {error}")
    return _check_age(recorded, f"--usage {sanitize(name)}", moment, exit_with_error)


@cache
def read_demo_record(moment: datetime) -> UsageRecord:
    """Read the usage of the example cluster, as if it had been recorded now."""
    print_note("note: demo: an example cluster with example usage of three weeks, not yours")
    return read_record(Path(shipped_path("examples", "usage", "demo.json"))).moved_to(int(moment.timestamp()))


@cache
def read_prometheus(url: str, moment: datetime) -> UsageRecord | None:
    """Read the usage of the last days from a Prometheus. Exits if it cannot be read."""
    try:
        client = PrometheusClient(PrometheusSource(url))
    except UsageError as error:
        exit_with_error(f"--prometheus: {sanitize(str(error))}")
    try:
        reading = asyncio.run(read_usage_history(client))
    except UsageError as error:
        exit_with_error(f"--prometheus: {sanitize(str(error))}. {CREDENTIALS_HINT}", EXIT_NO_ANSWER)
    return _record_of(reading, f"--prometheus {sanitize(url)}", moment, exit_with_error)


@cache
def read_cluster_prometheus(access: ClusterFlags, moment: datetime) -> UsageRecord | None:
    """Read usage from the cluster's own Prometheus, found by its Service; None, with a note, if that is impossible."""

    async def read(api: KubeClient) -> tuple[PrometheusService | None, PrometheusReading | str]:
        try:
            service = await find_prometheus_service(api)
        except ApiError as error:
            return None, f"no Prometheus was searched: {error}"
        if service is None:
            return None, "no Prometheus was found in the cluster. Name one: --prometheus URL, or --usage FILE"
        endpoint = await service.endpoint(api)
        try:
            return service, await read_usage_history(PrometheusClient(PrometheusSource(endpoint.base_url), endpoint))
        except UsageError as error:
            return service, str(error)

    service, reading = call_api(access, read)
    if service is None or isinstance(reading, str):
        where = f"{service.label}, found by its labels, was not read: " if service else ""
        _note_without_usage(f"{where}{reading}")
        return None
    source = f"Prometheus {service.label}"
    others = f"; {pluralize(service.others, 'other')} not read" if service.others else ""
    print_note(f"usage: {source}, found by {service.selector}, through the API server{others}")
    return _record_of(reading, source, moment, _note_without_usage)


def estimate_view(recorded: UsageRecord, *, verbose: bool = False) -> UsageView:
    """Estimate needs from a record."""
    view = estimate_usage(recorded.histories, recorded.now)
    if verbose:
        recorded_at = datetime.fromtimestamp(recorded.now, UTC)
        pods, containers = count_pods(recorded.histories), len(view.observed)
        of_pods = f"{pluralize(containers, 'container')} of {pluralize(pods, 'pod')}"
        print_note(f"usage: {of_pods}, recorded {recorded_at:%Y-%m-%dT%H:%M:%SZ}")
    return view


async def read_usage_history(client: PrometheusClient) -> PrometheusReading:
    """Read the usage of the last days within the time limit.

    Raises:
        UsageError: There is no usable answer in time.
    """
    seconds = client.source.seconds
    if sys.stderr.isatty():
        days = pluralize(client.source.days, "day")
        print_note(f"reading {days} of usage from {client.source.base_url}; this may take minutes")
    try:
        async with client, asyncio.timeout(seconds):
            return await read_histories(client, time.time)
    except TimeoutError as error:
        raise UsageError(f"{client.source.base_url}: must answer within {seconds:g} s in total, did not") from error


def _note_without_usage(sentence: str) -> None:
    print_note(f"note: usage: {sanitize(sentence)}")


def _record_of(
    reading: PrometheusReading, source: str, moment: datetime, reject: Callable[[str], None]
) -> UsageRecord | None:
    for note in reading.notes:
        print_note(f"note: {sanitize(note)}")
    return _check_age(UsageRecord(reading.histories, reading.now), source, moment, reject)


def _check_age(
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
