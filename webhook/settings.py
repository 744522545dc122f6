"""What a serving process is told: flags first, then RIGHTSLICE_ variables of the environment, then defaults."""

from __future__ import annotations

import os
import re
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Literal, Self, TypeVar

from pydantic import Field, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from webhook.well_known import APP_NAME, SYSTEM_NAMESPACE

CLUSTER_DRAIN_SECONDS = 10.0
"""Seconds for a cluster's endpoints to forget a replica that ends."""


LIVE_CLUSTER = "live"
"""What to call the cluster that is watched."""

FLAG_REQUIRED = "--{}: is needed, as a flag or as RIGHTSLICE_{}"


LIVE_CLUSTER_REQUIRED = "--kubeconfig and --context say which live cluster: write --cluster live"


class SettingsError(Exception):
    """A flag or a variable cannot be used; one line for each."""


AnySettings = TypeVar("AnySettings", bound="ServerSettings")


class ServerSettings(BaseSettings):
    """What the webhook and the extender are both told.

    Attributes:
        cluster: A snapshot (a file, a folder, or "demo"), or "live": the cluster itself. In a pod that is the default.
        kubeconfig, context: How to reach a live cluster; see `webhook.kube.access`.
        listen: Address and port; port 0 lets the system choose.
        tls_cert, tls_key: PEM files, read again when they change.
        client_ca: PEM file of authorities; only clients with a certificate of theirs are answered.
        client_name: The name that such a certificate must have; "" for any.
        self_signed: Make a certificate for this run instead.
        drain_seconds: How long to serve on after SIGTERM. None: 10, or 0 on a loopback address, which no
            cluster routes to.
        log_level: debug tells each decision, info those that denied.
        max_connections, max_in_flight: Bounds; see `webhook.web.limits`.
    """

    model_config = SettingsConfigDict(env_prefix="RIGHTSLICE_", frozen=True, extra="ignore")

    cluster: str = ""
    kubeconfig: str | None = None
    context: str | None = None
    listen: str = "127.0.0.1:8443"
    tls_cert: Path | None = None
    tls_key: Path | None = None
    self_signed: bool = False
    client_ca: Path | None = None
    client_name: str = ""
    drain_seconds: float | None = Field(default=None, ge=0, le=300)
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    max_connections: int = Field(default=2000, ge=1, le=100_000)
    max_in_flight: int = Field(default=256, ge=1, le=10_000)

    @field_validator("listen")
    @classmethod
    def _check_listen(cls, value: str) -> str:
        host, colon, port = value.rpartition(":")
        if not colon or not host or not (port.isascii() and port.isdigit() and int(port) < 65536):
            raise ValueError("must be ADDRESS:PORT, for example 127.0.0.1:8443 or [::]:8443")
        return value

    @model_validator(mode="before")
    @classmethod
    def _default_cluster(cls, values: dict[str, object]) -> dict[str, object]:
        in_a_pod = {"cluster": LIVE_CLUSTER} if os.environ.get("KUBERNETES_SERVICE_HOST") else {}
        return {**in_a_pod, **values}

    @model_validator(mode="after")
    def _check_client_name(self) -> Self:
        if self.client_name and self.client_ca is None:
            raise ValueError("--client-name needs --client-ca: a name that nobody vouches for says nothing")
        return self

    @property
    def is_live(self) -> bool:
        """Is the cluster watched, and not a snapshot?"""
        return self.cluster == LIVE_CLUSTER

    @property
    def host(self) -> str:
        """The address to listen on, without the brackets of IPv6."""
        return self.listen.rpartition(":")[0].strip("[]")

    @property
    def port(self) -> int:
        """The port to listen on."""
        return int(self.listen.rpartition(":")[2])

    @property
    def drain_period(self) -> float:
        """Seconds to serve on after SIGTERM."""
        if self.drain_seconds is not None:
            return self.drain_seconds
        return 0.0 if is_loopback(self.host) else CLUSTER_DRAIN_SECONDS


