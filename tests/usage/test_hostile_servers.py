"""A Prometheus that is down, slow, broken or huge causes an error in time, and nothing else."""

from __future__ import annotations

import gzip
import socket
import time
from typing import Any

import pytest

from tests.usage import hostile_servers
from tests.usage.hostile_servers import Answer, plays, says, serve_answer
from tests.usage.prometheus_readings import read_from
from webhook.errors import UsageError
from webhook.usage import prometheus, queries
from webhook.usage.prometheus_source import PrometheusSource

MIB = 1 << 20
PATIENT = 10.0


def refusal_of(answer: Answer, seconds: float = PATIENT) -> str:
    """The error for a server."""
    with serve_answer(answer) as url, pytest.raises(UsageError) as error:
        read_from(PrometheusSource(url, call_seconds=seconds))
    assert str(error.value).startswith(f"{url}: ")
    return str(error.value).removeprefix(f"{url}: ")


SAYINGS: dict[str, tuple[Answer, str]] = {
    "a page of HTML": (
        says("<html>Log in</html>", "text/html"),
        "must answer with JSON, found text/html (200) starting with '<html>Log in</html>' (query: time())",
    ),
    "an error inside a 200": (
        says('{"status":"error","errorType":"execution","error":"too many samples"}'),
        "answered with an error (200): execution: too many samples (query: time())",
    ),
    "an error for the terminal": (
        says('{"status":"error","errorType":"\\u001b[31m","error":"\\u001b]0;yours\\u0007\\u202e"}'),
        r"answered with an error (200): \x1b[31m: \x1b]0;yours\x07\u202e (query: time())",
    ),
    "an error with its status": (
        says('{"status":"error","errorType":"timeout","error":"query timed out"}', status=503),
        "answered with an error (503): timeout: query timed out",
    ),
    "JSON that ends early": (
        says('{"status":"success","data":{"resultType":"sca'),
        """must answer as Prometheus does, found '{"status":"success","data":{"resultType":"sca' (200;""",
    ),
    "JSON of somebody else": (says('{"kind":"Status"}'), 'must answer as Prometheus does, found \'{"kind":"Status"}\''),
    "JSON that is a thousand deep": (says("[" * 100_000), "must answer as Prometheus does, found '[[["),
    "no text at all": (says(b"\xff\xfe\x00"), "must answer as Prometheus does, found"),
    "nothing": (says(""), "must answer as Prometheus does, found ''"),
    "another kind of result": (
        says('{"status":"success","data":{"resultType":"scalar","result":{"a":1}}}'),
        "answered with an invalid result",
    ),
    "success and no data": (says('{"status":"success"}'), "answered with an invalid result"),
    "who are you": (says("no", "text/plain", 401), "rejected the credentials (401): check --prometheus-token-file"),
    "go there": (
        says("", "text/plain", 302, {"Location": "https://login.example/"}),
        "redirects (302) to 'https://login.example/': use that address",
    ),
    "something compressed that nobody asked for": (
        says(gzip.compress(b" " * (8 * MIB)), headers={"Content-Encoding": "gzip"}),
        "must answer as Prometheus does",
    ),
    "an answer that breaks off": (hostile_servers.breaks_off, "did not answer"),
}


@pytest.mark.parametrize(("answer", "word"), SAYINGS.values(), ids=SAYINGS)
def test_invalid_answer_is_reported(answer: Answer, word: str) -> None:
    assert word in refusal_of(answer)


@pytest.mark.parametrize("answer", [hostile_servers.never, hostile_servers.drips])
def test_slow_answer_times_out(answer: Answer) -> None:
    assert refusal_of(answer, seconds=0.3) == "did not answer within 0.3 s (query: time())"


def test_endless_answer_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prometheus, "MAX_ANSWER_BYTES", 4 * MIB)

    assert refusal_of(hostile_servers.pours).startswith(
        "must answer with at most 4 MiB, found more. Write --prometheus-selector"
    )


def test_no_server() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, and not listening
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(UsageError, match="did not answer"):
            read_from(PrometheusSource(url))


def one(value: object, count: int = 1) -> list[dict[str, Any]]:
    """Series with one value, of pods of their own."""
    at = time.time() // 900 * 900 - 900
    return [
        {"metric": {"namespace": "n", "pod": f"p{i}", "container": "c"}, "values": [[at, value]]} for i in range(count)
    ]


LIES: dict[str, tuple[Answer, str]] = {
    "a million containers": (
        plays(ranges={"count(": one("1000000")}),
        "must have at most 100000 containers with GPUs at once, found 1000000",
    ),
    "few of them, and then too many series": (
        plays(ranges={"count(": one("10"), "max by": one("5", 60)}),
        "must answer with at most 50 series, found more",
    ),
    "a number for a text": (
        plays(ranges={"count(": one("1"), "max by": one(5)}),
        "answered with an invalid result",
    ),
}


