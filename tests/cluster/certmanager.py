"""A stub of cert-manager that processes only the objects of the overlay.

cert-manager itself does not run here. Secrets have its format; certificates are signed as by its `ca` issuer.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.cluster.client import Json
from tests.cluster.plane import Plane
from webhook.certs.issuer import issue_serving_certificate, load_signer
from webhook.manifests.objects import api_path

INJECTED = "cert-manager.io/inject-ca-from"


class CertManagerStub:
    """Issues certificates and injects CA bundles as the objects of an overlay request."""

    def __init__(self, plane: Plane, objects: Sequence[Json]) -> None:
        self._plane = plane
        self._certificates = {_key(item): item for item in objects if item["kind"] == "Certificate"}
        self._issuers: dict[str, Json] = {_key(item): item["spec"] for item in objects if item["kind"] == "Issuer"}
        self._webhook_paths = [api_path(item) for item in objects if item["kind"].endswith("WebhookConfiguration")]

    def issue(self, name: str) -> None:
        """Issue or renew a Certificate into its Secret."""
        certificate = self._certificates[name]
        if "selfSigned" in self._issuer_of(certificate):
            self._write(certificate, *self._self_signed(certificate))
        else:
            self._write(certificate, *self._signed(certificate))

    def inject(self) -> None:
        """Write the CA of the annotated Certificate's Secret into each webhook configuration."""
        for path in self._webhook_paths:
            configuration = self._plane.api.get(path)
            certificate = self._certificates[configuration["metadata"]["annotations"][INJECTED]]
            bundle = self._secret(certificate)["ca.crt"]
            changes = [
                {"op": "add", "path": f"/webhooks/{index}/clientConfig/caBundle", "value": bundle}
                for index in range(len(configuration["webhooks"]))
            ]
            self._plane.api.patch(path, changes, "json")

    def bundle(self, name: str) -> bytes:
        """Return the CA of a Certificate's Secret, PEM."""
        return b64decode(self._secret(self._certificates[name])["ca.crt"])

    def _issuer_of(self, certificate: Json) -> Json:
        issuer: Json = self._issuers[
            f"{certificate['metadata']['namespace']}/{certificate['spec']['issuerRef']['name']}"
        ]
        return issuer

    def _self_signed(self, certificate: Json) -> tuple[bytes, bytes, bytes]:
        """Return a self-signed certificate, its key and CA. The rotation policy decides if the key is kept."""
        spec = certificate["spec"]
        keep_key = spec["privateKey"]["rotationPolicy"] == "Never" and self._plane.api.exists(_secret_path(certificate))
        key = b64decode(self._secret(certificate)["tls.key"]) if keep_key else _new_key()
        pem = authority_pem(spec["commonName"], key)
        return pem, key, pem

    def _signed(self, certificate: Json) -> tuple[bytes, bytes, bytes]:
        ca_secret = self._issuer_of(certificate)["ca"]["secretName"]
        [authority] = [item for item in self._certificates.values() if item["spec"]["secretName"] == ca_secret]
        assert authority["spec"]["isCA"]
        secret = self._secret(authority)
        signer = load_signer(b64decode(secret["tls.crt"]), b64decode(secret["tls.key"]))
        now = datetime.now(UTC)
        hours = int(certificate["spec"]["duration"].removesuffix("h"))
        pem, key = issue_serving_certificate(signer, certificate["spec"]["dnsNames"], now, now + timedelta(hours=hours))
        return pem, key, b64decode(secret["tls.crt"])

    def _secret(self, certificate: Json) -> dict[str, str]:
        data: dict[str, str] = self._plane.api.get(_secret_path(certificate))["data"]
        return data

    def _write(self, certificate: Json, pem: bytes, key: bytes, authority: bytes) -> None:
        data = {"tls.crt": pem, "tls.key": key, "ca.crt": authority}
        path = _secret_path(certificate)
        body = {
            "metadata": {
                "name": certificate["spec"]["secretName"],
                "labels": {"controller.cert-manager.io/fao": "true"},
                "annotations": {"cert-manager.io/certificate-name": certificate["metadata"]["name"]},
            },
            "type": "kubernetes.io/tls",
            "data": {name: b64encode(value).decode() for name, value in data.items()},
        }
        if self._plane.api.exists(path):
            self._plane.api.replace(path, body)
        else:
            self._plane.api.create(path.rpartition("/")[0], body)


class MountedSecret:
    """A Secret as kubelet mounts it: a new version appears atomically, some time after the Secret changed."""

    def __init__(self, plane: Plane, path: str, folder: Path) -> None:
        self._plane, self._path, self._folder = plane, path, folder
        self._versions = 0
        folder.mkdir()
        for name in self.sync():
            (folder / name).symlink_to(f"..data/{name}")

    def sync(self) -> list[str]:
        """Update the mounted files from the Secret."""
        self._versions += 1
        version = self._folder / f"..version_{self._versions}"
        version.mkdir()
        data = self._plane.api.get(self._path)["data"]
        for name, value in data.items():
            (version / name).write_bytes(b64decode(value))
        (self._folder / "..data_tmp").symlink_to(version.name)
        (self._folder / "..data_tmp").rename(self._folder / "..data")
        return list(data)


def authority_pem(name: str, key: bytes) -> bytes:
    """Return a self-signed CA certificate for a key, PEM, as cert-manager's `selfSigned` issuer creates it."""
    private = serialization.load_pem_private_key(key, password=None)
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    usage = x509.KeyUsage(
        digital_signature=True, key_encipherment=True, key_cert_sign=True, content_commitment=False,
        data_encipherment=False, key_agreement=False, crl_sign=False, encipher_only=False, decipher_only=False,
    )  # fmt: skip
    certificate = (
        x509.CertificateBuilder(subject, subject, private.public_key(), x509.random_serial_number())
        .not_valid_before(now)
        .not_valid_after(now + timedelta(days=1825))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(private.public_key()), critical=False)
        .sign(private, hashes.SHA256())
    )
    return certificate.public_bytes(serialization.Encoding.PEM)


def _new_key() -> bytes:
    key = ec.generate_private_key(ec.SECP256R1())
    form = serialization.PrivateFormat.TraditionalOpenSSL
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())


def _key(item: Json) -> str:
    return f"{item['metadata']['namespace']}/{item['metadata']['name']}"


def _secret_path(certificate: Json) -> str:
    return f"/api/v1/namespaces/{certificate['metadata']['namespace']}/secrets/{certificate['spec']['secretName']}"
