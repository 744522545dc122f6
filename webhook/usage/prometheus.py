"""Client of the Prometheus HTTP API, with limits on the time, bytes and series of each answer.

Answers are untrusted: one that does not follow the API is an error that quotes it. Values of samples are checked by the
callers.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from math import isfinite
from typing import Any, NamedTuple, Self, TypeVar

import aiohttp
import msgspec

from webhook.errors import UsageError, connection_problem, quote_text, shorten_text
from webhook.report.text import sanitize
from webhook.usage.prometheus_source import PrometheusEndpoint, PrometheusSource

MAX_ANSWER_BYTES = 64 * 1024 * 1024
"""Size limit of one answer: three times the largest expected."""

MAX_SERIES = 100_000
"""Limit of series in one answer: five times the containers of a large fleet."""

MAX_WARNINGS = 5
"""Number of different warnings to keep."""

CONNECT_SECONDS = 5.0
CHUNK = 256 * 1024

Sample = tuple[float, str]
T = TypeVar("T")


class MetricSeries(msgspec.Struct, frozen=True, gc=False):
    """One series: its labels, and samples (Unix seconds, and the value as text)."""

    metric: dict[str, str] = {}
    value: Sample | None = None
    values: list[Sample] = []


class QueryResult(msgspec.Struct, frozen=True, rename="camel"):
    """Result of a query."""

    result_type: str
    result: msgspec.Raw


class ScalarSample(NamedTuple):
    """A scalar with its time."""

    at: float
    value: str


class PrometheusResponse(msgspec.Struct, frozen=True, rename="camel"):
    """Envelope of every answer. The Status of an API server whose proxy fails has the same field, and a message."""

    status: str
    data: msgspec.Raw = msgspec.Raw(b"null")
    error_type: str = ""
    error: str = ""
    message: str = ""
    warnings: list[str] | None = None


class PrometheusClient:
    """Client of one Prometheus. Use it with `async with`.

    Attributes:
        warnings: Warnings in its answers, for example that a store did not answer; without duplicates, limited.
    """

    def __init__(self, source: PrometheusSource, endpoint: PrometheusEndpoint | None = None) -> None:
        """Read the credentials; no request is sent yet.

        Args:
            endpoint: How to reach it; None: as the source says.

        Raises:
            UsageError: The address, the CA file or the credentials are invalid.
        """
        self.source = source
        self._endpoint = endpoint or source.endpoint()
        self._base = self._endpoint.base_url
        self._http: aiohttp.ClientSession | None = None
        self.warnings: list[str] = []

    async def __aenter__(self) -> Self:
        # No compression, so that the limit on bytes also limits memory.
        plain = {"User-Agent": "rightslice", "Accept": "application/json", "Accept-Encoding": "identity"}
        authorization = self._endpoint.authorization
        self._http = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=self._endpoint.tls or True),
            headers=plain | ({"Authorization": authorization} if authorization else {}),
            cookie_jar=aiohttp.DummyCookieJar(),
            read_bufsize=CHUNK,
            auto_decompress=False,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._http is not None:
            await self._http.close()

    async def server_time(self) -> float:
        """Return the server's time in Unix seconds.

        Raises:
            UsageError: See `query`.
        """
        query = "time()"
        result = self._decode(query, await self._request("query", {"query": query}), QueryResult)
        _, text = self._decode(query, result.result, ScalarSample)
        moment = finite_number(text)
        if moment is None:
            raise self._query_error(query, f"must answer with a time, found {quote_text(text)}")
        return moment

    async def query(self, query: str, moment: float) -> list[MetricSeries]:
        """Return the series of a query at one time.

        Raises:
            UsageError: No answer, an error, an invalid answer, or one that is too large.
        """
        params = {"query": query, "time": f"{moment:.0f}", "limit": str(MAX_SERIES + 1)}
        return self._decode_series(query, await self._request("query", params), "vector")

    async def query_range(self, query: str, start: float, end: float, step: int) -> list[MetricSeries]:
        """Return the series of a query at each step from start to end, inclusive.

        Raises:
            UsageError: See `query`.
        """
        times = {"start": f"{start:.0f}", "end": f"{end:.0f}", "step": str(step)}
        params = {"query": query, **times, "limit": str(MAX_SERIES + 1)}
        return self._decode_series(query, await self._request("query_range", params), "matrix")

    async def metric_names(self, matcher: str, start: float, end: float) -> set[str]:
        """Return the names of the metrics that match a selector and had series in a period.

        Raises:
            UsageError: See `query`.
        """
        params = {"match[]": matcher, "start": f"{start:.0f}", "end": f"{end:.0f}", "limit": "1000"}
        return self._decode(matcher, await self._request("label/__name__/values", params, get=True), set[str])

    async def _request(self, path: str, params: Mapping[str, str], *, get: bool = False) -> msgspec.Raw:
        query = shorten_text(params.get("query") or params["match[]"], 200)
        url = f"{self._base}/api/v1/{path}"
        timeout = aiohttp.ClientTimeout(total=self.source.call_seconds, sock_connect=CONNECT_SECONDS)
        send: dict[str, Any] = {"params": params} if get else {"data": params}
        send |= {"server_hostname": self._endpoint.server_name, "proxy": self._endpoint.proxy}
        assert self._http is not None
        try:
            request = self._http.request("GET" if get else "POST", url, timeout=timeout, allow_redirects=False, **send)
            async with request as answer:
                body = await _read_limited_body(self._base, answer)
                return self._check_response(query, answer, body)
        except TimeoutError as error:
            raise self._query_error(query, f"did not answer within {self.source.call_seconds:g} s") from error
        except (aiohttp.ClientError, ssl.SSLError, OSError) as error:
            raise self._query_error(query, f"did not answer ({connection_problem(error)})") from error

    def _check_response(self, query: str, answer: aiohttp.ClientResponse, body: bytes) -> msgspec.Raw:
        try:
            response = msgspec.json.decode(body, type=PrometheusResponse)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise self._query_error(query, _unusable_answer(answer, body, error)) from error
        if response.status != "success":
            cause = f"{response.error_type}: {response.error}" if response.error else ""
            cause = cause or response.message or quote_text(response.status)
            raise self._query_error(query, f"answered with an error ({answer.status}): {shorten_text(cause, 300)}")
        for warning in (response.warnings or [])[:MAX_WARNINGS]:
            text = shorten_text(warning, 200)
            if text not in self.warnings and len(self.warnings) < MAX_WARNINGS:
                self.warnings.append(text)
        return response.data

    def _decode_series(self, query: str, data: msgspec.Raw, kind: str) -> list[MetricSeries]:
        query = shorten_text(query, 200)
        result = self._decode(query, data, QueryResult)
        if result.result_type != kind:
            raise self._query_error(query, f"must answer with a {kind}, found a {quote_text(result.result_type)}")
        series = self._decode(query, result.result, list[MetricSeries])
        if len(series) > MAX_SERIES:
            raise self._query_error(query, f"must answer with at most {MAX_SERIES} series, found more. {NARROW}")
        return series

    def _decode(self, query: str, data: bytes | msgspec.Raw, kind: type[T]) -> T:
        try:
            return msgspec.json.decode(data, type=kind, strict=False)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise self._query_error(query, f"answered with an invalid result: {error}") from error

    def _query_error(self, query: str, sentence: str) -> UsageError:
        return UsageError(sanitize(f"{self._base}: {sentence} (query: {query})"))


def finite_number(text: str) -> float | None:
    """Parse a number; None for NaN, infinity and invalid text."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if isfinite(value) else None


