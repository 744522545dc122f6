"""An API server in memory with replicas; tests choose the order of all calls."""

from __future__ import annotations

from collections.abc import Coroutine, Generator, Mapping
from datetime import UTC, datetime, timedelta
from types import coroutine
from typing import Any

import orjson

from webhook.certs.reconciler import CertificateReconciler, ManagedCertificateSpec, ReconcileResult
from webhook.certs.rotation import NoAction
from webhook.certs.secret_state import (
    CertificateAuthority,
    SecretName,
    SecretState,
    ServingCertificate,
    parse_authorities,
    secret_state_of,
)
from webhook.certs.webhook_configs import CONFIG_PATHS, WebhookConfigSelector, webhook_config_of
from webhook.errors import ApiError

START = datetime(2026, 6, 1, tzinfo=UTC)
SECRET = SecretName("rightslice", "rightslice-tls")
NAMES = ("rightslice.rightslice.svc", "127.0.0.1")
KEEPING = ManagedCertificateSpec(SECRET, WebhookConfigSelector(names=("rightslice",)), NAMES)
HOOKS = tuple(f"{folder}/rightslice" for folder in CONFIG_PATHS)


class Cluster:
    """Stored objects. Every write needs the version that was read, as on a real API server."""

    def __init__(self, hooks: tuple[str, ...] = HOOKS) -> None:
        self.objects: dict[str, dict[str, Any]] = {}
        self.moment = START
        self.seconds = 0.0
        self.calls: list[str] = []
        self._version = 0
        for path in hooks:
            webhooks = [{"name": f"{name}.rightslice.dev", "clientConfig": {"url": "https://x"}} for name in "ab"]
            self.store(path, {"metadata": {"name": path.rpartition("/")[2]}, "webhooks": webhooks})

    def store(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Store an object under a new version, without a check."""
        self._version += 1
        metadata = {**body["metadata"], "resourceVersion": str(self._version)}
        self.objects[path] = _sent({**body, "metadata": metadata})
        return self.read(path)

    def read(self, path: str) -> dict[str, Any]:
        """GET."""
        if path not in self.objects:
            raise ApiError(f"GET {path}", 404, "NotFound", "there is none")
        return _sent(self.objects[path])

    def change(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """A conditional write."""
        if body["metadata"].get("resourceVersion") != self.read(path)["metadata"]["resourceVersion"]:
            raise ApiError(f"PUT {path}", 409, "Conflict", "the object has been modified")
        metadata = {**self.objects[path]["metadata"], **body["metadata"]}
        return self.store(path, {**self.objects[path], **body, "metadata": metadata})

    def pass_time(self, time: timedelta) -> None:
        """Time passes, for clocks that step and for those that do not."""
        self.moment += time
        self.seconds += time.total_seconds()

    @property
    def held(self) -> SecretState | None:
        """The content of the Secret."""
        return secret_state_of(self.objects.get(SECRET.path))

    @property
    def leaf(self) -> ServingCertificate:
        """The certificate in the Secret, which has to be there."""
        assert self.held is not None
        assert self.held.serving is not None
        return self.held.serving

    def bundles(self) -> list[bytes]:
        """The caBundle of every webhook."""
        return [
            bundle
            for path in HOOKS
            if path in self.objects
            for bundle in webhook_config_of(path, self.objects[path]).bundles
        ]

    def trusted_everywhere(self, authority: CertificateAuthority | None) -> bool:
        """Does every webhook trust it?"""
        return all(authority in parse_authorities(bundle) for bundle in self.bundles())

    def set_bundles(self, bundle: str, path: str | None = None) -> None:
        """Change every `caBundle` (base64)."""
        for each in HOOKS if path is None else (path,):
            for webhook in self.objects[each]["webhooks"]:
                webhook["clientConfig"]["caBundle"] = bundle
            self.store(each, self.objects[each])

    def spoil(self, key: str, value: str) -> None:
        """Somebody edits the Secret (base64)."""
        if SECRET.path in self.objects:
            self.objects[SECRET.path]["data"][key] = value
            self.store(SECRET.path, self.objects[SECRET.path])


def _sent(body: Mapping[str, Any]) -> dict[str, Any]:
    """The object after a round trip through JSON."""
    arrived: dict[str, Any] = orjson.loads(orjson.dumps(body))
    return arrived


@coroutine
def _turn() -> Generator[None, None, None]:
    """Wait for the test to say that this call is next."""
    yield


class Client:
    """One replica's way to the API server: it waits for its turn before each call.

    Attributes:
        refusal: What every call comes to that has `about` in it; None: to an answer.
    """

    def __init__(self, cluster: Cluster, refusal: ApiError | None = None, about: str = "") -> None:
        self._cluster = cluster
        self.refusal = refusal
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
            raise ApiError(f"POST {path}", 409, "AlreadyExists", "it is there")
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
        if self.refusal is not None and self._about in call:
            raise self.refusal
        self.server_time = self._cluster.moment
        self._cluster.calls.append(call)


class Replica:
    """A process: it reconciles repeatedly, serves the result, and can be stopped between any two calls."""

    def __init__(self, cluster: Cluster, *, leads: bool = False) -> None:
        self.cluster = cluster
        self.leads = leads
        self.start()

    def start(self) -> None:
        """A new process, which knows nothing."""
        self.served: ServingCertificate | None = None
        self.last: ReconcileResult | None = None
        self._looking: Coroutine[Any, Any, ReconcileResult] | None = None
        clock = lambda: self.cluster.moment  # noqa: E731 - handed on at once
        self.keeper = CertificateReconciler(
            Client(self.cluster), KEEPING, lambda: self.leads, clock, monotonic=lambda: self.cluster.seconds
        )

    def crash(self) -> None:
        """End in the middle of whatever it does."""
        if self._looking is not None:
            self._looking.close()
        self.start()

    @property
    def busy(self) -> bool:
        """Is it in the middle of a look?"""
        return self._looking is not None

    def advance(self) -> bool:
        """Go on by one call, beginning a look if none has begun; True once the look is over."""
        if self._looking is None:
            self._looking = self.keeper.reconcile()
        try:
            self._looking.send(None)
        except StopIteration as end:
            self._looking, self.last = None, end.value
            assert self.last is not None
            self.served = self.last.serving or self.served
            return True
        return False

    def look(self) -> ReconcileResult:
        """One whole look."""
        while not self.advance():
            pass
        assert self.last is not None
        return self.last

    def settle(self, most: int = 12) -> ReconcileResult:
        """Look until there is nothing to do."""
        for _ in range(most):
            looked = self.look()
            if isinstance(looked.step, NoAction):
                return looked
        raise AssertionError("it still finds something to do")
