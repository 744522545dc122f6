"""The PodResources API of a kubelet: a real gRPC server on a Unix socket. Messages are encoded without a library."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc

Entry = tuple[str, str, Mapping[str, list[str]]]
"""Namespace and name of a pod, and its devices by resource."""


def _field(number: int, content: bytes) -> bytes:
    """Encode one field of bytes for protobuf."""
    length, head = len(content), bytes([number << 3 | 2])
    while length > 127:
        head += bytes([length & 127 | 128])
        length >>= 7
    return head + bytes([length]) + content


def answer(pods: Iterable[Entry]) -> bytes:
    """Encode a ListPodResourcesResponse, with a field of a later version in each message."""
    later = _field(15, b"later")
    whole = []
    for namespace, name, resources in pods:
        devices = b""
        for resource, ids in resources.items():
            found = _field(1, resource.encode()) + b"".join(_field(2, one.encode()) for one in ids)
            devices += _field(2, found + _field(3, _field(1, b"\x08\x01")) + later)
        container = _field(1, b"main") + devices + _field(5, _field(2, b"claim")) + later
        whole.append(_field(1, _field(1, name.encode()) + _field(2, namespace.encode()) + _field(3, container) + later))
    return b"".join([*whole, later])


class Kubelet:
    """The pods that it reports, and the number of calls that it received."""

    def __init__(self) -> None:
        self.pods: list[Entry] = []
        self.code: grpc.StatusCode | None = None
        self.calls = 0

    async def _list(self, _request: bytes, context: Any) -> bytes:
        self.calls += 1
        if self.code is not None:
            await context.abort(self.code, "rejected by rate limit")
        return answer(self.pods)


@asynccontextmanager
async def serve_kubelet(kubelet: Kubelet, socket: Path) -> AsyncIterator[None]:
    """Serve until the block ends; the socket is removed then, as when a kubelet restarts."""
    server = grpc.aio.server()
    handler = grpc.unary_unary_rpc_method_handler(kubelet._list)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("v1.PodResourcesLister", {"List": handler}),))
    server.add_insecure_port(f"unix://{socket}")
    await server.start()
    try:
        yield
    finally:
        await server.stop(None)
        socket.unlink(missing_ok=True)
