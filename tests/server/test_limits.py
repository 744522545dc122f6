"""Deadlines from a query, and settings from flags and environment."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from webhook.settings import CLUSTER_DRAIN_SECONDS, SettingsError, WebhookSettings, load_settings
from webhook.web.limits import request_deadline

DEADLINES = {
    "timeout=3s": 3.0,
    "timeout=1500ms": 1.5,
    "timeout=1m30s": 20.0,
    "timeout=0.5s": 0.5,
    "a=b&timeout=2s&c=d": 2.0,
    "timeout=100us": 0.0001,
    "timeout=999h": 20.0,
    "": 20.0,
    "timeout=": 20.0,
    "timeout=0s": 20.0,
    "timeout=-1s": 20.0,
    "timeout=3": 20.0,
    "timeout=3d": 20.0,
    "timeout=٣s": 20.0,
    "timeout=1e3s": 20.0,
    "timeout=inf": 20.0,
    "timeout= 3s": 20.0,
    "TIMEOUT=3s": 20.0,
    "timeout=" + "9" * 400 + "s": 20.0,
}


@pytest.mark.parametrize(("query", "seconds"), DEADLINES.items(), ids=DEADLINES)
def test_deadline(query: str, seconds: float) -> None:
    assert request_deadline(query, 20.0) == pytest.approx(seconds)


@given(st.text())
def test_a_deadline_is_positive_and_at_most_the_maximum(query: str) -> None:
    assert 0 < request_deadline(query, 5.0) <= 5.0


GIVEN = {"policies": "policies", "cluster": "demo", "self_signed": True}


def test_flags_come_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RIGHTSLICE_LISTEN", "0.0.0.0:9443")
    monkeypatch.setenv("RIGHTSLICE_DRAIN_SECONDS", "3")
    settings = load_settings(WebhookSettings, **GIVEN, listen="127.0.0.1:1", drain_seconds=None)
    assert (settings.host, settings.port, settings.drain_period) == ("127.0.0.1", 1, 3.0)
    assert load_settings(WebhookSettings, **GIVEN).listen == "0.0.0.0:9443"


def test_only_a_loopback_server_stops_without_draining() -> None:
    assert load_settings(WebhookSettings, **GIVEN).drain_period == 0.0
    assert load_settings(WebhookSettings, **GIVEN, listen="[::1]:8443").drain_period == 0.0
    assert load_settings(WebhookSettings, **GIVEN, listen="localhost:8443").drain_period == 0.0
    assert load_settings(WebhookSettings, **GIVEN, listen="0.0.0.0:8443").drain_period == CLUSTER_DRAIN_SECONDS
    assert load_settings(WebhookSettings, **GIVEN, listen="webhook.example:8443").drain_period == CLUSTER_DRAIN_SECONDS


def test_an_ipv6_address_loses_its_brackets() -> None:
    assert load_settings(WebhookSettings, **GIVEN, listen="[::]:8443").host == "::"


def test_a_client_s_name_needs_an_authority() -> None:
    with pytest.raises(SettingsError, match="--client-name: must be used with --client-ca"):
        load_settings(WebhookSettings, **GIVEN, client_name="kube-apiserver")
    settings = load_settings(WebhookSettings, **GIVEN, client_name="kube-apiserver", client_ca="ca.pem")
    assert settings.client_name == "kube-apiserver"


WRONG = {
    "listen": "8443",
    "drain_seconds": -1,
    "log_level": "loud",
    "max_connections": 0,
    "max_in_flight": "many",
}


@pytest.mark.parametrize(("name", "value"), WRONG.items(), ids=WRONG)
def test_a_wrong_setting_is_named_as_its_flag(name: str, value: object) -> None:
    with pytest.raises(SettingsError, match=f"^--{name.replace('_', '-')}: "):
        load_settings(WebhookSettings, **{**GIVEN, name: value})
