"""A Prometheus that is down, slow, broken or huge causes an error in time, and nothing else."""

from __future__ import annotations

import gzip
import socket
import time
from typing import Any

import pytest

from tests.usage import hostile_servers
from tests.usage.hostile_servers import Answer, fake_prometheus, fixed_answer, serve_answer
from tests.usage.prometheus_readings import read_from
from webhook.errors import UsageError
from webhook.usage import prometheus, queries
from webhook.usage.prometheus_source import PrometheusSource

MIB = 1 << 20
PATIENT = 10.0


def error_text(answer: Answer, seconds: float = PATIENT) -> str:
    """Return the error of reading from this server, without its URL."""
    with serve_answer(answer) as url, pytest.raises(UsageError) as error:
        read_from(PrometheusSource(url, call_seconds=seconds))
    assert str(error.value).startswith(f"{url}: ")
    return str(error.value).removeprefix(f"{url}: ")


INVALID_ANSWERS: dict[str, tuple[Answer, str]] = {
    "a page of HTML": (
        fixed_answer("<html>Log in</html>", "text/html"),
        "must answer with JSON, found text/html (200) starting with '<html>Log in</html>' (query: time())",
    ),
    "an error inside a 200": (
        fixed_answer('{"status":"error","errorType":"execution","error":"too many samples"}'),
        "answered with an error (200): execution: too many samples (query: time())",
    ),
    "an error with control characters": (
        fixed_answer('{"status":"error","errorType":"\\u001b[31m","error":"\\u001b]0;yours\\u0007\\u202e"}'),
        r"answered with an error (200): \x1b[31m: \x1b]0;yours\x07\u202e (query: time())",
    ),
    "an error with status 503": (
        fixed_answer('{"status":"error","errorType":"timeout","error":"query timed out"}', status=503),
        "answered with an error (503): timeout: query timed out",
    ),
    "JSON that ends early": (
        fixed_answer('{"status":"success","data":{"resultType":"sca'),
        """must answer as Prometheus does, found '{"status":"success","data":{"resultType":"sca' (200;""",
    ),
    "other JSON": (
        fixed_answer('{"kind":"Status"}'),
        'must answer as Prometheus does, found \'{"kind":"Status"}\'',
    ),
    "deeply nested JSON": (fixed_answer("[" * 100_000), "must answer as Prometheus does, found '[[["),
    "no UTF-8": (fixed_answer(b"\xff\xfe\x00"), "must answer as Prometheus does, found"),
    "nothing": (fixed_answer(""), "must answer as Prometheus does, found ''"),
    "another kind of result": (
        fixed_answer('{"status":"success","data":{"resultType":"scalar","result":{"a":1}}}'),
        "answered with an invalid result",
    ),
    "success without data": (fixed_answer('{"status":"success"}'), "answered with an invalid result"),
    "unauthorized": (
        fixed_answer("no", "text/plain", 401),
        "rejected the credentials (401): check --prometheus-token-file",
    ),
    "a redirect": (
        fixed_answer("", "text/plain", 302, {"Location": "https://login.example/"}),
        "redirects (302) to 'https://login.example/': use that address",
    ),
    "an unexpected compression": (
        fixed_answer(gzip.compress(b" " * (8 * MIB)), headers={"Content-Encoding": "gzip"}),
        "must answer as Prometheus does",
    ),
    "a truncated answer": (hostile_servers.truncated_answer, "did not answer"),
}


@pytest.mark.parametrize(("answer", "word"), INVALID_ANSWERS.values(), ids=INVALID_ANSWERS)
def test_invalid_answer_is_reported(answer: Answer, word: str) -> None:
    assert word in error_text(answer)


@pytest.mark.parametrize("answer", [hostile_servers.never_answer, hostile_servers.slow_answer])
def test_slow_answer_times_out(answer: Answer) -> None:
    assert error_text(answer, seconds=0.3) == "did not answer within 0.3 s (query: time())"


def test_endless_answer_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prometheus, "MAX_ANSWER_BYTES", 4 * MIB)

    assert error_text(hostile_servers.endless_answer).startswith(
        "must answer with at most 4 MiB, found more. Write --prometheus-selector"
    )


def test_no_server() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, and not listening
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(UsageError, match="did not answer"):
            read_from(PrometheusSource(url))


def series_of(value: object, count: int = 1) -> list[dict[str, Any]]:
    """Return series of this many pods, each with one sample of this value."""
    at = time.time() // 900 * 900 - 900
    return [
        {"metric": {"namespace": "n", "pod": f"p{i}", "container": "c"}, "values": [[at, value]]} for i in range(count)
    ]


LARGE_ANSWERS: dict[str, tuple[Answer, str]] = {
    "a million containers": (
        fake_prometheus(starting={"count(": series_of("1000000")}),
        "must have at most 100000 containers with GPUs at once, found 1000000",
    ),
    "more series than containers": (
        fake_prometheus(starting={"count(": series_of("10"), "max by": series_of("5", 60)}),
        "must answer with at most 50 series, found more",
    ),
    "a number instead of a text": (
        fake_prometheus(starting={"count(": series_of("1"), "max by": series_of(5)}),
        "answered with an invalid result",
    ),
}


