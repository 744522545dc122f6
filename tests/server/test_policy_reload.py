"""Policies and certificates that change on disk while the server runs."""

from __future__ import annotations

import io
import shutil
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.server.site import (
    NOW,
    PAIR,
    POLICY,
    Site,
    encoded,
    http,
    nothing,
    policies,
    post,
    review,
    serve_site,
)
from webhook.cache.snapshot import view_of_objects
from webhook.certs.issuer import create_self_signed
from webhook.model.admission import AdmissionRequest
from webhook.model.decisions import Decision
from webhook.model.usage import UsageView
from webhook.policy.loader import load_policies
from webhook.policy.policy_set import PolicySet
from webhook.server.admission_state import AdmissionState, Decide, PolicyLoadStatus
from webhook.server.handlers import AdmissionServer
from webhook.server.policy_reload import PolicyReloader, read_policies
from webhook.server.policy_sources import NoPoliciesError, PolicyFiles
from webhook.telemetry.logs import make_logger
from webhook.telemetry.metrics import RESULTS
from webhook.telemetry.telemetry import Telemetry
from webhook.web.listener import Poll
from webhook.web.tls import CertificateFiles, CertificateReloader, PemPair, ServerTls

GOOD = encoded(review())


def names(site: Site) -> list[str]:
    return [policy.name for policy in site.server.state.policies.policies]


def ready_page(site: Site) -> str:
    answer = site.send_request(http("GET", "/readyz?verbose"))
    assert answer.status == 200
    return answer.body.decode()


@contextmanager
def serve_watched_paths(*paths: Path, decide: Decide = nothing) -> Iterator[Site]:
    """Run a server with the policies at these paths."""
    files = PolicyFiles(paths)

    def make_polls(state: AdmissionState, telemetry: Telemetry) -> list[Poll]:
        return [PolicyReloader(files, load_policies, state, lambda: NOW, telemetry).reload_if_changed]

    state = AdmissionState(read_policies(files, load_policies), view_of_objects(()), UsageView(), PolicyLoadStatus(NOW))
    with serve_site(decide, state=state, make_polls=make_polls) as site:
        yield site


