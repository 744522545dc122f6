"""Client of one API server: JSON requests and responses over one HTTP session, with a deadline on every call.

A call that the server asks to retry (429, or 503 with Retry-After) is retried within its deadline. After a 401 the
credentials are read again and the call is repeated once.

The version of the API server, which decides how it completes pods.
"""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
from collections.abc import AsyncIterator, Container, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, Protocol, Self
from weakref import WeakSet

import aiohttp
import msgspec
import orjson
from aiohttp.connector import AddrInfoType

from webhook.errors import AccessError, ApiError, ApiUnreachable, connection_problem
from webhook.kube.access import ClusterAccess
from webhook.kube.decoder import ApiStatus

CALL_SECONDS = 30.0
CONNECT_SECONDS = 5.0
IDLE_SECONDS = 2.0
"""How long an idle connection is kept. aiohttp takes the one that is idle longest, so with its 15 s a few regular calls
keep as many connections as were ever in use at once, each with buffers of its own."""

SOCKET_CLOSE_SECONDS = 1.0
"""The time limit of `close`: the event loop closes a socket in the turn after its shutdown."""

MAX_RESPONSE_BYTES = 64 * 1024 * 1024
"""A page of a list is far smaller."""

RETRIABLE = frozenset({429, 503})
RETRY_SECONDS = 1.0
"""The delay before a retry if the server names none."""

CHUNK = 256 * 1024
USER_AGENT = "rightslice"

NO_PARAMS: Mapping[str, str] = MappingProxyType({})

PatchKind = Literal["json", "merge", "strategic", "apply"]

PATCH_TYPES: Mapping[PatchKind, str] = {
    "json": "application/json-patch+json",
    "merge": "application/merge-patch+json",
    "strategic": "application/strategic-merge-patch+json",
    "apply": "application/apply-patch+yaml",  # JSON is YAML
}


class ApiRequest(NamedTuple):
    """One HTTP request to the API server."""

    method: str
    path: str
    params: Mapping[str, str]
    body: bytes | None = None
    content_type: str = "application/json"

    @property
    def label(self) -> str:
        """The request in error messages."""
        return f"{self.method} {self.path}"