@pytest.mark.parametrize(("answer", "word"), LARGE_ANSWERS.values(), ids=LARGE_ANSWERS)
def test_too_large_answer_is_rejected(answer: Answer, word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prometheus, "MAX_SERIES", 50)

    assert word in error_text(answer)


@pytest.mark.parametrize("word", ["", "one", "0x10", "1e400", "-0.0.1"])
def test_invalid_numbers_are_ignored(word: str) -> None:
    with serve_answer(fake_prometheus(starting={"count(": series_of("1"), "max by": series_of(word)})) as url:
        reading = read_from(PrometheusSource(url))

    assert reading.histories == []
    assert any("1 of 1 containers have no valid memory" in note for note in reading.notes)


def test_samples_outside_the_period_are_ignored() -> None:
    series = series_of("5")
    series[0]["values"] += [[0, "6"], [time.time() + 86_400, "7"], [series[0]["values"][0][0] + 1, "8"], [1e300, "9"]]
    with serve_answer(fake_prometheus(starting={"count(": series_of("1"), "max by": series})) as url:
        (found,) = read_from(PrometheusSource(url)).histories

    assert list(found.peaks_mib) == [5]


FAILURE_METRICS = {
    "last XID": queries.XID[0],
    "XID counts": queries.XID_COUNT,
    "restarted containers": queries.LAST_TERMINATION,
    "terminated containers": queries.TERMINATION + "{",
}


@pytest.mark.parametrize("metric", FAILURE_METRICS.values(), ids=FAILURE_METRICS)
@pytest.mark.parametrize("moment", [1e300, 5e12, -5.0, 0.0])
def test_failures_outside_the_period_are_ignored_and_reported(metric: str, moment: float) -> None:
    series, valid = series_of("31"), time.time() - 1800
    series[0]["metric"]["xid"] = "31"
    series[0]["values"] = [[moment, "31"], [valid, "31"]]
    names = ["DCGM_FI_DEV_FB_USED", queries.XID[0], queries.XID_COUNT, queries.POD_OWNER]
    containing = {metric: series, queries.FB_USED: series_of("5")}
    with serve_answer(fake_prometheus(starting={"count(": series_of("1")}, containing=containing, names=names)) as url:
        reading = read_from(PrometheusSource(url))

    (found,) = reading.histories
    assert [*found.ooms, *(at for at, _ in found.xids)] == [int(valid)]
    assert any("1 OOM kill or XID outside the period ignored" in note for note in reading.notes)


def test_warnings_are_reported_once_and_limited() -> None:
    """Thanos returns partial answers with a warning if a store does not answer."""
    warnings = ["store a:\x1b[2J gone", *(f"{i}" * 999 for i in range(99))]
    with serve_answer(
        fake_prometheus(
            starting={"count(": series_of("1"), "max by": series_of("5")},
            extra={"warnings": warnings},
        )
    ) as url:
        notes = [note for note in read_from(PrometheusSource(url)).notes if note.startswith("Prometheus warned: ")]

    assert notes[0] == "Prometheus warned: store a:\x1b[2J gone"
    assert len(notes) == 5
    assert max(map(len, notes)) < 250


def test_null_warnings_are_accepted() -> None:
    with serve_answer(
        fake_prometheus(starting={"count(": series_of("1"), "max by": series_of("5")}, extra={"warnings": None})
    ) as url:
        assert not any("warned" in note for note in read_from(PrometheusSource(url)).notes)


@pytest.mark.parametrize(("ahead", "word"), [(7200, "ahead of"), (-7200, "behind")])
def test_clock_difference_is_reported(ahead: int, word: str) -> None:
    with serve_answer(fake_prometheus(clock=lambda: time.time() + ahead)) as url:
        reading = read_from(PrometheusSource(url))

    (note,) = [note for note in reading.notes if "clock" in note]
    assert f" s {word} the local one" in note
    assert abs(reading.now - time.time() - ahead) < 60


@pytest.mark.parametrize("moment", [0, time.time() + 10 * 86_400], ids=["1970", "in ten days"])
def test_impossible_clock_is_rejected(moment: object) -> None:
    with serve_answer(fake_prometheus(clock=lambda: moment)) as url, pytest.raises(UsageError) as error:
        read_from(PrometheusSource(url))

    assert "clock must be within a day of the local one" in str(error.value)


@pytest.mark.parametrize("moment", ["NaN", "+Inf", "noon"])
def test_invalid_clock_is_rejected(moment: str) -> None:
    assert (
        error_text(fake_prometheus(clock=lambda: moment))
        == f"must answer with a time, found '{moment}' (query: time())"
    )


def test_small_clock_difference_is_not_reported() -> None:
    with serve_answer(fake_prometheus(clock=lambda: time.time() + 20)) as url:
        assert not any("clock" in note for note in read_from(PrometheusSource(url)).notes)
