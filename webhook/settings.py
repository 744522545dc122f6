"""Settings of the serving processes: flags take precedence over RIGHTSLICE_ environment variables, then defaults."""

from __future__ import annotations

import os
import re
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Literal, Self, TypeVar

from pydantic import Field, ValidationError, field_validator, model_validator
from pydantic_core import ErrorDetails, PydanticCustomError
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from webhook.errors import quote_text
from webhook.well_known import APP_NAME, SYSTEM_NAMESPACE

CLUSTER_DRAIN_SECONDS = 10.0
"""Seconds until a cluster's endpoints no longer list a terminating replica."""

CLIENT_CA_FOLDER = Path("/etc/rightslice/client-ca")
"""Where the manifests mount the ConfigMap `rightslice-client-ca`, if there is one."""

LIVE_CLUSTER = "live"
"""Value of --cluster for the live cluster instead of a snapshot."""

FLAG_REQUIRED = "--{}: must be given, found none. Write --{} {}, or set RIGHTSLICE_{}"
_COMBINATION = "combination"
"""Error type of flags that do not fit together."""

LIVE_CLUSTER_REQUIRED = "--kubeconfig and --context: must be used with --cluster live, found a snapshot. Leave them out"


class SettingsError(Exception):
    """Invalid flags or variables, one per line."""


AnySettings = TypeVar("AnySettings", bound="ServerSettings")