NARROW = """Write --prometheus-selector 'cluster="NAME"' to read one cluster only, or a smaller --prometheus-days"""


async def _read_limited_body(base: str, answer: aiohttp.ClientResponse) -> bytes:
    parts, remaining = [], MAX_ANSWER_BYTES
    async for piece in answer.content.iter_any():
        remaining -= len(piece)
        if remaining < 0:
            raise UsageError(f"{base}: must answer with at most {MAX_ANSWER_BYTES >> 20} MiB, found more. {NARROW}")
        parts.append(piece)
        await asyncio.sleep(0)
    return b"".join(parts)


def _unusable_answer(answer: aiohttp.ClientResponse, body: bytes, error: Exception) -> str:
    """Describe an answer that is not from Prometheus by status, type and beginning."""
    start = body[:80].decode(errors="replace")
    kind = answer.content_type
    if answer.status in (401, 403):
        return f"rejected the credentials ({answer.status}): check --prometheus-token-file or --prometheus-user"
    if 300 <= answer.status < 400:
        return f"redirects ({answer.status}) to {quote_text(answer.headers.get('Location', ''))}: use that address"
    if kind != "application/json":
        return f"must answer with JSON, found {kind} ({answer.status}) starting with {start!r}"
    return f"must answer as Prometheus does, found {start!r} ({answer.status}; {shorten_text(str(error), 120)})"