class ExtenderSettings(ServerSettings):
    """The knobs of `rightslice serve extender`.

    Attributes:
        policy: What free room is worth; see `webhook.placement.fragmentation`.
        fill: Among equals, fuller nodes first or emptier ones.
        fair_share: A file or folder of policies; pods of those that are over the `fairShare` of one leave room.
    """

    listen: str = "127.0.0.1:8444"
    policy: Literal["tab", "fgd", "most-allocated", "default"] = "tab"
    fill: Literal["pack", "spread"] = "pack"
    fair_share: Path | None = None

    @model_validator(mode="after")
    def _check_cluster(self) -> Self:
        if not self.cluster:
            raise ValueError(FLAG_REQUIRED.format("cluster", "CLUSTER"))
        if not self.is_live and (self.kubeconfig or self.context):
            raise ValueError(LIVE_CLUSTER_REQUIRED)
        if not self.is_live and self.fair_share is not None:
            raise ValueError("--fair-share is reckoned from the pods of a live cluster: write --cluster live")
        return self

    @model_validator(mode="after")
    def _check_certificate(self) -> Self:
        files = (self.tls_cert is not None) + (self.tls_key is not None)
        if bool(files) == self.self_signed or files == 1:
            raise ValueError("must have --tls-cert and --tls-key, or --self-signed")
        return self


class WebhookSettings(ServerSettings):
    """The knobs of `rightslice serve webhook`.

    Attributes:
        policies: Folders and files of policies; in the variable parted by ":", as in PATH. Empty: only the objects of a
            live cluster.
        namespace: Ours. GPUPolicyExceptions count here and nowhere else.
        managed_tls: Have the replicas make, renew and hand out certificates of their own instead.
        tls_secret: NAMESPACE/NAME of the Secret that they are kept in; to name one is to have them managed. None:
            rightslice-tls in our namespace.
        tls_names: What clients call the server by, parted by commas. Empty: the name of our Service.
        webhook_configurations: Which ones must trust these certificates, in both kinds: names parted by commas, or
            a label selector such as app=rightslice.
        mode: "audit" puts every policy on trial: whatever it says, nothing is denied and nothing is changed.
        prometheus: URL of a Prometheus that says what GPUs were seen to do. None: nothing is learnt from use.
        prometheus_ca, prometheus_token_file, prometheus_user, prometheus_password_file, prometheus_selector,
            prometheus_days: See `webhook.usage.prometheus_source`.
        usage: A file of recorded use, in place of a Prometheus.
        usage_minutes: How often use is read.
    """

    policies: Annotated[tuple[Path, ...], NoDecode] = ()
    namespace: str = SYSTEM_NAMESPACE
    mode: Literal["audit", "enforce"] = "enforce"
    managed_tls: bool = False
    tls_secret: str | None = Field(default=None, pattern=r"^[a-z0-9][-a-z0-9]*/[a-z0-9][-.a-z0-9]*$")
    tls_names: str = ""
    webhook_configurations: str = Field(default=APP_NAME, min_length=1)
    prometheus: str | None = Field(default=None, min_length=1)
    prometheus_ca: Path | None = None
    prometheus_token_file: Path | None = None
    prometheus_user: str = ""
    prometheus_password_file: Path | None = None
    prometheus_selector: str = ""
    prometheus_days: int = Field(default=7, ge=1, le=90)
    usage: Path | None = None
    usage_minutes: float = Field(default=30, ge=0.1, le=1440)

    @field_validator("policies", mode="before")
    @classmethod
    def _split_policies(cls, value: object) -> object:
        return [path for path in value.split(os.pathsep) if path] if isinstance(value, str) else value

    @model_validator(mode="after")
    def _check_sources(self) -> Self:
        if not self.is_live and not self.policies:
            raise ValueError(FLAG_REQUIRED.format("policies", "POLICIES"))
        if not self.cluster:
            raise ValueError(FLAG_REQUIRED.format("cluster", "CLUSTER"))
        if not self.uses_api_server and (self.kubeconfig or self.context):
            raise ValueError(LIVE_CLUSTER_REQUIRED)
        return self

    @model_validator(mode="after")
    def _check_certificate(self) -> Self:
        files = (self.tls_cert is not None) + (self.tls_key is not None)
        ways = self.self_signed + self.manages_tls + bool(files)
        if ways > 1:
            raise ValueError("only one can be had: --tls-cert and --tls-key, or --managed-tls, or --self-signed")
        if not ways or files == 1:
            raise ValueError("must have --tls-cert and --tls-key, or --managed-tls, or --self-signed")
        if self.tls_names and not self.manages_tls:
            raise ValueError("--tls-names says what managed certificates stand for: write --managed-tls too")
        return self

    @model_validator(mode="after")
    def _check_usage_source(self) -> Self:
        if self.prometheus is not None and self.usage is not None:
            raise ValueError("--usage is read in place of a Prometheus: write only one of --usage and --prometheus")
        return self

    @property
    def manages_tls(self) -> bool:
        """Do the replicas keep certificates of their own?"""
        return self.managed_tls or self.tls_secret is not None

    @property
    def uses_api_server(self) -> bool:
        """Is an API server asked anything?"""
        return self.is_live or self.manages_tls

    @property
    def is_cluster_replica(self) -> bool:
        """Is this one of the replicas of a cluster, and not somebody's trial against it? They elect a leader."""
        return self.manages_tls or (self.is_live and bool(os.environ.get("KUBERNETES_SERVICE_HOST")))

    @property
    def tls_server_names(self) -> tuple[str, ...]:
        """What clients call the server by."""
        named = tuple(name.strip() for name in self.tls_names.split(",") if name.strip())
        return named or (f"rightslice.{self.namespace}.svc",)

    @property
    def tls_secret_ref(self) -> tuple[str, str]:
        """Namespace and name of the Secret with the certificates."""
        namespace, _, name = (self.tls_secret or f"{self.namespace}/rightslice-tls").partition("/")
        return namespace, name