def decide_by_digest(_request: AdmissionRequest, policies: PolicySet, *_: object) -> Decision:
    """Return a decision that names the set it was made with."""
    return Decision(policies=(policies.digest,))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with one policy."""
    (tmp_path / "first.yaml").write_text(POLICY.format(name="first"))
    return tmp_path


def test_a_changed_file_is_loaded(folder: Path) -> None:
    with serve_watched_paths(folder) as site:
        before = site.server.state.policies.digest
        (folder / "first.yaml").write_text(POLICY.format(name="renamed"))
        site.until(lambda: names(site) == ["renamed"])
        (folder / "second.yml").write_text(POLICY.format(name="second"))
        site.until(lambda: names(site) == ["renamed", "second"])
        answer = site.evaluate(GOOD)
        assert answer.status == 200
        assert site.server.state.policies.digest != before
        assert site.server.state.policies.digest in ready_page(site)


def test_every_review_during_reloads_is_answered_by_one_of_the_sets(folder: Path) -> None:
    with serve_watched_paths(folder, decide=decide_by_digest) as site:
        connection, digests, answered = site.connect(), set[str](), 0
        for reload in range(20):
            (folder / "first.yaml").write_text(POLICY.format(name=f"version-{reload}"))
            while names(site) != [f"version-{reload}"]:
                possible = {site.server.state.policies.digest}
                connection.send(post("/validate", GOOD))
                answer = connection.read()
                possible.add(site.server.state.policies.digest)
                assert answer is not None
                assert answer.status == 200
                notes = answer.response["auditAnnotations"]
                assert notes["policies"] == notes["digest"]
                assert notes["digest"] in possible
                answered += 1
            digests.add(site.server.state.policies.digest)
        assert len(digests) == 20
        assert answered >= 20


def test_each_of_several_paths_is_read_and_watched(folder: Path) -> None:
    subfolder, single_file = folder / "more", folder / "alone.txt"
    subfolder.mkdir()
    (subfolder / "second.yaml").write_text(POLICY.format(name="second"))
    single_file.write_text(POLICY.format(name="third"))
    with serve_watched_paths(folder / "first.yaml", subfolder, single_file) as site:
        assert names(site) == ["first", "second", "third"]
        (folder / "first.yaml").write_text(POLICY.format(name="changed"))
        site.until(lambda: names(site) == ["changed", "second", "third"])
        single_file.write_text(POLICY.format(name="other"))
        site.until(lambda: names(site) == ["changed", "other", "second"])
        (subfolder / "second.yaml").unlink()
        site.until(lambda: f"{subfolder}: must hold policy files" in ready_page(site))
        assert names(site) == ["changed", "other", "second"], "the last valid set is in use"


def test_a_replaced_config_map_is_loaded(tmp_path: Path) -> None:
    """Replace a ConfigMap as the kubelet does: a new version, then one rename of the `..data` symlink."""
    _version(tmp_path, "..2026_1", "first")
    (tmp_path / "policy.yaml").symlink_to("..data/policy.yaml")
    with serve_watched_paths(tmp_path) as site:
        assert names(site) == ["first"]
        _version(tmp_path, "..2026_2", "second")
        shutil.rmtree(tmp_path / "..2026_1")
        site.until(lambda: names(site) == ["second"])
        assert site.server.state.policy_load.errors == ()


def _version(folder: Path, name: str, policy: str) -> None:
    (folder / name).mkdir()
    (folder / name / "policy.yaml").write_text(POLICY.format(name=policy))
    (folder / "..data_tmp").symlink_to(name)
    (folder / "..data_tmp").rename(folder / "..data")


def write_invalid_policy(folder: Path) -> None:
    (folder / "first.yaml").write_text("apiVersion: rightslice.dev/v1alpha1\nkind: GPUPolicy\nspec: {mode: Enforce}\n")


def delete_file(folder: Path) -> None:
    (folder / "first.yaml").unlink()


def delete_folder(folder: Path) -> None:
    shutil.rmtree(folder)


def empty_file(folder: Path) -> None:
    (folder / "first.yaml").write_text("")


def write_invalid_utf8(folder: Path) -> None:
    (folder / "first.yaml").write_bytes(b"\xff\xfe")


@pytest.mark.parametrize(
    "damage",
    [write_invalid_policy, delete_file, delete_folder, empty_file, write_invalid_utf8],
    ids=lambda it: it.__name__,
)
def test_invalid_files_keep_the_last_valid_set(folder: Path, damage: object) -> None:
    with serve_watched_paths(folder) as site:
        digest = site.server.state.policies.digest
        assert callable(damage)
        damage(folder)
        site.until(lambda: bool(site.server.state.policy_load.errors))
        assert names(site) == ["first"]
        assert site.evaluate(GOOD).status == 200
        assert "[-]policy files" in ready_page(site)
        assert f"digest {digest}" in ready_page(site)
        assert site.metric("rightslice_policies_last_load_successful") == 0
        assert site.metric("rightslice_policy_loads_total", result="error") == 1
        assert "keeping the last valid ones" in site.log.getvalue()
        folder.mkdir(exist_ok=True)
        (folder / "first.yaml").write_text(POLICY.format(name="repaired"))
        site.until(lambda: names(site) == ["repaired"])
        assert "[+]policy files" in ready_page(site)
        assert site.metric("rightslice_policies_last_load_successful") == 1


class Objects:
    """The policy objects of a cluster."""

    def __init__(self) -> None:
        self.version = 0
        self.stored: dict[str, str] = {}
        self.halted: set[str] = set()

    def set(self, name: str, text: str | None) -> None:
        if text is None:
            del self.stored[name]
        else:
            self.stored[name] = text
        self.version += 1

    def halted_names(self) -> list[str]:
        return sorted(self.halted)

    def texts(self) -> list[tuple[str, str]]:
        return sorted(self.stored.items())


@contextmanager
def serve_with_objects(path: Path | None, objects: Objects) -> Iterator[Site]:
    """Run a server with policies from files and objects."""
    files = PolicyFiles((path,)) if path is not None else None

    def make_polls(state: AdmissionState, telemetry: Telemetry) -> list[Poll]:
        return [PolicyReloader(files, load_policies, state, lambda: NOW, telemetry, objects).reload_if_changed]

    policies = read_policies(files, load_policies) if files is not None else PolicySet()
    state = AdmissionState(policies, view_of_objects(()), UsageView(), PolicyLoadStatus(NOW if path else None))
    with serve_site(nothing, state=state, make_polls=make_polls) as site:
        yield site


def test_objects_are_added_and_removed_next_to_files(folder: Path) -> None:
    objects = Objects()
    with serve_with_objects(folder, objects) as site:
        objects.set("GPUPolicy/o", POLICY.format(name="o"))
        site.until(lambda: names(site) == ["first", "o"])
        (folder / "first.yaml").write_text(POLICY.format(name="second"))
        site.until(lambda: names(site) == ["o", "second"])
        objects.set("GPUPolicy/o", None)
        site.until(lambda: names(site) == ["second"])
        assert site.metric("rightslice_policies_last_load_successful") == 1


def test_an_invalid_object_is_reported_and_changes_nothing(folder: Path) -> None:
    objects = Objects()
    with serve_with_objects(folder, objects) as site:
        objects.set("GPUPolicy/o", POLICY.format(name="o"))
        site.until(lambda: names(site) == ["first", "o"])
        objects.set("GPUPolicy/o", "kind: GPUPolicy\n")
        site.until(lambda: bool(site.server.state.policy_load.errors))
        assert names(site) == ["first", "o"]
        assert "GPUPolicy/o" in ready_page(site)
        assert site.metric("rightslice_policies_last_load_successful") == 0
        shutil.rmtree(folder)
        objects.set("GPUPolicy/p", POLICY.format(name="p"))
        site.until(lambda: names(site) == ["first", "o", "p"])
        objects.set("GPUPolicy/o", POLICY.format(name="o"))
        site.until(lambda: any("must be a folder" in error for error in site.server.state.policy_load.errors))


def test_deleting_the_last_policy_does_not_allow_everything() -> None:
    objects = Objects()
    with serve_with_objects(None, objects) as site:
        objects.set("GPUPolicy/o", POLICY.format(name="o"))
        site.until(lambda: names(site) == ["o"])
        objects.set("GPUPolicy/o", None)
        site.until(lambda: bool(site.server.state.policy_load.errors))
        assert names(site) == ["o"]
        assert "at least one GPUPolicy" in ready_page(site)


ROLLED = POLICY.format(name="o").replace("spec: {", "spec: {mode: enforce, rollout: {percent: 100}, ")


def test_a_policy_with_a_halted_rollout_is_in_audit_mode() -> None:
    objects = Objects()
    with serve_with_objects(None, objects) as site:

        def modes() -> list[str]:
            return [str(policy.mode) for policy in site.server.state.policies.policies]

        objects.set("GPUPolicy/o", ROLLED)
        site.until(lambda: modes() == ["enforce"])
        assert site.metric("rightslice_rollout_halted", policy="o") == 0
        objects.halted.add("GPUPolicy/o")
        objects.set("GPUPolicy/o", ROLLED)
        site.until(lambda: modes() == ["audit"])
        assert site.metric("rightslice_rollout_halted", policy="o") == 1
        objects.halted.clear()
        objects.set("GPUPolicy/o", ROLLED)
        site.until(lambda: modes() == ["enforce"])


BAD = "kind: GPUPolicy\n"


async def test_an_invalid_change_neither_resumes_nor_protects_a_rollout() -> None:
    """The last valid version of the policy stays active."""
    objects, state = Objects(), AdmissionState(PolicySet(), view_of_objects(()), UsageView(), PolicyLoadStatus(None))
    reloader = PolicyReloader(
        None, load_policies, state, lambda: NOW, Telemetry(make_logger("info", io.StringIO())), objects
    )

    async def mode(text: str, *, halted: bool) -> str:
        objects.halted = {"GPUPolicy/o"} if halted else set()
        objects.set("GPUPolicy/o", text)
        await reloader.reload_if_changed()
        [policy] = state.policies.policies
        return str(policy.mode)

    assert await mode(ROLLED, halted=True) == "audit"
    assert await mode(BAD, halted=False) == "audit"
    assert await mode(BAD * 2, halted=False) == "audit"
    assert await mode(ROLLED, halted=False) == "enforce"
    assert await mode(BAD, halted=False) == "enforce"
    assert await mode(BAD, halted=True) == "audit"


FIRST: dict[str, tuple[dict[str, str], int]] = {
    "no policy was ever written": ({}, 200),
    "no policy, and an invalid exception": ({"GPUPolicyException/ours/e": BAD}, 200),
    "only invalid policies": ({"GPUPolicy/o": BAD}, 503),
    "a valid and an invalid policy": ({"GPUPolicy/a": POLICY.format(name="a"), "GPUPolicy/o": BAD}, 200),
}


@pytest.mark.parametrize(("stored", "status"), FIRST.values(), ids=FIRST)
def test_a_new_process_accepts_an_empty_set_only_without_objects(stored: dict[str, str], status: int) -> None:
    objects = Objects()
    objects.stored = stored
    with serve_with_objects(None, objects) as site:
        site.until(lambda: max(site.metric("rightslice_policy_loads_total", result=each) for each in RESULTS) > 0)
        assert site.send_request(http("GET", "/readyz")).status == status
        assert site.evaluate(GOOD).status == status
        if status == 503:
            assert "[-]policies not loaded yet" in site.send_request(http("GET", "/readyz?verbose")).body.decode()
            assert site.metric("rightslice_active_policies") == 0
            objects.set("GPUPolicy/o", POLICY.format(name="o"))
            site.until(lambda: site.evaluate(GOOD).status == 200)
            assert site.metric("rightslice_active_policies") == 1


def test_policy_tests_next_to_policies_are_skipped(folder: Path) -> None:
    (folder / "tests").mkdir()
    (folder / "tests" / "first.yaml").write_text(
        "apiVersion: rightslice.dev/v1alpha1\nkind: GPUPolicyTest\nmetadata: {name: first}\npolicies: []\ncases: []\n"
    )
    assert [policy.name for policy in read_policies(PolicyFiles((folder,)), load_policies).policies] == ["first"]


def test_one_file_may_be_named(folder: Path) -> None:
    assert len(read_policies(PolicyFiles((folder / "first.yaml",)), load_policies).policies) == 1


def test_a_missing_folder_is_reported(tmp_path: Path) -> None:
    with pytest.raises(NoPoliciesError, match="must be a folder or file of policies"):
        read_policies(PolicyFiles((tmp_path / "nowhere",)), load_policies)


def test_an_exception_in_loading_is_recorded_and_reloading_continues(folder: Path) -> None:
    calls: list[int] = []

    def failing_load(_sources: object) -> object:
        calls.append(1)
        raise ZeroDivisionError

    def make_polls(state: AdmissionState, telemetry: Telemetry) -> list[Poll]:
        return [PolicyReloader(PolicyFiles((folder,)), failing_load, state, lambda: NOW, telemetry).reload_if_changed]  # type: ignore[arg-type] # it fails

    with serve_site(make_polls=make_polls) as site:
        for count in (1, 2):
            (folder / f"{count}.yaml").write_text("")
            site.until(lambda count=count: len(calls) == count)  # type: ignore[misc] # bound for this iteration
        assert [policy.name for policy in site.server.state.policies.policies] == [policies().policies[0].name]
        assert site.metric("rightslice_internal_errors_total", component="policies") == 2


def test_an_exception_in_the_objects_is_recorded_and_reloading_continues() -> None:
    class Odd(Objects):
        def texts(self) -> list[tuple[str, str]]:
            if self.version == 1:
                raise ZeroDivisionError
            return super().texts()

    objects = Odd()
    with serve_with_objects(None, objects) as site:
        objects.set("GPUPolicy/o", POLICY.format(name="o"))
        site.until(lambda: site.metric("rightslice_internal_errors_total", component="policies") == 1)
        objects.set("GPUPolicy/p", POLICY.format(name="p"))
        site.until(lambda: names(site) == ["o", "p"])


@contextmanager
def serve_with_certificate(folder: Path) -> Iterator[tuple[Site, CertificateFiles]]:
    """Run a server with certificate files."""
    files = CertificateFiles(*PAIR.write(folder))
    tls = ServerTls(files.read())

    def reloader(server: AdmissionServer) -> None:
        certificate = CertificateReloader(files, tls, server.telemetry)
        server.polls, server.health_checks = [certificate.reload_if_changed], [certificate.checks]

    with serve_site(nothing, tls=tls, prepare=reloader) as site:
        yield site, files


def served_certificate(site: Site) -> str:
    """Return the certificate that a new client gets."""
    return ssl.get_server_certificate(("127.0.0.1", site.port))


def test_a_new_certificate_is_served_and_open_connections_stay(tmp_path: Path) -> None:
    with serve_with_certificate(tmp_path) as (site, _):
        connection = site.connect()
        before = served_certificate(site)
        create_self_signed(["127.0.0.1"], datetime.now(UTC)).write(tmp_path)
        site.until(lambda: served_certificate(site) != before)
        connection.send(post("/validate", GOOD))
        assert (connection.read() or (0,))[0] == 200
        assert "certificate loaded" in site.log.getvalue()


def truncate_certificate(files: CertificateFiles) -> None:
    files.certificate.write_bytes(files.certificate.read_bytes()[:100])


def replace_key(files: CertificateFiles) -> None:
    files.key.write_bytes(create_self_signed(["a"], datetime.now(UTC)).key)


def delete_key(files: CertificateFiles) -> None:
    files.key.unlink()


@pytest.mark.parametrize("damage", [truncate_certificate, replace_key, delete_key], ids=lambda it: it.__name__)
def test_invalid_files_keep_the_last_certificate(tmp_path: Path, damage: object) -> None:
    with serve_with_certificate(tmp_path) as (site, files):
        before = served_certificate(site)
        assert callable(damage)
        damage(files)
        site.until(lambda: "keeping the last valid one" in site.log.getvalue())
        assert served_certificate(site) == before
        assert "[-]certificate files not in use: " in ready_page(site)
        assert site.evaluate(GOOD).status == 200
        connection = site.connect()
        create_self_signed(["127.0.0.1"], datetime.now(UTC)).write(tmp_path)
        site.until(lambda: served_certificate(site) != before)
        connection.send(http("GET", "/readyz?verbose"))
        page = connection.read()
        assert page is not None
        assert b"[+]certificate files in use" in page.body


def test_old_protocols_are_rejected() -> None:
    with serve_site() as site:
        old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        old.check_hostname = False
        old.verify_mode = ssl.CERT_NONE
        old.set_ciphers("AES128-SHA256:AES256-GCM-SHA384:@SECLEVEL=0")
        old.maximum_version = ssl.TLSVersion.TLSv1_2
        with socket.create_connection(("127.0.0.1", site.port)) as plain, pytest.raises(ssl.SSLError):
            old.wrap_socket(plain)


def test_negotiated_tls_is_modern() -> None:
    with serve_site() as site:
        connection = site.connect()
        assert connection.socket.version() == "TLSv1.3"
        tls = ServerTls(PemPair(PAIR.certificate, PAIR.key))
        assert tls.context.minimum_version is ssl.TLSVersion.TLSv1_2
        assert all("GCM" in cipher["name"] or "CHACHA20" in cipher["name"] for cipher in tls.context.get_ciphers())


def test_plain_http_gets_no_response() -> None:
    with serve_site() as site, socket.create_connection(("127.0.0.1", site.port)) as plain:
        plain.settimeout(8)
        plain.sendall(http("GET", "/healthz"))
        assert b"HTTP/1.1" not in plain.recv(4096)