class KubeClient:
    """Client of one API server. Use it with `async with`, or `close` it.

    Every call raises `ApiError`; it is an `ApiUnreachable` if the server does not respond.

    Attributes:
        server_time: The server's clock at its last response, to the second; None before the first.
    """

    server_time: datetime | None = None

    def __init__(self, access: ClusterAccess, *, seconds: float = CALL_SECONDS) -> None:
        """Create a client from access that was read; `seconds` is the time limit of one call, including retries."""
        self._access = access
        self._seconds = seconds
        self._http: aiohttp.ClientSession | None = None
        self._sockets = SocketTracker()

    @classmethod
    async def connect(cls, kubeconfig: str | None = None, context: str | None = None) -> Self:
        """Create a client from a kubeconfig or a service account; no request is sent yet. See `ClusterAccess`.

        Raises:
            AccessError: there is neither, or it is invalid.
        """
        return cls(await ClusterAccess(kubeconfig, context).read())

    @property
    def access(self) -> ClusterAccess:
        """Address and credentials of the API server."""
        return self._access

    @property
    def server(self) -> str:
        """The server's URL."""
        return self._access.server

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the session and all its sockets."""
        if self._http is not None:
            await self._http.close()
            self._http = None
            await self._sockets.close()

    async def get(self, path: str, params: Mapping[str, str] = NO_PARAMS) -> dict[str, Any]:
        """Read an object or a list."""
        return _parse_json_object("GET", path, await self.get_bytes(path, params))

    async def create(self, path: str, body: Mapping[str, Any], params: Mapping[str, str] = NO_PARAMS) -> dict[str, Any]:
        """Create an object (POST to its collection), and return the stored one; 409 if it exists."""
        return _parse_json_object("POST", path, await self._request("POST", path, params, body))

    async def replace(
        self, path: str, body: Mapping[str, Any], params: Mapping[str, str] = NO_PARAMS
    ) -> dict[str, Any]:
        """Replace an object (PUT); 409 if `metadata.resourceVersion` is not that of the stored one."""
        return _parse_json_object("PUT", path, await self._request("PUT", path, params, body))

    async def patch(
        self, path: str, body: Any, kind: PatchKind, params: Mapping[str, str] = NO_PARAMS
    ) -> dict[str, Any]:
        """Patch an object; "apply" needs `fieldManager` among the parameters.

        The status is 409 on conflicting field managers, and 422 if a test of a JSON Patch fails.
        """
        return _parse_json_object("PATCH", path, await self._request("PATCH", path, params, body, PATCH_TYPES[kind]))

    async def delete(self, path: str, params: Mapping[str, str] = NO_PARAMS) -> dict[str, Any]:
        """Delete an object; return a Status, or the object with a `deletionTimestamp` if finalizers delay it."""
        return _parse_json_object("DELETE", path, await self._request("DELETE", path, params))

    async def get_bytes(self, path: str, params: Mapping[str, str] = NO_PARAMS) -> bytes:
        """Read a resource without decoding it."""
        return await self._request("GET", path, params)

    @asynccontextmanager
    async def stream(
        self, path: str, params: Mapping[str, str], read_timeout: float
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """Read an endless response in chunks; after `read_timeout` seconds without data it fails."""
        request = ApiRequest("GET", path, params)
        timeout = aiohttp.ClientTimeout(sock_connect=CONNECT_SECONDS, sock_read=read_timeout)
        async with self._open_response(request, timeout) as response:

            async def chunks() -> AsyncIterator[bytes]:
                with self._translate_errors(request.label):
                    async for chunk in response.content.iter_any():
                        yield chunk

            yield chunks()

    async def _request(
        self,
        method: str,
        path: str,
        params: Mapping[str, str],
        body: Any = None,
        content_type: str = "application/json",
    ) -> bytes:
        """Send a request; retry as the server asks, within the deadline."""
        loop = asyncio.get_running_loop()
        end = loop.time() + self._seconds
        request = ApiRequest(method, path, params, None if body is None else orjson.dumps(body), content_type)
        while True:
            timeout = aiohttp.ClientTimeout(total=max(0.1, end - loop.time()), sock_connect=CONNECT_SECONDS)
            try:
                async with self._open_response(request, timeout) as response:
                    with self._translate_errors(request.label):
                        return await _read_bounded(request.label, response)
            except ApiError as error:
                if error.status not in RETRIABLE or (error.status == 503 and not error.retry_after):
                    raise
                delay = error.retry_after or RETRY_SECONDS
                if loop.time() + delay >= end:
                    raise
            await asyncio.sleep(delay)

    @asynccontextmanager
    async def _open_response(
        self, request: ApiRequest, timeout: aiohttp.ClientTimeout
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        with _access_as_api_error(request.label):
            authorization = await self._access.authorization()
        response = await self._send_authenticated(request, timeout, authorization)
        if response is None:
            with _access_as_api_error(request.label):
                await self._access.reload(authorization)
                authorization = await self._access.authorization()
            response = await self._send(request, timeout, authorization)
        try:
            if response.status >= 300:
                raise await self._api_error_of(request.label, response)
            yield response
        finally:
            response.close()

    async def _send_authenticated(
        self, request: ApiRequest, timeout: aiohttp.ClientTimeout, authorization: str
    ) -> aiohttp.ClientResponse | None:
        """Send a request; None on rejected credentials or an untrusted certificate, because either may have rotated."""
        try:
            response = await self._send(request, timeout, authorization)
        except ApiUnreachable as error:
            if isinstance(error.__cause__, aiohttp.ClientConnectorCertificateError):
                return None
            raise
        if response.status != 401:
            return response
        response.close()
        return None

    async def _send(
        self, request: ApiRequest, timeout: aiohttp.ClientTimeout, authorization: str
    ) -> aiohttp.ClientResponse:
        access = self._access
        headers = {"Authorization": authorization} if authorization else {}
        if request.body is not None:
            headers["Content-Type"] = request.content_type
        with self._translate_errors(request.label):
            response = await self._session().request(
                request.method,
                access.server + request.path,
                params=request.params,
                data=request.body,
                headers=headers,
                timeout=timeout,
                ssl=access.tls or True,
                server_hostname=access.server_name,
                proxy=access.proxy,
                allow_redirects=False,
            )
        date = response.headers.get("Date", "")
        if date.endswith("GMT"):
            with suppress(ValueError):
                self.server_time = parsedate_to_datetime(date)
        return response

    async def _api_error_of(self, call: str, response: aiohttp.ClientResponse) -> ApiError:
        with self._translate_errors(call):
            text = (await response.content.read(CHUNK)).decode(errors="replace")
        try:
            status = msgspec.json.decode(text, type=ApiStatus)
        except msgspec.MsgspecError:
            status = ApiStatus(message=" ".join(text.split())[:256])
        reason = status.reason or response.reason or ""
        header = response.headers.get("Retry-After", "")
        retry_after = float(header) if header.isascii() and header.isdigit() else 0.0  # API servers send no dates
        return ApiError(call, response.status, reason, status.message, retry_after)

    @contextmanager
    def _translate_errors(self, call: str) -> Iterator[None]:
        try:
            yield
        except TimeoutError as error:
            raise ApiUnreachable(call, self.server, "timed out") from error
        except (aiohttp.ClientError, ssl.SSLError, OSError) as error:
            raise ApiUnreachable(call, self.server, connection_problem(error)) from error

    def _session(self) -> aiohttp.ClientSession:
        if self._http is None:
            self._http = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(
                    socket_factory=self._sockets.create_socket, keepalive_timeout=IDLE_SECONDS
                ),
                headers={"User-Agent": USER_AGENT, "Accept": "application/json", "Accept-Encoding": "identity"},
                cookie_jar=aiohttp.DummyCookieJar(),
                read_bufsize=CHUNK,
            )
        return self._http


class ObjectReader(Protocol):
    """The method of `KubeClient` that reads an object."""

    async def get(self, path: str) -> dict[str, Any]:
        """Read an object."""


async def find_object(
    api: ObjectReader, path: str, absent: Container[int] = (HTTPStatus.NOT_FOUND,)
) -> dict[str, Any] | None:
    """Read an object; None if the API server answers with one of these statuses.

    Raises:
        ApiError: Any other error.
    """
    try:
        return await api.get(path)
    except ApiError as error:
        if error.status not in absent:
            raise
        return None


class SocketTracker:
    """Creates the sockets of one session, so that none outlives it.

    The session closes only connections that it still holds. It releases one with a cancelled watch or call at once,
    while TLS waits for the peer's close_notify: for half a minute if the peer hangs.
    """

    def __init__(self) -> None:
        self._sockets: WeakSet[socket.socket] = WeakSet()

    def create_socket(self, address: AddrInfoType) -> socket.socket:
        """Create a socket for an address; aiohttp's `socket_factory`."""
        family, kind, protocol, *_ = address
        created = socket.socket(family, kind, protocol)
        self._sockets.add(created)
        return created

    async def close(self) -> None:
        """Shut down all open sockets, and wait until the event loop has closed them."""
        for each in list(self._sockets):
            with suppress(OSError):  # not connected, or closed
                each.shutdown(socket.SHUT_RDWR)
        with suppress(TimeoutError):
            async with asyncio.timeout(SOCKET_CLOSE_SECONDS):
                while any(each.fileno() >= 0 for each in list(self._sockets)):
                    await asyncio.sleep(0.005)


