"""The worker process returns a complete view or an error, in time."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from tests.usage import hostile_servers
from tests.usage.hostile_servers import fixed_answer, serve_answer
from tests.usage.test_record_file import FULL, NOW, history
from webhook.errors import UsageError
from webhook.usage import loader
from webhook.usage.estimator import estimate_usage
from webhook.usage.loader import FRAME_LENGTH, EndFrame, ErrorFrame, LoadedUsage, UsageRequest, load_usage
from webhook.usage.prometheus_source import PrometheusSource
from webhook.usage.record_file import UsageRecord, write_record
from webhook.usage.worker import usage_frames

FAILING_WORKER = """\
import sys
sys.stderr.write("not the last line\\n" + "a word too many " * 20_000 + "\\n")
sys.exit(7)
"""
LIMITED_WORKER = """\
import resource
resource.setrlimit(resource.RLIMIT_DATA, (1 << 30, 1 << 30))
from webhook.usage.worker import main
main()
"""


def run_loader(request: UsageRequest) -> LoadedUsage:
    """Return the loaded usage."""
    return asyncio.run(load_usage(request))


def test_worker_gives_the_same_estimate(tmp_path: Path) -> None:
    """With more containers than fit into one frame."""
    histories = [FULL, *(history(workload=f"Job/{i}", pod=f"p{i}") for i in range(450))]
    write_record(tmp_path / "use.json.gz", UsageRecord(histories, NOW))

    found = run_loader(UsageRequest(file=str(tmp_path / "use.json.gz")))

    assert found == LoadedUsage(estimate_usage(histories, NOW), NOW, 451, ())


def test_pod_with_several_containers_counts_once(tmp_path: Path) -> None:
    each = [history(container=name, pod=pod, namespace=space) for name in "abc" for pod in "xy" for space in ("m", "n")]
    write_record(tmp_path / "use.json", UsageRecord(each, NOW))

    assert run_loader(UsageRequest(file=str(tmp_path / "use.json"))).pods == 4


def test_file_error_is_reported(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="none: cannot be read"):
        run_loader(UsageRequest(file=str(tmp_path / "none")))


def test_prometheus_error_is_reported() -> None:
    with serve_answer(fixed_answer("<html>", "text/html")) as url, pytest.raises(UsageError, match="found text/html"):
        run_loader(UsageRequest(PrometheusSource(url)))


def test_load_has_a_deadline() -> None:
    begin = time.monotonic()
    with serve_answer(hostile_servers.never_answer) as url, pytest.raises(UsageError, match="not loaded within 1 s"):
        run_loader(UsageRequest(PrometheusSource(url, seconds=1.0)))

    assert time.monotonic() - begin < 30


def test_early_exit_of_the_worker_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader, "WORKER_MODULE", "webhook.usage.nowhere")

    with pytest.raises(UsageError, match=r"ended early \(exit code 1\): .*No module named webhook"):
        run_loader(UsageRequest(file="any"))


def test_stderr_of_the_worker_is_shortened(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "failing_worker.py").write_text(FAILING_WORKER)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(loader, "WORKER_MODULE", "failing_worker")

    with pytest.raises(UsageError, match=r"\(exit code 7\): .*a word too many") as caught:
        run_loader(UsageRequest(file="any"))

    assert len(str(caught.value)) < 500
    assert "not the last line" not in str(caught.value)


def test_inherited_memory_limit_is_respected(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A hard limit below the worker's own, as set by `ulimit -d`."""
    (tmp_path / "limited_worker.py").write_text(LIMITED_WORKER)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(loader, "WORKER_MODULE", "limited_worker")
    write_record(tmp_path / "use.json", UsageRecord([FULL], NOW))

    assert run_loader(UsageRequest(file=str(tmp_path / "use.json"))).pods == 1


def test_invalid_request_is_reported() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", loader.WORKER_MODULE], input=b'{"file": 7}', capture_output=True, check=False
    )

    frame = loader.FRAME_DECODER.decode(ran.stdout[FRAME_LENGTH.size :])
    assert isinstance(frame, ErrorFrame)
    assert frame.internal
    assert "Expected `str`, got `int`" in frame.reason


INVALID_OUTPUTS = {
    "invalid msgpack": b"\xc1",
    "a truncated frame": b"\x83\xa4type",
    "an unknown frame": msgspec.msgpack.encode({"type": "Surprise"}),
    "an end without a head": msgspec.msgpack.encode(EndFrame()),
}


@pytest.mark.parametrize("output", INVALID_OUTPUTS.values(), ids=INVALID_OUTPUTS)
def test_invalid_frames_are_reported(output: bytes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "odd.py").write_text(
        f"import sys\nsys.stdout.buffer.write({FRAME_LENGTH.pack(len(output)) + output!r})\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(loader, "WORKER_MODULE", "odd")

    with pytest.raises(UsageError, match="the usage worker sent"):
        run_loader(UsageRequest(file="any"))


def test_oversized_view_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader, "MAX_VIEW_BYTES", 2000)
    write_record(
        tmp_path / "use.json", UsageRecord([history(workload=f"Job/{i}", pod=f"p{i}") for i in range(100)], NOW)
    )

    with pytest.raises(UsageError, match="the usage view must have at most"):
        run_loader(UsageRequest(file=str(tmp_path / "use.json")))


def test_frames_are_small(tmp_path: Path) -> None:
    """Frames are decoded on the event loop that answers reviews: 256 KiB take about two milliseconds."""
    write_record(
        tmp_path / "use.json", UsageRecord([history(workload=f"Job/{i}", pod=f"p{i}") for i in range(1000)], NOW)
    )

    made = list(usage_frames(UsageRequest(file=str(tmp_path / "use.json"))))

    assert len(made) >= 7
    assert max(len(msgspec.msgpack.encode(frame)) for frame in made) < 256 * 1024
