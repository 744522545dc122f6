"""Record files: written files are read back, and invalid ones are rejected with a reason."""

from __future__ import annotations

import gzip
import json
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from webhook.errors import UsageError
from webhook.usage import record_file
from webhook.usage.history import GAP, MAX_MIB, MIB_TYPECODE, UsageHistory
from webhook.usage.record_file import UsageRecord, read_record, write_record

NOW = 1_795_000_000.0


def history(**fields: Any) -> UsageHistory:
    """Return the history of one container over four hours."""
    made: dict[str, Any] = {
        "namespace": "ml",
        "workload": "Deployment/serve",
        "container": "main",
        "pod": "serve-1",
        "start": int(NOW) - 4 * 3600,
        "step_seconds": 3600,
        "peaks_mib": array(MIB_TYPECODE, [10, GAP, 30, 40]),
    }
    return UsageHistory(**(made | fields))


def blind(**fields: Any) -> UsageHistory:
    """Return the history of another pod without memory samples."""
    return history(pod="blind", peaks_mib=array(MIB_TYPECODE, [GAP] * 4), **fields)


FULL = history(
    image="vllm:1",
    mean_mib=20,
    capacity_mib=40_960,
    compute_milli=100,
    active_milli=5,
    gpus=4,
    ooms=(int(NOW) - 60,),
    xids=((int(NOW) - 30, 31),),
)


@pytest.mark.parametrize("name", ["use.json", "use.json.gz"])
def test_written_file_is_read_back(tmp_path: Path, name: str) -> None:
    recorded = UsageRecord([FULL, history(pod="serve-2")], NOW)

    write_record(tmp_path / name, recorded)

    assert read_record(tmp_path / name) == recorded
    assert [file.name for file in tmp_path.iterdir()] == [name]


AMOUNT = st.integers(0, MAX_MIB)
HISTORIES = st.builds(
    history,
    namespace=st.text(),
    workload=st.text(),
    pod=st.text(),
    peaks_mib=st.lists(AMOUNT | st.just(GAP), max_size=3).map(lambda bins: array(MIB_TYPECODE, [MAX_MIB, *bins])),
    mean_mib=st.none() | AMOUNT,
    active_milli=st.none() | st.integers(0, 1000),
    xids=st.lists(st.tuples(st.integers(0, int(NOW)), st.integers(0, 200))).map(tuple),
)


@given(st.lists(HISTORIES, max_size=5, unique_by=lambda one: (one.namespace, one.pod)))
def test_any_histories_are_read_back(tmp_path_factory: pytest.TempPathFactory, histories: list[UsageHistory]) -> None:
    file = tmp_path_factory.getbasetemp() / "any.json.gz"

    write_record(file, UsageRecord(histories, NOW))

    assert read_record(file) == UsageRecord(histories, NOW)


def test_failed_write_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "use.json"
    write_record(file, UsageRecord([FULL], NOW))

    def fail(*_: object) -> bytes:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("webhook.usage.record_file.Path.replace", fail)
    with pytest.raises(OSError, match="No space"):
        write_record(file, UsageRecord([], NOW))

    assert read_record(file).histories == [FULL]
    assert [left.name for left in tmp_path.iterdir()] == ["use.json"]


def test_containers_with_only_gaps_are_dropped(tmp_path: Path) -> None:
    write_record(tmp_path / "use.json", UsageRecord([FULL, blind()], NOW))

    assert read_record(tmp_path / "use.json").histories == [FULL]


@pytest.mark.parametrize("failures", [{"ooms": (int(NOW) - 60,)}, {"xids": ((int(NOW) - 60, 31),)}], ids=str)
def test_failures_are_kept_without_memory_samples(tmp_path: Path, failures: dict[str, Any]) -> None:
    write_record(tmp_path / "use.json", UsageRecord([FULL, blind(**failures)], NOW))

    assert read_record(tmp_path / "use.json").histories == [FULL, blind(**failures)]


def document(**fields: Any) -> dict[str, Any]:
    """Return a file as JSON data, with some fields changed."""
    one = {
        "namespace": "n",
        "workload": "Job/a",
        "container": "c",
        "pod": "p",
        "start": int(NOW) - 7200,
        "peaksMib": [5],
    }
    return {"rightsliceUsage": 1, "now": NOW, "stepSeconds": 3600, "containers": [one]} | fields


def with_container(**fields: Any) -> dict[str, Any]:
    """Return a file as JSON data, with some fields of its container changed."""
    made = document()
    made["containers"][0] |= fields
    return made


def to_json(data: Any) -> bytes:
    """Encode as JSON."""
    return json.dumps(data).encode()


