"""One Prometheus behind one HTTP session: queries in, series out, with a bound on time, bytes and series of each.

Whatever answers is a stranger. An answer that is not what Prometheus writes is an error that says what came instead;
numbers are not looked at here.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from math import isfinite
from typing import Any, NamedTuple, Self, TypeVar

import aiohttp
import msgspec

from webhook.errors import UsageError, quote_text, shorten_text
from webhook.report.text import sanitize
from webhook.usage.prometheus_source import PrometheusSource

MAX_ANSWER_BYTES = 64 * 1024 * 1024
"""Bytes of one answer: three times what the largest that we ask for has."""

MAX_SERIES = 100_000
"""Series of one answer: five times the containers of a large fleet."""

MAX_WARNINGS = 5
"""Different warnings that are kept, of all answers."""

CONNECT_SECONDS = 5.0
CHUNK = 256 * 1024

Sample = tuple[float, str]
T = TypeVar("T")


class MetricSeries(msgspec.Struct, frozen=True, gc=False):
    """One series: its labels, and moments (Unix seconds) with what was there, as Prometheus writes numbers."""

    metric: dict[str, str] = {}
    value: Sample | None = None
    values: list[Sample] = []


class QueryResult(msgspec.Struct, frozen=True, rename="camel"):
    """What a query came to."""

    result_type: str
    result: msgspec.Raw


class ScalarSample(NamedTuple):
    """A scalar."""

    at: float
    value: str


class PrometheusResponse(msgspec.Struct, frozen=True, rename="camel"):
    """What stands around every answer of the HTTP API."""

    status: str
    data: msgspec.Raw = msgspec.Raw(b"null")
    error_type: str = ""
    error: str = ""
    warnings: list[str] | None = None


class PrometheusClient:
    """One Prometheus. Use it with `async with`.

    Attributes:
        warnings: What it said beside its answers, such as that not every store had answered: each once, some of them.
    """

    def __init__(self, source: PrometheusSource) -> None:
        """Read who we are; nothing is sent yet.

        Raises:
            UsageError: the address, the authorities or the credentials cannot be used.
        """
        self.source = source
        self._base = source.base_url
        self._tls = source.tls_context()
        self._headers = {"Authorization": header} if (header := source.authorization_header()) else {}
        self._http: aiohttp.ClientSession | None = None
        self.warnings: list[str] = []

    async def __aenter__(self) -> Self:
        # Not compressed: a bound on bytes is one only where what comes is what is held in memory.
        plain = {"User-Agent": "rightslice", "Accept": "application/json", "Accept-Encoding": "identity"}
        self._http = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=self._tls or True),
            headers=plain | self._headers,
            cookie_jar=aiohttp.DummyCookieJar(),
            read_bufsize=CHUNK,
            auto_decompress=False,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._http is not None:
            await self._http.close()

    async def server_time(self) -> float:
        """The moment by its clock, Unix seconds.

        Raises:
            UsageError: see `instant`.
        """
        asked = "time()"
        result = self._decode(asked, await self._request("query", {"query": asked}), QueryResult)
        _, text = self._decode(asked, result.result, ScalarSample)
        moment = finite_number(text)
        if moment is None:
            raise self._query_error(asked, f"must answer with a moment, found {quote_text(text)}")
        return moment

    async def query(self, query: str, moment: float) -> list[MetricSeries]:
        """The series of a query at a moment.

        Raises:
            UsageError: there was no answer, a refusal, or no answer of a Prometheus, or too much of it.
        """
        asked = {"query": query, "time": f"{moment:.0f}", "limit": str(MAX_SERIES + 1)}
        return self._decode_series(query, await self._request("query", asked), "vector")

    async def query_range(self, query: str, start: float, end: float, step: int) -> list[MetricSeries]:
        """The series of a query at each step from start to end, both included.

        Raises:
            UsageError: see `instant`.
        """
        times = {"start": f"{start:.0f}", "end": f"{end:.0f}", "step": str(step)}
        asked = {"query": query, **times, "limit": str(MAX_SERIES + 1)}
        return self._decode_series(query, await self._request("query_range", asked), "matrix")

    async def metric_names(self, matcher: str, start: float, end: float) -> set[str]:
        """The names of the metrics that had series between two moments which a selector matches.

        Raises:
            UsageError: see `instant`.
        """
        asked = {"match[]": matcher, "start": f"{start:.0f}", "end": f"{end:.0f}", "limit": "1000"}
        return self._decode(matcher, await self._request("label/__name__/values", asked, get=True), set[str])

    async def _request(self, path: str, asked: Mapping[str, str], *, get: bool = False) -> msgspec.Raw:
        """The data of an answer that says success."""
        what = shorten_text(asked.get("query") or asked["match[]"], 200)
        url = f"{self._base}/api/v1/{path}"
        timeout = aiohttp.ClientTimeout(total=self.source.call_seconds, sock_connect=CONNECT_SECONDS)
        send: dict[str, Any] = {"params": asked} if get else {"data": asked}
        assert self._http is not None
        try:
            request = self._http.request("GET" if get else "POST", url, timeout=timeout, allow_redirects=False, **send)
            async with request as answer:
                body = await _read_limited_body(self._base, answer)
                return self._check_response(what, answer, body)
        except TimeoutError as error:
            raise self._query_error(what, f"must answer within {self.source.call_seconds:g} s, did not") from error
        except (aiohttp.ClientError, ssl.SSLError, OSError) as error:
            inner = getattr(error, "certificate_error", None) or getattr(error, "os_error", None) or error
            raise self._query_error(what, f"did not answer ({inner or type(error).__name__})") from error

    def _check_response(self, what: str, answer: aiohttp.ClientResponse, body: bytes) -> msgspec.Raw:
        try:
            said = msgspec.json.decode(body, type=PrometheusResponse)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise self._query_error(what, _unusable_answer(answer, body, error)) from error
        if said.status != "success":
            fault = f"{said.error_type}: {said.error}" if said.error else f"status {quote_text(said.status)}"
            raise self._query_error(what, f"refused ({answer.status}): {shorten_text(fault, 300)}")
        self._keep_warnings(said.warnings or [])
        return said.data

    def _keep_warnings(self, warnings: list[str]) -> None:
        for warning in warnings[:MAX_WARNINGS]:
            said = shorten_text(warning, 200)
            if said not in self.warnings and len(self.warnings) < MAX_WARNINGS:
                self.warnings.append(said)

    def _decode_series(self, query: str, data: msgspec.Raw, kind: str) -> list[MetricSeries]:
        what = shorten_text(query, 200)
        result = self._decode(what, data, QueryResult)
        if result.result_type != kind:
            raise self._query_error(what, f"must answer with a {kind}, found a {quote_text(result.result_type)}")
        found = self._decode(what, result.result, list[MetricSeries])
        if len(found) > MAX_SERIES:
            raise self._query_error(what, f"must answer with at most {MAX_SERIES} series, found more. {NARROW}")
        return found

    def _decode(self, what: str, data: bytes | msgspec.Raw, kind: type[T]) -> T:
        try:
            return msgspec.json.decode(data, type=kind, strict=False)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise self._query_error(what, f"answered with what is no result of a query: {error}") from error

    def _query_error(self, what: str, sentence: str) -> UsageError:
        return UsageError(sanitize(f"{self._base}: {sentence}, when asked {what}"))


def finite_number(text: str) -> float | None:
    """A number as Prometheus writes it; None for NaN, for infinities, and for what is none."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if isfinite(value) else None