class ServerSettings(BaseSettings):
    """Settings of both the webhook and the extender.

    Attributes:
        cluster: A snapshot (a file, a folder, or "demo"), or "live", which is the default in a pod.
        kubeconfig, context: How to reach a live cluster; see `webhook.kube.access`.
        listen: Address and port; with port 0 the system chooses one.
        tls_cert, tls_key: PEM files, reloaded when they change.
        client_ca: PEM file of CAs, reloaded like them; only clients with a certificate of one of them are accepted.
        client_name: The name that client certificates must have; "" for any.
        self_signed: Generate a certificate for this run.
        drain_seconds: How long to keep serving after SIGTERM; None for 10, or 0 on a loopback address.
        log_level: debug logs every decision, info only denials.
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
            raise ValueError(
                f"must be ADDRESS:PORT, for example 127.0.0.1:8443 or [::]:8443, found {quote_text(value)}"
            )
        return value

    @model_validator(mode="before")
    @classmethod
    def _default_cluster(cls, values: dict[str, object]) -> dict[str, object]:
        in_a_pod = {"cluster": LIVE_CLUSTER} if os.environ.get("KUBERNETES_SERVICE_HOST") else {}
        return {**in_a_pod, **values}

    @model_validator(mode="after")
    def _check_client_name(self) -> Self:
        if self.client_name and self.client_ca is None:
            raise _combination_error("--client-name: must be used with --client-ca, found none. Write --client-ca FILE")
        return self

    @property
    def is_live(self) -> bool:
        """True for a live cluster, False for a snapshot."""
        return self.cluster == LIVE_CLUSTER

    @property
    def client_ca_folder(self) -> Path | None:
        """Folder that may have `ca.crt` and `name` for `client_ca` and `client_name`, now or later; None for none."""
        return None

    @property
    def host(self) -> str:
        """Address to listen on, without IPv6 brackets."""
        return self.listen.rpartition(":")[0].strip("[]")

    @property
    def port(self) -> int:
        """Port to listen on."""
        return int(self.listen.rpartition(":")[2])

    @property
    def drain_period(self) -> float:
        """Seconds to keep serving after SIGTERM."""
        if self.drain_seconds is not None:
            return self.drain_seconds
        return 0.0 if is_loopback(self.host) else CLUSTER_DRAIN_SECONDS


class ExtenderSettings(ServerSettings):
    """Settings of `rightslice serve extender`.

    Attributes:
        strategy: Scoring strategy; see `webhook.placement.fragmentation`.
        fill: Prefer fuller or emptier nodes among those with equal scores.
        fair_share: A file or folder of policies; pods of namespaces over their `fairShare` avoid empty nodes.
    """

    listen: str = "127.0.0.1:8444"
    strategy: Literal["tab", "fgd", "most-allocated", "default"] = "tab"
    fill: Literal["pack", "spread"] = "pack"
    fair_share: Path | None = None

    @model_validator(mode="after")
    def _check_cluster(self) -> Self:
        if not self.cluster:
            raise _combination_error(FLAG_REQUIRED.format("cluster", "cluster", "live", "CLUSTER"))
        if not self.is_live and (self.kubeconfig or self.context):
            raise _combination_error(LIVE_CLUSTER_REQUIRED)
        if not self.is_live and self.fair_share is not None:
            raise _combination_error(
                "--fair-share: must be used with --cluster live, whose pods are counted, found a snapshot. Leave it out"
            )
        return self

    @model_validator(mode="after")
    def _check_certificate(self) -> Self:
        files = (self.tls_cert is not None) + (self.tls_key is not None)
        if bool(files) == self.self_signed or files == 1:
            raise ValueError("must have --tls-cert and --tls-key, or --self-signed")
        return self


class WebhookSettings(ServerSettings):
    """Settings of `rightslice serve webhook`.

    Attributes:
        policies: Folders and files of policies, separated by ":" in the variable. Empty: only objects of the cluster.
        namespace: Namespace of Rightslice, and the only one where GPUPolicyExceptions take effect.
        managed_tls: The replicas issue and renew their certificates.
        tls_secret: NAMESPACE/NAME of the Secret for these certificates, which enables managed TLS. Default:
            rightslice-tls in `namespace`.
        tls_names: Names of the server, separated by commas. Default: the name of the Service.
        webhook_configurations: The configurations, of both kinds, whose caBundle to maintain: names separated by
            commas, or a label selector such as app=rightslice.
        mode: "audit" runs every policy in audit mode, so that none denies or changes anything.
        prometheus: URL of the Prometheus with GPU usage. None: observed usage is not used.
        prometheus_ca, prometheus_token_file, prometheus_user, prometheus_password_file, prometheus_selector,
            prometheus_days: See `webhook.usage.prometheus_source`.
        usage: A file of recorded GPU usage, instead of Prometheus.
        usage_minutes: How often usage is loaded.
        replicas: The least number of servers that answer for the cluster, if they run elsewhere: those in the cluster
            are counted. Each leaves free units to what the others decide unseen.
        kueue_config: A file with Kueue's Configuration, for what it charges.
        node_groups: A file with a NodeGroups, for what new nodes of node groups offer.
        scheduler_config: A file with a KubeSchedulerConfiguration, for what it keeps off nodes.
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
    replicas: int = Field(default=1, ge=1, le=64)
    kueue_config: Path | None = None
    node_groups: Path | None = None
    scheduler_config: Path | None = None

    @field_validator("policies", mode="before")
    @classmethod
    def _split_policies(cls, value: object) -> object:
        return [path for path in value.split(os.pathsep) if path] if isinstance(value, str) else value

    @model_validator(mode="after")
    def _check_sources(self) -> Self:
        if not self.is_live and not self.policies:
            raise _combination_error(FLAG_REQUIRED.format("policies", "policies", "DIR", "POLICIES"))
        for flag, file, content in (
            ("--kueue-config", self.kueue_config, "Configuration"),
            ("--node-groups", self.node_groups, "NodeGroups"),
            ("--scheduler-config", self.scheduler_config, "object"),
        ):
            if not self.is_live and file is not None:
                raise _combination_error(
                    f"{flag}: must be used with --cluster live, found a snapshot. Add the {content} to the snapshot"
                )
        if not self.cluster:
            raise _combination_error(FLAG_REQUIRED.format("cluster", "cluster", "live", "CLUSTER"))
        if not self.uses_api_server and (self.kubeconfig or self.context):
            raise _combination_error(LIVE_CLUSTER_REQUIRED)
        return self

    @model_validator(mode="after")
    def _check_certificate(self) -> Self:
        files = (self.tls_cert is not None) + (self.tls_key is not None)
        ways = self.self_signed + self.manages_tls + bool(files)
        if ways > 1:
            raise ValueError("must have only one of --tls-cert and --tls-key, --managed-tls, and --self-signed")
        if not ways or files == 1:
            found = "one of the two files" if files else "none of them"
            raise ValueError(f"must have --tls-cert and --tls-key, or --managed-tls, or --self-signed, found {found}")
        if self.tls_names and not self.manages_tls:
            raise _combination_error(
                "--tls-names: must be used with --managed-tls or --tls-secret, found neither. Write --managed-tls"
            )
        return self

    @model_validator(mode="after")
    def _check_usage_source(self) -> Self:
        if self.prometheus is not None and self.usage is not None:
            raise _combination_error("--usage and --prometheus: must not be used together, found both. Leave one out")
        return self

    @property
    def manages_tls(self) -> bool:
        """True if the replicas issue their own certificates."""
        return self.managed_tls or self.tls_secret is not None

    @property
    def client_ca_folder(self) -> Path | None:
        """The folder of an optional ConfigMap, in a pod."""
        return CLIENT_CA_FOLDER if self.is_cluster_replica else None

    @property
    def uses_api_server(self) -> bool:
        """True if an API server is called."""
        return self.is_live or self.manages_tls

    @property
    def is_cluster_replica(self) -> bool:
        """True for a replica in a cluster, which takes part in leader election."""
        return self.manages_tls or (self.is_live and bool(os.environ.get("KUBERNETES_SERVICE_HOST")))

    @property
    def tls_server_names(self) -> tuple[str, ...]:
        """Names for the certificate."""
        named = tuple(name.strip() for name in self.tls_names.split(",") if name.strip())
        return named or (f"rightslice.{self.namespace}.svc",)

    @property
    def tls_secret_ref(self) -> tuple[str, str]:
        """Namespace and name of the Secret with the certificates."""
        namespace, _, name = (self.tls_secret or f"{self.namespace}/rightslice-tls").partition("/")
        return namespace, name


def load_settings(kind: type[AnySettings], **flags: object) -> AnySettings:
    """Load the settings of a server from flags (None if not given) and the environment.

    Raises:
        SettingsError: One of them is invalid.
    """
    try:
        return kind(**{name: value for name, value in flags.items() if value is not None})  # type: ignore[arg-type] # it validates
    except ValidationError as error:
        raise SettingsError("\n".join(map(_setting_message, error.errors(include_url=False)))) from error


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach an address."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _combination_error(message: str) -> PydanticCustomError:
    """Return an error about several flags, whose message is complete."""
    return PydanticCustomError(_COMBINATION, "{message}", {"message": message})


def _setting_message(error: ErrorDetails) -> str:
    kind, message = error["type"], error["msg"]
    if kind == _COMBINATION:
        return message
    flag = "--" + "-".join(map(str, error["loc"])).replace("_", "-") if error["loc"] else "flags"
    if kind == "string_pattern_mismatch":
        return f"{flag}: must be NAMESPACE/NAME, found {error['input']!r}"
    if kind == "value_error":
        return f"{flag}: {error['ctx']['error']}"
    must = re.sub(r"^(Input|String|Value) should ", "must ", message)
    if kind != "literal_error":  # which lists the choices
        must = must.partition(",")[0]
    return f"{flag}: {must}, found {error['input']!r}"