@contextmanager
def _access_as_api_error(call: str) -> Iterator[None]:
    """Report credentials that cannot be read like credentials that the server rejects."""
    try:
        yield
    except AccessError as error:
        raise ApiError(call, 401, "Unauthorized", str(error)) from error


async def _read_bounded(call: str, response: aiohttp.ClientResponse) -> bytes:
    parts, left = [], MAX_RESPONSE_BYTES
    async for chunk in response.content.iter_any():
        left -= len(chunk)
        if left < 0:
            message = f"the response must be at most {MAX_RESPONSE_BYTES} bytes"
            raise ApiError(call, response.status, "TooLong", message)
        parts.append(chunk)
    return b"".join(parts)


def _parse_json_object(method: str, path: str, body: bytes) -> dict[str, Any]:
    try:
        data = orjson.loads(body)
    except orjson.JSONDecodeError:
        data = None
    if not isinstance(data, dict):
        start = body[:120].decode(errors="replace")
        raise ApiError(f"{method} {path}", 200, "NotJson", f"the response must be a JSON object, found {start!r}")
    return data


async def read_api_minor(api: ObjectReader) -> int:
    """Return the minor version of the API server; 0 if it tells none.

    Managed clusters write a plus sign after it.
    """
    try:
        version = await api.get("/version")
    except ApiError:
        return 0
    digits = re.match(r"[0-9]{1,4}", str(version.get("minor")), re.ASCII)
    return int(digits[0]) if digits else 0