def load_webhook_settings(**flags: object) -> WebhookSettings:
    """Settings of the webhook from the flags that were given (None: not given) and the environment.

    Raises:
        SettingsError: one of them cannot be used.
    """
    return _load_settings(WebhookSettings, flags)


def load_extender_settings(**flags: object) -> ExtenderSettings:
    """The same for the extender.

    Raises:
        SettingsError: one of them cannot be used.
    """
    return _load_settings(ExtenderSettings, flags)


def _load_settings(kind: type[AnySettings], flags: dict[str, object]) -> AnySettings:
    try:
        return kind(**{name: value for name, value in flags.items() if value is not None})  # type: ignore[arg-type] # it validates
    except ValidationError as error:
        raise SettingsError("\n".join(map(_setting_message, error.errors(include_url=False)))) from error


def is_loopback(host: str) -> bool:
    """Can only this machine reach the address?"""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _setting_message(fault: object) -> str:
    assert isinstance(fault, dict)
    if str(fault["msg"]).startswith("Value error, --"):
        return str(fault["msg"]).removeprefix("Value error, ")
    name = "--" + "-".join(map(str, fault["loc"])).replace("_", "-") if fault["loc"] else "flags"
    if fault["type"] == "string_pattern_mismatch":
        return f"{name}: must be NAMESPACE/NAME, found {fault['input']!r}"
    if fault["type"] == "value_error":
        return f"{name}: {str(fault['msg']).removeprefix('Value error, ')}"
    must = re.sub(r"^(Input|String|Value) should ", "must ", str(fault["msg"])).partition(",")[0]
    return f"{name}: {must}, found {fault['input']!r}"
