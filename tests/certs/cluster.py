"""An API server in memory with replicas; tests choose the order of all calls."""

from __future__ import annotations

from collections.abc import Coroutine, Generator, Mapping
from datetime import UTC, datetime, timedelta
from types import coroutine
from typing import Any

import orjson

from webhook.certs.reconciler import (
    CONFIG_PATHS,
    CertificateReconciler,
    ManagedCertificateSpec,
    ReconcileResult,
    WebhookConfigSelector,
    webhook_config_of,
)
from webhook.certs.rotation import NoAction
from webhook.certs.secret_state import (
    CertificateAuthority,
    SecretName,
    SecretState,
    ServingCertificate,
    parse_authorities,
    secret_state_of,
)
from webhook.errors import ApiError

START = datetime(2026, 6, 1, tzinfo=UTC)
SECRET = SecretName("rightslice", "rightslice-tls")
NAMES = ("rightslice.rightslice.svc", "127.0.0.1")
SPEC = ManagedCertificateSpec(SECRET, WebhookConfigSelector(names=("rightslice",)), NAMES)
CONFIGS = tuple(f"{folder}/rightslice" for folder in CONFIG_PATHS)


class Cluster:
    """Stored objects. Every write needs the version that was read, as on a real API server."""

    def __init__(self, configs: tuple[str, ...] = CONFIGS) -> None:
        self.objects: dict[str, dict[str, Any]] = {}
        self.moment = START
        self.seconds = 0.0
        self.calls: list[str] = []
        self._version = 0
        for path in configs:
            webhooks = [{"name": f"{name}.rightslice.dev", "clientConfig": {"url": "https://x"}} for name in "ab"]
            self.store(path, {"metadata": {"name": path.rpartition("/")[2]}, "webhooks": webhooks})

    def store(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Store an object under a new version, without a check."""
        self._version += 1
        metadata = {**body["metadata"], "resourceVersion": str(self._version)}
        self.objects[path] = _sent({**body, "metadata": metadata})
        return self.read(path)

    def read(self, path: str) -> dict[str, Any]:
        """Return an object; 404 if it does not exist."""
        if path not in self.objects:
            raise ApiError(f"GET {path}", 404, "NotFound", "not found")
        return _sent(self.objects[path])

    def change(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Write an object if its version matches."""
        if body["metadata"].get("resourceVersion") != self.read(path)["metadata"]["resourceVersion"]:
            raise ApiError(f"PUT {path}", 409, "Conflict", "the object has been modified")
        metadata = {**self.objects[path]["metadata"], **body["metadata"]}
        return self.store(path, {**self.objects[path], **body, "metadata": metadata})

    def pass_time(self, time: timedelta) -> None:
        """Advance the wall clock and the monotonic clock."""
        self.moment += time
        self.seconds += time.total_seconds()

    @property
    def state(self) -> SecretState | None:
        """The content of the Secret."""
        return secret_state_of(self.objects.get(SECRET.path))

    @property
    def leaf(self) -> ServingCertificate:
        """The certificate in the Secret, which must exist."""
        assert self.state is not None
        assert self.state.serving is not None
        return self.state.serving

    def bundles(self) -> list[bytes]:
        """The caBundle of every webhook."""
        return [
            bundle
            for path in CONFIGS
            if path in self.objects
            for bundle in webhook_config_of(path, self.objects[path]).bundles
        ]

    def trusted_everywhere(self, authority: CertificateAuthority | None) -> bool:
        """Return whether every webhook trusts an authority."""
        return all(authority in parse_authorities(bundle) for bundle in self.bundles())

    def set_bundles(self, bundle: str, path: str | None = None) -> None:
        """Set every `caBundle` (base64), or those of one configuration."""
        for each in CONFIGS if path is None else (path,):
            for webhook in self.objects[each]["webhooks"]:
                webhook["clientConfig"]["caBundle"] = bundle
            self.store(each, self.objects[each])

    def damage(self, key: str, value: str) -> None:
        """Overwrite a key of the Secret (base64)."""
        if SECRET.path in self.objects:
            self.objects[SECRET.path]["data"][key] = value
            self.store(SECRET.path, self.objects[SECRET.path])


def _sent(body: Mapping[str, Any]) -> dict[str, Any]:
    """The object after a round trip through JSON."""
    arrived: dict[str, Any] = orjson.loads(orjson.dumps(body))
    return arrived


@coroutine
def _turn() -> Generator[None, None, None]:
    """Wait until the test continues this call."""
    yield


class Client:
    """One replica's API client; each call waits until the test continues it.

    Attributes:
        error: Raised by every call that contains `about`; None for no error.
    """

    def __init__(self, cluster: Cluster, error: ApiError | None = None, about: str = "") -> None:
        self._cluster = cluster
        self.error = error
        self._about = about
        self.server_time: datetime | None = None

    async def get(self, path: str, params: Mapping[str, str] | None = None) -> dict[str, Any]:
        """GET."""
        await self._begin(f"GET {path}")
        return self._cluster.read(path)

    async def create(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """POST."""
        await self._begin(f"POST {path}")
        item = f"{path}/{body['metadata']['name']}"
        if item in self._cluster.objects:
            raise ApiError(f"POST {path}", 409, "AlreadyExists", "already exists")
        return self._cluster.store(item, body)

    async def replace(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """PUT."""
        await self._begin(f"PUT {path}")
        return self._cluster.change(path, body)

    async def patch(self, path: str, body: Any, kind: str = "merge") -> dict[str, Any]:
        """PATCH."""
        await self._begin(f"PATCH {path}")
        return self._cluster.change(path, body)

    async def _begin(self, call: str) -> None:
        await _turn()
        if self.error is not None and self._about in call:
            raise self.error
        self.server_time = self._cluster.moment
        self._cluster.calls.append(call)


class Replica:
    """A process: it reconciles repeatedly, serves the result, and can be stopped between any two calls."""

    def __init__(self, cluster: Cluster, *, leads: bool = False) -> None:
        self.cluster = cluster
        self.leads = leads
        self.start()

    def start(self) -> None:
        """Start a new process without state."""
        self.served: ServingCertificate | None = None
        self.last: ReconcileResult | None = None
        self._reconciling: Coroutine[Any, Any, ReconcileResult] | None = None
        clock = lambda: self.cluster.moment  # noqa: E731 - passed on at once
        self.reconciler = CertificateReconciler(
            Client(self.cluster), SPEC, lambda: self.leads, clock, monotonic=lambda: self.cluster.seconds
        )

    def crash(self) -> None:
        """End, possibly in the middle of a reconciliation, and start again."""
        if self._reconciling is not None:
            self._reconciling.close()
        self.start()

    @property
    def busy(self) -> bool:
        """True in the middle of a reconciliation."""
        return self._reconciling is not None

    def advance(self) -> bool:
        """Do one more call of a reconciliation, a new one if none has begun; return True once it is complete."""
        if self._reconciling is None:
            self._reconciling = self.reconciler.reconcile()
        try:
            self._reconciling.send(None)
        except StopIteration as end:
            self._reconciling, self.last = None, end.value
            assert self.last is not None
            self.served = self.last.serving or self.served
            return True
        return False

    def reconcile(self) -> ReconcileResult:
        """Reconcile once, to the end."""
        while not self.advance():
            pass
        assert self.last is not None
        return self.last

    def settle(self, most: int = 12) -> ReconcileResult:
        """Reconcile until there is nothing to do."""
        for _ in range(most):
            result = self.reconcile()
            if isinstance(result.step, NoAction):
                return result
        raise AssertionError("there is still something to do")
