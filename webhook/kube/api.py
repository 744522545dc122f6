"""One API server behind one HTTP session: JSON in, JSON out, and a deadline on every call.

A call that the server asks us to repeat (429, or 503 with Retry-After) is repeated as it asks, within the call's
own deadline; one that is refused with 401 is repeated once with credentials read anew.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from email.utils import parsedate_to_datetime
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, Self
from weakref import WeakSet

import aiohttp
import msgspec
import orjson
from aiohttp.connector import AddrInfoType

from webhook.errors import AccessError, ApiError, ApiUnreachable
from webhook.kube.access import ClusterAccess

SOCKET_CLOSE_SECONDS = 1.0
"""The most that `close` waits: the event loop closes a socket that was shut down in its next turn."""


class SocketTracker:
    """Makes sockets, and knows which of them are open."""

    def __init__(self) -> None:
        self._sockets: WeakSet[socket.socket] = WeakSet()

    def create_socket(self, address: AddrInfoType) -> socket.socket:
        """A socket for an address, as aiohttp's `socket_factory`."""
        family, kind, protocol, *_ = address
        made = socket.socket(family, kind, protocol)
        self._sockets.add(made)
        return made

    async def close(self) -> None:
        """Shut down what is open still, and wait until the event loop has closed it."""
        for each in list(self._sockets):
            with suppress(OSError):  # it is not connected, or closed
                each.shutdown(socket.SHUT_RDWR)
        with suppress(TimeoutError):
            async with asyncio.timeout(SOCKET_CLOSE_SECONDS):
                while any(each.fileno() >= 0 for each in list(self._sockets)):
                    await asyncio.sleep(0.005)


CALL_SECONDS = 30.0
CONNECT_SECONDS = 5.0
MAX_RESPONSE_BYTES = 64 * 1024 * 1024
"""Bytes of one answer; a page of a list is far below."""

RETRIABLE = frozenset({429, 503})
RETRY_SECONDS = 1.0
"""The wait before a repetition where the server names none."""

CHUNK = 256 * 1024
USER_AGENT = "rightslice"

NO_PARAMS: Mapping[str, str] = MappingProxyType({})

PatchKind = Literal["json", "merge", "strategic", "apply"]
"""The four ways to patch."""

PATCH_TYPES: Mapping[PatchKind, str] = {
    "json": "application/json-patch+json",
    "merge": "application/merge-patch+json",
    "strategic": "application/strategic-merge-patch+json",
    "apply": "application/apply-patch+yaml",  # JSON is YAML
}


class ApiStatus(msgspec.Struct, frozen=True):
    """What the API says where it does not give what was asked for."""

    kind: str = ""
    code: int = 0
    reason: str = ""
    message: str = ""


class ApiRequest(NamedTuple):
    """One call, as it goes to the server."""

    method: str
    path: str
    params: Mapping[str, str]
    body: bytes | None = None
    content_type: str = "application/json"

    @property
    def label(self) -> str:
        """What messages call it."""
        return f"{self.method} {self.path}"