INVALID_FILES: dict[str, tuple[bytes, str]] = {
    "from a newer version": (
        to_json({"rightsliceUsage": 2, "what": "ever"}),
        "must be of version 1, found 2: a newer rightslice wrote it. Write a new one: rightslice usage record",
    ),
    "of version 0": (to_json(document(rightsliceUsage=0)), "must be of version 1, found 0. Write a new one"),
    "of a negative version": (to_json(document(rightsliceUsage=-1)), "must be of version 1, found -1. Write a new one"),
    "something else": (
        b'{"kind": "List"}',
        "found other JSON: Object missing required field",
    ),
    "no JSON": (b"pods:\n", "must be a file of recorded usage, found no valid JSON: invalid character"),
    "empty": (b"", "must be a file of recorded usage, found a truncated file"),
    "truncated": (to_json(document())[:-20], "must be a file of recorded usage, found a truncated file"),
    "truncated and compressed": (gzip.compress(to_json(document()))[:-12], "must be a complete gzip file"),
    "compressed and damaged": (b"\x1f\x8b" + b"x" * 40, "must be a complete gzip file"),
    "a bin above the maximum": (
        to_json(with_container(peaksMib=[MAX_MIB + 1])),
        f"containers[0]: peaksMib must be 0 to {MAX_MIB} MiB, or -1 for a gap",
    ),
    "a bin below a gap": (to_json(with_container(peaksMib=[-2])), "containers[0]: peaksMib must be"),
    "no bins": (to_json(with_container(peaksMib=[])), "containers[0]: peaksMib must be 1 to 10000 amounts, found 0"),
    "a bin in the future": (
        to_json(with_container(start=int(NOW) + 7200)),
        "its bins must end no later than the file's now",
    ),
    "a step of zero": (to_json(document(stepSeconds=0)), "stepSeconds must be 1 to 604800, found 0"),
    "a negative time": (to_json(document(now=-1)), "now must be Unix seconds, found -1"),
    "a negative amount": (to_json(with_container(meanMib=-5)), "containers[0]: meanMib must be 0 to 5"),
    "a mean above every peak": (
        to_json(with_container(meanMib=6)),
        "containers[0]: meanMib must be 0 to 5 (the largest of peaksMib), found 6",
    ),
    "memory above the maximum": (to_json(with_container(capacityMib=MAX_MIB + 1)), "capacityMib must be 0 to"),
    "compute above 1000": (
        to_json(with_container(computeMilli=1001)),
        "computeMilli must be 0 to 1000 (thousandths of a GPU), found 1001",
    ),
    "more GPUs than a node has": (to_json(with_container(gpus=5_000)), "gpus must be 0 to 1024"),
    "activity above 1000": (to_json(with_container(activeMilli=5_000_000)), "activeMilli must be 0 to 1000"),
    "a container twice": (
        to_json(document(containers=document()["containers"] * 2)),
        "containers[1]: must be unique, found 'n/p/c' again",
    ),
    "a kill in the future": (to_json(with_container(ooms=[int(NOW) + 7200])), "ooms and xids must be at most 1000"),
    "an XID in the far future": (to_json(with_container(xids=[[1 << 60, 31]])), "no later than the file's now"),
    "too many kills": (to_json(with_container(ooms=[1] * 1001)), "ooms and xids must be at most 1000"),
    "text instead of a number": (
        to_json(with_container(meanMib="5")),
        "found other JSON: Expected",
    ),
    "an infinite number": (b'{"rightsliceUsage": 1e999}', "must be a file of recorded usage, found"),
    "deeply nested": (b'{"rightsliceUsage": 1, "now": ' + b"[" * 100_000, "found JSON that is nested too deeply"),
}


@pytest.mark.parametrize(("content", "word"), INVALID_FILES.values(), ids=INVALID_FILES)
def test_invalid_file_is_rejected(tmp_path: Path, content: bytes, word: str) -> None:
    file = tmp_path / "use"
    file.write_bytes(content)

    with pytest.raises(UsageError) as error:
        read_record(file)

    assert str(error.value).startswith(f"{file}: ")
    assert word in str(error.value)


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_oversized_file_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pack: Callable[[bytes], bytes]
) -> None:
    """A small compressed file may be large uncompressed."""
    monkeypatch.setattr(record_file, "MAX_FILE_BYTES", 1 << 20)
    file = tmp_path / "use"
    file.write_bytes(pack(b" " * (1 << 20) + b"{}"))

    with pytest.raises(UsageError, match="must be at most 1 MiB uncompressed, found more"):
        read_record(file)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        read_record(tmp_path / "none")


@given(st.binary(max_size=200) | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(to_json))
def test_any_content_is_read_or_rejected(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    file = tmp_path_factory.getbasetemp() / "anything"
    file.write_bytes(content)

    with pytest.raises(UsageError):
        read_record(file)