NARROW = """Write --prometheus-selector 'cluster="NAME"' to read one cluster only, or a smaller --prometheus-days"""


async def _read_limited_body(base: str, answer: aiohttp.ClientResponse) -> bytes:
    """The body, if it is not too long."""
    parts, left = [], MAX_ANSWER_BYTES
    async for piece in answer.content.iter_any():
        left -= len(piece)
        if left < 0:
            raise UsageError(f"{base}: must answer with at most {MAX_ANSWER_BYTES >> 20} MiB, found more. {NARROW}")
        parts.append(piece)
        await asyncio.sleep(0)
    return b"".join(parts)


def _unusable_answer(answer: aiohttp.ClientResponse, body: bytes, error: Exception) -> str:
    """What came instead of an answer of Prometheus, by status, type and first words."""
    start = body[:80].decode(errors="replace")
    kind = answer.content_type
    if answer.status in (401, 403):
        return f"refused who we are ({answer.status}): see --prometheus-token-file and --prometheus-user"
    if 300 <= answer.status < 400:
        return (
            f"sent us elsewhere ({answer.status}, {quote_text(answer.headers.get('Location', ''))}): name that address"
        )
    if kind != "application/json":
        return f"must answer with JSON, found {kind} ({answer.status}) that begins with {start!r}"
    return f"must answer as Prometheus does, found {start!r} ({answer.status}; {shorten_text(str(error), 120)})"