class KubeClient:
    """One API server. Use it with `async with`, or `close` it.

    Attributes:
        moment: The server's clock, to the second, when it last answered; None: it has not said.
    """

    server_time: datetime | None = None

    def __init__(self, access: ClusterAccess, *, seconds: float = CALL_SECONDS) -> None:
        """Take access that has been read.

        Args:
            access: Where the server is and who we are.
            seconds: How long one call may take, repetitions included.
        """
        self._access = access
        self._seconds = seconds
        self._http: aiohttp.ClientSession | None = None
        self._sockets = SocketTracker()

    @classmethod
    async def connect(cls, kubeconfig: str | None = None, context: str | None = None) -> Self:
        """An API server by kubeconfig or service account; nothing is sent yet. See `ClusterAccess`.

        Raises:
            AccessError: nothing says where it is, or what says so cannot be used.
        """
        return cls(await ClusterAccess(kubeconfig, context).read())

    @property
    def server(self) -> str:
        """The server's URL."""
        return self._access.server

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the session, and every socket of it."""
        if self._http is not None:
            await self._http.close()
            self._http = None
            await self._sockets.close()

    async def get(self, path: str, params: Mapping[str, str] = NO_PARAMS) -> dict[str, Any]:
        """Read an object or a list.

        Raises:
            ApiError: the server says no; `ApiUnreachable`: it says nothing.
        """
        return _parse_json_object("GET", path, await self.get_bytes(path, params))

    async def create(self, path: str, body: Mapping[str, Any], params: Mapping[str, str] = NO_PARAMS) -> dict[str, Any]:
        """POST a new object to its collection; gives what was stored.

        Raises:
            ApiError: see `get`; 409 where it is there already.
        """
        return _parse_json_object("POST", path, await self._request("POST", path, params, body))

    async def replace(
        self, path: str, body: Mapping[str, Any], params: Mapping[str, str] = NO_PARAMS
    ) -> dict[str, Any]:
        """PUT an object as a whole; its `metadata.resourceVersion`, where given, must still be the stored one.

        Raises:
            ApiError: see `get`; 409 where somebody else was first.
        """
        return _parse_json_object("PUT", path, await self._request("PUT", path, params, body))

    async def patch(
        self, path: str, body: Any, kind: PatchKind, params: Mapping[str, str] = NO_PARAMS
    ) -> dict[str, Any]:
        """PATCH an object; "apply" needs `fieldManager` among the parameters.

        Raises:
            ApiError: see `get`; 409 where fields are another's, 422 where a test of a JSON Patch does not hold.
        """
        return _parse_json_object("PATCH", path, await self._request("PATCH", path, params, body, PATCH_TYPES[kind]))

    async def delete(self, path: str, params: Mapping[str, str] = NO_PARAMS) -> dict[str, Any]:
        """DELETE an object; gives a Status, or the object: one with a `deletionTimestamp` is on its way out only.

        Raises:
            ApiError: see `get`; 404 where there is none.
        """
        return _parse_json_object("DELETE", path, await self._request("DELETE", path, params))

    async def get_bytes(self, path: str, params: Mapping[str, str] = NO_PARAMS) -> bytes:
        """GET as it comes, for who decodes it by a type of their own.

        Raises:
            ApiError: see `get`.
        """
        return await self._request("GET", path, params)

    @asynccontextmanager
    async def stream(self, path: str, params: Mapping[str, str], quiet: float) -> AsyncIterator[AsyncIterator[bytes]]:
        """GET an answer without an end, piece by piece as the bytes come.

        Args:
            path: Path.
            params: Parameters of the query.
            quiet: Seconds without a byte after which the connection counts as hung.

        Raises:
            ApiError: see `get`; also inside the block, once the stream breaks.
        """
        ask = ApiRequest("GET", path, params)
        timeout = aiohttp.ClientTimeout(sock_connect=CONNECT_SECONDS, sock_read=quiet)
        async with self._open_response(ask, timeout) as answer:
            yield self._read_chunks(ask.label, answer)

    async def _read_chunks(self, call: str, answer: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
        with self._translate_errors(call):
            async for piece in answer.content.iter_any():
                yield piece

    async def _request(
        self,
        method: str,
        path: str,
        params: Mapping[str, str],
        body: Any = None,
        content_type: str = "application/json",
    ) -> bytes:
        """Call, and again where the server asks for it and the deadline leaves room."""
        loop = asyncio.get_running_loop()
        end = loop.time() + self._seconds
        ask = ApiRequest(method, path, params, None if body is None else orjson.dumps(body), content_type)
        while True:
            timeout = aiohttp.ClientTimeout(total=max(0.1, end - loop.time()), sock_connect=CONNECT_SECONDS)
            try:
                async with self._open_response(ask, timeout) as answer:
                    with self._translate_errors(ask.label):
                        return await _read_bounded(ask.label, answer)
            except ApiError as error:
                if error.status not in RETRIABLE or (error.status == 503 and not error.retry_after):
                    raise
                wait = error.retry_after or RETRY_SECONDS
                if loop.time() + wait >= end:
                    raise
            await asyncio.sleep(wait)

    @asynccontextmanager
    async def _open_response(
        self, ask: ApiRequest, timeout: aiohttp.ClientTimeout
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """An answer that says yes. Its body has yet to be read."""
        authorization = await self._authorization(ask.label)
        answer = await self._send_authenticated(ask, timeout, authorization)
        if answer is None:
            await self._reload_credentials(ask.label, authorization)
            answer = await self._send(ask, timeout, await self._authorization(ask.label))
        try:
            if answer.status >= 300:
                raise await self._api_error_of(ask.label, answer)
            yield answer
        finally:
            answer.close()

    async def _send_authenticated(
        self, ask: ApiRequest, timeout: aiohttp.ClientTimeout, authorization: str
    ) -> aiohttp.ClientResponse | None:
        """An answer; None where the server does not know us, or we not its authority: both may be others since."""
        try:
            answer = await self._send(ask, timeout, authorization)
        except ApiUnreachable as error:
            if isinstance(error.__cause__, aiohttp.ClientConnectorCertificateError):
                return None
            raise
        if answer.status != 401:
            return answer
        answer.close()
        return None

    async def _send(
        self, ask: ApiRequest, timeout: aiohttp.ClientTimeout, authorization: str
    ) -> aiohttp.ClientResponse:
        access = self._access
        headers = {"Authorization": authorization} if authorization else {}
        if ask.body is not None:
            headers["Content-Type"] = ask.content_type
        with self._translate_errors(ask.label):
            answer = await self._session().request(
                ask.method,
                access.server + ask.path,
                params=ask.params,
                data=ask.body,
                headers=headers,
                timeout=timeout,
                ssl=access.tls or True,
                server_hostname=access.server_name,
                proxy=access.proxy,
                allow_redirects=False,
            )
        self.server_time = _parse_http_date(answer.headers.get("Date", "")) or self.server_time
        return answer

    async def _authorization(self, call: str) -> str:
        try:
            return await self._access.authorization()
        except AccessError as error:
            raise ApiError(call, 401, "Unauthorized", str(error)) from error

    async def _reload_credentials(self, call: str, refused: str) -> None:
        try:
            await self._access.reload(refused)
        except AccessError as error:
            raise ApiError(call, 401, "Unauthorized", str(error)) from error

    async def _api_error_of(self, call: str, answer: aiohttp.ClientResponse) -> ApiError:
        with self._translate_errors(call):
            text = (await answer.content.read(CHUNK)).decode(errors="replace")
        try:
            status = msgspec.json.decode(text, type=ApiStatus)
        except msgspec.MsgspecError:
            status = ApiStatus(message=" ".join(text.split())[:256])
        reason = status.reason or answer.reason or ""
        return ApiError(
            call, answer.status, reason, status.message, _parse_retry_after(answer.headers.get("Retry-After", ""))
        )

    def _translate_errors(self, call: str) -> _ErrorTranslator:
        return _ErrorTranslator(call, self._access.server)

    def _session(self) -> aiohttp.ClientSession:
        if self._http is None:
            self._http = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(socket_factory=self._sockets.create_socket),
                headers={"User-Agent": USER_AGENT, "Accept": "application/json", "Accept-Encoding": "identity"},
                cookie_jar=aiohttp.DummyCookieJar(),
                read_bufsize=CHUNK,
            )
        return self._http


class _ErrorTranslator:
    """Turns what the HTTP client raises into our words."""

    def __init__(self, call: str, server: str) -> None:
        self._call, self._server = call, server

    def __enter__(self) -> None:
        return None

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, TimeoutError):
            raise ApiUnreachable(self._call, self._server, "it took too long") from error
        if isinstance(error, aiohttp.ClientError | ssl.SSLError | OSError):
            inner = getattr(error, "certificate_error", None) or getattr(error, "os_error", None) or error
            raise ApiUnreachable(self._call, self._server, str(inner) or type(inner).__name__) from error


async def _read_bounded(call: str, answer: aiohttp.ClientResponse) -> bytes:
    """The body, if it is not too long."""
    parts, left = [], MAX_RESPONSE_BYTES
    async for piece in answer.content.iter_any():
        left -= len(piece)
        if left < 0:
            raise ApiError(call, answer.status, "TooLong", f"the answer must be at most {MAX_RESPONSE_BYTES} bytes")
        parts.append(piece)
    return b"".join(parts)


def _parse_json_object(method: str, path: str, body: bytes) -> dict[str, Any]:
    """A JSON object; anything else did not come from an API server."""
    try:
        found = orjson.loads(body)
    except orjson.JSONDecodeError:
        found = None
    if not isinstance(found, dict):
        start = body[:120].decode(errors="replace")
        raise ApiError(f"{method} {path}", 200, "NotJson", f"the answer must be a JSON object, found {start!r}")
    return found


def _parse_retry_after(header: str) -> float:
    """Retry-After in seconds; its form with a date is one that API servers do not use."""
    return float(header) if header.isascii() and header.isdigit() else 0.0


def _parse_http_date(header: str) -> datetime | None:
    """A Date header, which is in UTC."""
    try:
        return parsedate_to_datetime(header) if header.endswith("GMT") else None
    except ValueError:
        return None