@pytest.mark.parametrize(("answer", "word"), LIES.values(), ids=LIES)
def test_too_large_answer_is_rejected(answer: Answer, word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prometheus, "MAX_SERIES", 50)

    assert word in refusal_of(answer)


@pytest.mark.parametrize("word", ["", "one", "0x10", "1e400", "-0.0.1"])
def test_invalid_numbers_are_ignored(word: str) -> None:
    with serve_answer(plays(ranges={"count(": one("1"), "max by": one(word)})) as url:
        reading = read_from(PrometheusSource(url))

    assert reading.histories == []
    assert any("1 of 1 containers have no valid memory" in note for note in reading.notes)


def test_samples_outside_the_period_are_ignored() -> None:
    odd = one("5")
    odd[0]["values"] += [[0, "6"], [time.time() + 86_400, "7"], [odd[0]["values"][0][0] + 1, "8"], [1e300, "9"]]
    with serve_answer(plays(ranges={"count(": one("1"), "max by": odd})) as url:
        (found,) = read_from(PrometheusSource(url)).histories

    assert list(found.peaks_mib) == [5]


TROUBLES = {
    "the last code of a fault": queries.XID[0],
    "faults, counted": queries.XID_COUNT,
    "containers started again": queries.LAST_TERMINATION,
    "containers left dead": queries.TERMINATION + "{",
}


@pytest.mark.parametrize("metric", TROUBLES.values(), ids=TROUBLES)
@pytest.mark.parametrize("moment", [1e300, 5e12, -5.0, 0.0])
def test_failures_outside_the_period_are_ignored_and_reported(metric: str, moment: float) -> None:
    lie, truth = one("31"), time.time() - 1800
    lie[0]["metric"]["xid"] = "31"
    lie[0]["values"] = [[moment, "31"], [truth, "31"]]
    names = ["DCGM_FI_DEV_FB_USED", queries.XID[0], queries.XID_COUNT, queries.POD_OWNER]
    about = {metric: lie, queries.FB_USED: one("5")}
    with serve_answer(plays(ranges={"count(": one("1")}, about=about, names=names)) as url:
        reading = read_from(PrometheusSource(url))

    (found,) = reading.histories
    assert [*found.ooms, *(at for at, _ in found.xids)] == [int(truth)]
    assert any("1 OOM kill or XID outside the period ignored" in note for note in reading.notes)


def test_warnings_are_reported_once_and_limited() -> None:
    """Thanos returns partial answers with a warning if a store does not answer."""
    warnings = ["store a:\x1b[2J gone", *(f"{i}" * 999 for i in range(99))]
    with serve_answer(plays(ranges={"count(": one("1"), "max by": one("5")}, beside={"warnings": warnings})) as url:
        notes = [note for note in read_from(PrometheusSource(url)).notes if note.startswith("Prometheus warned: ")]

    assert notes[0] == "Prometheus warned: store a:\x1b[2J gone"
    assert len(notes) == 5
    assert max(map(len, notes)) < 250


def test_null_warnings_are_accepted() -> None:
    with serve_answer(plays(ranges={"count(": one("1"), "max by": one("5")}, beside={"warnings": None})) as url:
        assert not any("warned" in note for note in read_from(PrometheusSource(url)).notes)


@pytest.mark.parametrize(("ahead", "word"), [(7200, "ahead of"), (-7200, "behind")])
def test_clock_difference_is_reported(ahead: int, word: str) -> None:
    with serve_answer(plays(clock=lambda: time.time() + ahead)) as url:
        reading = read_from(PrometheusSource(url))

    (note,) = [note for note in reading.notes if "clock" in note]
    assert f" s {word} the local one" in note
    assert abs(reading.now - time.time() - ahead) < 60


@pytest.mark.parametrize("moment", [0, time.time() + 10 * 86_400])
def test_impossible_clock_is_rejected(moment: object) -> None:
    with serve_answer(plays(clock=lambda: moment)) as url, pytest.raises(UsageError) as error:
        read_from(PrometheusSource(url))

    assert "clock must be within a day of the local one" in str(error.value)


@pytest.mark.parametrize("moment", ["NaN", "+Inf", "noon"])
def test_invalid_clock_is_rejected(moment: str) -> None:
    assert refusal_of(plays(clock=lambda: moment)) == f"must answer with a time, found '{moment}' (query: time())"


def test_small_clock_difference_is_not_reported() -> None:
    with serve_answer(plays(clock=lambda: time.time() + 20)) as url:
        assert not any("clock" in note for note in read_from(PrometheusSource(url)).notes)
