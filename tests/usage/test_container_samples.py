"""Histories built from samples are always accepted by a record file."""

from __future__ import annotations

from array import array
from pathlib import Path

from webhook.usage.container_samples import ContainerSamples, OwnerChains, TimeGrid, build_history
from webhook.usage.history import GAP, MAX_FAILURES, MIB_TYPECODE, UsageHistory
from webhook.usage.record_file import UsageRecord, read_record, write_record

HOUR = 3600
NOW = 500_000 * HOUR + 1000
GRID = TimeGrid(NOW // HOUR * HOUR - 90 * 24 * HOUR, NOW // HOUR * HOUR, HOUR, 100, NOW)


def written_and_read(tmp_path: Path, samples: ContainerSamples) -> UsageHistory:
    """Build the history, write it to a file and read it back."""
    write_record(
        tmp_path / "use.json", UsageRecord([build_history(("ml", "a", "main"), samples, GRID, OwnerChains(), {})], NOW)
    )
    (found,) = read_record(tmp_path / "use.json").histories
    return found


def test_mean_is_at_most_the_largest_peak(tmp_path: Path) -> None:
    """Low usage in the last whole bin, and high usage since."""
    found = written_and_read(tmp_path, ContainerSamples(array(MIB_TYPECODE, [GAP, 100, 200]), mean_mib=5000))

    assert (found.mean_mib, found.peak_mib) == (200, 200)


def test_only_the_latest_failures_are_kept(tmp_path: Path) -> None:
    """One failure each hour for ninety days."""
    hours = range(GRID.start, GRID.end, HOUR)
    found = written_and_read(
        tmp_path, ContainerSamples(array(MIB_TYPECODE, [100]), ooms=set(hours), xids={(moment, 31) for moment in hours})
    )

    assert (found.ooms[-1], found.xids[-1]) == (hours[-1], (hours[-1], 31))
    assert len(found.ooms) + len(found.xids) == MAX_FAILURES
