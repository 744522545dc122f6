"""Usage records: their age, and where they may be written."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from array import array
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest

import webhook
from tests.builders import make_pod
from tests.cli.conftest import INPUTS, JUNE, Run
from tests.house.checkout import read_checkout_file as read_page
from tests.usage.hostile_servers import fake_prometheus, fixed_answer, serve_answer
from webhook.cli.usage_records import estimate_view, read_usage_file
from webhook.usage.history import MIB_TYPECODE, UsageHistory
from webhook.usage.record_file import UsageRecord, _RecordedContainer, _RecordFile, read_record, write_record

OWNER = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "serve-5d9c7", "uid": "u", "controller": True}
NOW = datetime.fromisoformat(JUNE)


def recorded(folder: Path, ago: timedelta) -> str:
    """A record with one container, of this age."""
    moment = (NOW - ago).timestamp()
    peaks = array(MIB_TYPECODE, [3000] * 24)
    one = UsageHistory("ml", "Deployment/a", "main", "a-1", int(moment) - 24 * 3600, 3600, peaks)
    write_record(folder / "use.json", UsageRecord([one], moment))
    return str(folder / "use.json")


@pytest.mark.parametrize(
    ("ago", "used", "message"),
    [
        (timedelta(hours=1), True, ""),
        (timedelta(minutes=-4), True, ""),
        (timedelta(days=3), True, "use.json: recorded 3 days ago\n"),
        (timedelta(days=30), True, "use.json: recorded 30 days ago\n"),
        (timedelta(days=400), False, "use.json: recorded 400 days ago: after 30 days it is not used. Write a new one"),
    ],
)
def test_an_old_record_is_noted_and_a_stale_one_is_not_used(
    ago: timedelta, used: bool, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = read_usage_file(recorded(tmp_path, ago), NOW)

    assert (record is not None) is used
    error = capsys.readouterr().err
    assert message in error
    assert bool(error) is bool(message)


def test_a_pod_of_two_containers_is_one_pod(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = Path(recorded(tmp_path, timedelta(hours=1)))
    [one] = read_record(file).histories
    write_record(file, UsageRecord([one, msgspec.structs.replace(one, container="side")], NOW.timestamp()))

    record = read_usage_file(str(file), NOW)
    assert record is not None
    estimate_view(record, verbose=True)

    assert "usage: 2 containers of 1 pod, recorded " in capsys.readouterr().err


COMMANDS = [
    ("check", "deploy/train.yaml", *INPUTS),
    ("explain", "-f", "deploy/train.yaml", *INPUTS),
    ("audit", "cluster.yaml", "--policies", "policies", "--now", JUNE),
    ("rightsize", "cluster.yaml", "--policies", "policies", "--now", JUNE),
    ("policy", "diff", "policies", "policies", *INPUTS[2:]),
]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_a_record_from_the_future_is_rejected(command: tuple[str, ...], tmp_path: Path, rightslice: Run) -> None:
    result = rightslice(*command, "--usage", recorded(tmp_path, timedelta(days=-3)))

    assert (result.code, result.out) == (2, "")
    assert "use.json: must be recorded before now, found 3 days from now" in result.err


def names(folder: Path) -> list[str]:
    """The names in a folder."""
    return [file.name for file in folder.iterdir()]


PLACES: dict[str, tuple[Callable[[Path], object], str]] = {
    "a folder": (Path.mkdir, "must be a regular file"),
    "a pipe": (os.mkfifo, "must be a regular file"),
    "a link": (lambda path: path.symlink_to("elsewhere"), "must be a regular file"),
    "a link to a device": (lambda path: path.symlink_to("/dev/stdout"), "must be a regular file"),
}


def _identity(path: Path) -> tuple[int, ...]:
    """Return what changes if a file is written or replaced; reading a link changes the time of its last access."""
    found = path.lstat()
    return found.st_mode, found.st_ino, found.st_size, found.st_mtime_ns


@pytest.mark.parametrize(("make", "message"), PLACES.values(), ids=PLACES)
def test_a_special_file_is_rejected_before_prometheus_is_queried(
    make: Callable[[Path], object], message: str, tmp_path: Path, rightslice: Run
) -> None:
    """Querying Prometheus would exit with 3."""
    make(tmp_path / "use")
    before = _identity(tmp_path / "use")
    result = rightslice("usage", "record", "--prometheus", "http://127.0.0.1:1", "--file", str(tmp_path / "use"))

    assert (result.code, result.out) == (2, "")
    assert message in result.err
    assert _identity(tmp_path / "use") == before
    assert names(tmp_path) == ["use"]


def test_a_missing_folder_is_rejected_before_prometheus_is_queried(tmp_path: Path, rightslice: Run) -> None:
    result = rightslice("usage", "record", "--prometheus", "http://127.0.0.1:1", "--file", str(tmp_path / "no" / "use"))

    assert (result.code, result.out) == (2, "")
    assert "cannot be written: No such file or directory" in result.err


def test_an_existing_file_is_replaced(tmp_path: Path, rightslice: Run) -> None:
    """By an empty record, with notes about the missing series."""
    file = recorded(tmp_path, timedelta())
    with serve_answer(fake_prometheus()) as url:
        result = rightslice("usage", "record", "--prometheus", url, "--file", file)

    assert result.code == 0, result.err
    assert read_record(Path(file)).histories == []
    assert read_record(Path(file)).now == pytest.approx(datetime.now(UTC).timestamp(), abs=60)
    assert names(tmp_path) == ["use.json"]
    assert "this may take minutes" not in result.err


def test_control_characters_from_prometheus_are_escaped(tmp_path: Path, rightslice: Run) -> None:
    answer = fixed_answer('{"status":"error","errorType":"bad","error":"\\u001b[2J"}')
    with serve_answer(answer) as url:
        result = rightslice("usage", "record", "--prometheus", url, "--file", str(tmp_path / "use"))

    assert result.code == 3
    assert "answered with an error (200): bad: \\x1b[2J (query: time())" in result.err
    assert names(tmp_path) == []


def test_a_terminal_shows_that_reading_takes_minutes(tmp_path: Path) -> None:
    controller, terminal = pty.openpty()
    with serve_answer(fake_prometheus()) as url:
        command = [sys.executable, "-m", "webhook.cli", "usage", "record", "--prometheus", url]
        home = Path(webhook.__file__).parents[1]
        subprocess.run([*command, "--file", tmp_path / "use"], cwd=home, stderr=terminal, timeout=600, check=True)

    assert f"reading 7 days of usage from {url}; this may take minutes" in os.read(controller, 65_536).decode()
    os.close(controller)
    os.close(terminal)


def test_the_file_on_the_page_can_be_read(rightslice: Run, tmp_path: Path) -> None:
    file, pod = tmp_path / "use.json", tmp_path / "pod.json"
    shown = read_page("docs/usage.md").split("```json\n")[1].split("```")[0]
    file.write_text(shown)
    [one] = read_record(file).histories
    built = make_pod().gpus(1).build()
    labels = {"pod-template-hash": "5d9c7"}
    metadata = {"name": one.pod, "namespace": one.namespace, "labels": labels, "ownerReferences": [OWNER]}
    pod.write_text(json.dumps({**built, "metadata": metadata}))
    result = rightslice("rightsize", str(pod), "--usage", str(file), "--now", JUNE)
    assert result.code == 0, result.err
    assert "keep: ShortHistory" in result.out


def test_the_page_names_every_field_of_the_file() -> None:
    page = read_page("docs/usage.md")
    table = page.split("| field | meaning |")[1].split("\n\n")[0]
    names = {*(f".{name}" for name in fields(_RecordedContainer)), *fields(_RecordFile)}
    assert set(re.findall(r"`(\.?\w+)`", "".join(row.split("|")[1] for row in table.splitlines() if row))) == names


def fields(kind: type[msgspec.Struct]) -> list[str]:
    """Field names as in JSON."""
    return [each.encode_name for each in msgspec.structs.fields(kind)]
