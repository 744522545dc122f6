"""Keys, certificates, an admin token and the kubeconfig of a plane, created for each run."""

from __future__ import annotations

import base64
import json
import secrets
from dataclasses import dataclass
from pathlib import Path

import trustme


@dataclass(frozen=True, slots=True)
class Credentials:
    """Files for the programs of a plane, and the token of its admin."""

    ca: Path
    certificate: Path
    key: Path
    signing_key: Path
    tokens: Path
    kubeconfig: Path
    token: str


def make_credentials(folder: Path, url: str) -> Credentials:
    """Write all credentials into a folder that only the current user can read."""
    folder.mkdir(mode=0o700, parents=True)
    token = secrets.token_hex(16)
    credentials = Credentials(
        ca=folder / "ca.crt",
        certificate=folder / "server.crt",
        key=folder / "server.key",
        signing_key=folder / "accounts.key",
        tokens=folder / "tokens.csv",
        kubeconfig=folder / "kubeconfig",
        token=token,
    )
    authority = trustme.CA(organization_name="control plane of the tests")
    server = authority.issue_cert("127.0.0.1", "localhost", "kubernetes.default.svc")
    authority.cert_pem.write_to_path(credentials.ca)
    for blob in server.cert_chain_pems:
        blob.write_to_path(credentials.certificate, append=True)
    server.private_key_pem.write_to_path(credentials.key)
    authority.issue_cert("accounts.test").private_key_pem.write_to_path(credentials.signing_key)
    credentials.tokens.write_text(f'{token},admin,admin,"system:masters"\n', encoding="utf-8")
    credentials.kubeconfig.write_text(kubeconfig(url, credentials.ca, token), encoding="utf-8")
    return credentials


def kubeconfig(url: str, ca: Path, token: str) -> str:
    """Return a kubeconfig as JSON, which every YAML parser reads."""
    authority = base64.b64encode(ca.read_bytes()).decode()
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "plane",
            "clusters": [{"name": "plane", "cluster": {"server": url, "certificate-authority-data": authority}}],
            "users": [{"name": "admin", "user": {"token": token}}],
            "contexts": [{"name": "plane", "context": {"cluster": "plane", "user": "admin"}}],
        },
        indent=2,
    )
