"""Our webhook configurations, mutating and validating: which they are, what they trust, and how that is changed."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from webhook.certs.rotation import WebhookConfig
from webhook.errors import ApiError

ADMISSION_API = "/apis/admissionregistration.k8s.io/v1"
CONFIG_PATHS = (f"{ADMISSION_API}/mutatingwebhookconfigurations", f"{ADMISSION_API}/validatingwebhookconfigurations")


class ConfigReader(Protocol):
    """What is used of `webhook.kube.api.KubeClient`."""

    async def get(self, path: str, params: Mapping[str, str] = ...) -> dict[str, Any]:
        """Read an object or a list."""


@dataclass(frozen=True, slots=True)
class WebhookConfigSelector:
    """Which configurations are ours: those of these names, in both kinds, or those with a label."""

    names: tuple[str, ...] = ()
    selector: str = ""

    @classmethod
    def parse(cls, text: str) -> WebhookConfigSelector:
        """A label selector if there is a "=" in the text, else names parted by commas."""
        if "=" in text:
            return cls(selector=text)
        return cls(names=tuple(name.strip() for name in text.split(",") if name.strip()))

    async def read(self, api: ConfigReader) -> dict[str, dict[str, Any]]:
        """The configurations that are there, by their path.

        Raises:
            ApiError: the API server does not let us, or does not answer.
        """
        if self.selector:
            lists = [(folder, await api.get(folder, {"labelSelector": self.selector})) for folder in CONFIG_PATHS]
            return {f"{folder}/{each['metadata']['name']}": each for folder, found in lists for each in found["items"]}
        found = {}
        for path in (f"{folder}/{name}" for folder in CONFIG_PATHS for name in self.names):
            try:
                found[path] = await api.get(path)
            except ApiError as error:
                if error.status != 404:
                    raise
        return found

    def __str__(self) -> str:
        return self.selector or ", ".join(self.names)


def webhook_config_of(path: str, configuration: Mapping[str, Any]) -> WebhookConfig:
    """What a configuration trusts."""
    clients = [webhook.get("clientConfig") or {} for webhook in configuration.get("webhooks") or ()]
    bundles = tuple(_decode_ca_bundle(client.get("caBundle") or "") for client in clients)
    return WebhookConfig(path, str(configuration["metadata"].get("resourceVersion", "")), bundles)


def _decode_ca_bundle(text: str) -> bytes:
    """What a `caBundle` says; nothing where it is no base64."""
    try:
        return b64decode(text, validate=True)
    except ValueError:
        return b""


def ca_bundle_patch(configuration: Mapping[str, Any], bundle: bytes) -> dict[str, Any]:
    """A merge patch that makes every webhook of a configuration trust a bundle, if it has not changed since."""
    text = b64encode(bundle).decode()
    webhooks = [
        {**webhook, "clientConfig": {**webhook["clientConfig"], "caBundle": text}}
        for webhook in configuration["webhooks"]
    ]
    return {"metadata": {"resourceVersion": configuration["metadata"]["resourceVersion"]}, "webhooks": webhooks}
