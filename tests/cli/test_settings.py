"""Settings: messages for invalid flags."""

from __future__ import annotations

import pytest

from webhook.settings import SettingsError, WebhookSettings, load_settings

CASES = {
    "an unknown mode": ({"mode": "warn"}, "--mode: must be 'audit' or 'enforce', found 'warn'"),
    "text instead of a number": (
        {"max_connections": "many"},
        "--max-connections: must be a valid integer, found 'many'",
    ),
    "below the minimum": (
        {"max_in_flight": "0"},
        "--max-in-flight: must be greater than or equal to 1, found '0'",
    ),
    "an empty name": (
        {"webhook_configurations": ""},
        "--webhook-configurations: must have at least 1 character, found ''",
    ),
    "an address without a port": (
        {"listen": "localhost"},
        "--listen: must be ADDRESS:PORT, for example 127.0.0.1:8443 or [::]:8443, found 'localhost'",
    ),
    "a certificate without a key": (
        {"tls_cert": "a.pem"},
        "flags: must have --tls-cert and --tls-key, or --managed-tls, or --self-signed, found one of the two files",
    ),
}


@pytest.mark.parametrize(("flags", "sentence"), CASES.values(), ids=CASES)
def test_an_invalid_flag_has_a_message(flags: dict[str, str], sentence: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings(WebhookSettings, **{"policies": "policies", "cluster": "demo", **flags})
    assert str(caught.value) == sentence


@pytest.mark.parametrize(
    ("written", "want"), {"": [], "a": ["a"], "a:b/c.yaml": ["a", "b/c.yaml"], ":a:": ["a"]}.items()
)
def test_the_policies_variable_is_split_like_path(
    written: str, want: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RIGHTSLICE_POLICIES", written)
    settings = load_settings(WebhookSettings, cluster="live", self_signed=True)
    assert [str(path) for path in settings.policies] == want
