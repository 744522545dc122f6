"""Records of each decision: audit annotations, metrics, logs and Events for owners, without secrets."""

from __future__ import annotations

import json

from tests.builders import make_pod
from tests.cluster.client import Json
from tests.cluster.end_to_end.test_controllers import SELECTOR, workload
from tests.cluster.end_to_end.test_pods import notebook
from tests.cluster.installation import Installation
from tests.cluster.polling import eventually

SECRET = "correct-horse-battery-staple"


def audit_annotations(site: Installation, team: str, name: str) -> dict[str, str]:
    """Return our annotations in the API server's audit log for the create of a pod."""

    def found() -> list[Json]:
        events = map(json.loads, site.plane.audit_log.read_text(encoding="utf-8").splitlines())
        refs = [(event, event.get("objectRef", {})) for event in events]
        return [event for event, ref in refs if (ref.get("namespace"), ref.get("name")) == (team, name)]

    [event] = eventually(found)
    return {key: value for key, value in event["annotations"].items() if "rightslice.dev/" in key}


def privileged(team: str) -> Json:
    """Return a GPU pod that is rejected and contains a secret."""
    pod = make_pod("greedy").namespace(team).gpus(1).env("PASSWORD", SECRET)
    pod.main["securityContext"] = {"privileged": True}
    return pod.build()


def test_the_audit_log_names_policies_and_findings(site: Installation, team: str) -> None:
    site.plane.kubectl("create", "-f", "-", stdin=json.dumps(notebook("sized", team)))
    site.plane.kubectl("create", "-f", "-", stdin=json.dumps(privileged(team)), check=False)

    sized, refused = audit_annotations(site, team, "sized"), audit_annotations(site, team, "greedy")
    assert int(sized["mutate.rightslice.dev/patched"]) > 0
    assert "right-sizing" in sized["mutate.rightslice.dev/policies"].split(",")
    assert "GPU-S201=enforce" in refused["validate.rightslice.dev/codes"].split(",")


def test_metrics_count_each_verdict_and_finding(quiet_site: Installation, team: str) -> None:
    site = quiet_site

    def metric_totals() -> list[float]:
        return [
            sum(site.metric_values(name))
            for name in (
                'admission_requests_total\\{operation="CREATE",result="denied",route="validate"\\}',
                'admission_requests_total\\{operation="CREATE",result="patched",route="mutate"\\}',
                'admission_duration_seconds_count\\{route="validate"\\}',
                'findings_total\\{code="GPU-S201",mode="enforce"\\}',
                'policy_denials_total\\{policy="guard"\\}',
            )
        ]

    before = metric_totals()
    site.plane.kubectl("create", "-f", "-", stdin=json.dumps(notebook("sized", team)))
    site.plane.kubectl("create", "-f", "-", stdin=json.dumps(privileged(team)), check=False)

    assert [later - earlier for later, earlier in zip(metric_totals(), before, strict=True)] == [1, 2, 2, 1, 1]
    eventually(lambda: 0 <= site.metric_values("cluster_view_age_seconds")[0] < 30)
    assert site.metric_values("certificate_expiration_timestamp_seconds")[0] > 0
    assert site.metric_values('policy_loads_total\\{result="success"\\}')[0] >= 1


def test_a_denial_is_one_log_line_without_secrets(site: Installation, team: str) -> None:
    site.plane.kubectl("create", "-f", "-", stdin=json.dumps(privileged(team)), check=False)
    site.plane.kubectl("create", "-f", "-", stdin=json.dumps(notebook("sized", team)))

    entries = eventually(
        lambda: [line for line in site.log_entries() if line.get("namespace") == team],
        until=lambda lines: len(lines) >= 4,
    )
    [denied] = [line for line in entries if line["event"] == "request denied"]
    assert (denied["level"], denied["name"], denied["codes"]) == ("info", "greedy", ["GPU-S201"])
    assert denied["policies"]
    others = [(line["level"], line["name"], line["result"]) for line in entries if line["event"] == "request evaluated"]
    assert others == [("debug", "greedy", "patched"), ("debug", "sized", "patched"), ("debug", "sized", "allowed")]
    text = site.replica.log.read_text(encoding="utf-8")
    assert SECRET not in text
    assert site.plane.token not in text


def test_the_owner_of_rejected_pods_gets_one_event(site: Installation, team: str) -> None:
    owner = workload("ReplicaSet", team, replicas=3, selector=SELECTOR)
    owner["spec"]["template"]["spec"]["containers"][0]["securityContext"] = {"privileged": True}

    site.plane.kubectl("apply", "-f", "-", stdin=json.dumps(owner))

    path = f"/api/v1/namespaces/{team}/events"

    def our_events() -> list[Json]:
        events = site.plane.api.get(path)["items"]
        return [event for event in events if event["source"].get("component") == "rightslice"]

    event, *_ = eventually(our_events)
    denials = eventually(
        lambda: [
            line for line in site.log_entries() if line.get("namespace") == team and line["event"] == "request denied"
        ],
        until=lambda lines: len(lines) >= 3,
    )
    assert denials
    assert event["involvedObject"]["kind"] == "ReplicaSet"
    assert (event["reason"], event["type"], event["count"]) == ("GPU-S201", "Warning", 1)
    assert "privileged must be false" in event["message"]
    assert len(our_events()) <= len({line["timestamp"][:13] for line in denials}), "one an hour"
