"""Claims, pods and device quotas: our answer equals a real API server's."""

from __future__ import annotations

import json
import os
import re
import secrets
from pathlib import Path
from random import Random

from tests.builders import make_pod
from tests.cluster.dryrun import open_dry_run_client
from tests.cluster.plane import Plane
from tests.cluster.polling import eventually
from tests.cluster.predicted_outcomes import matches_answer, parse_quotas, predict_outcomes
from tests.cluster.random_claims import (
    API,
    claim_spec,
    create_device_classes,
    describe_difference,
    dry_run_claims,
    random_claim,
    random_pod,
    random_quota,
)
from tests.cluster.random_objects import usage
from tests.cluster.test_commands import rightslice
from tests.policy.policy_texts import policy_text

CLAIMS, PODS = 15, 5
NAMESPACES = max(20, int(os.environ.get("RIGHTSLICE_FUZZ", "0")) // 2500)
"""6,000 claims and 2,000 pods for a million quantities."""

SEED = os.environ.get("RIGHTSLICE_FUZZ_SEED", "claims")


async def test_claim_charges_and_messages_equal_the_api_servers(plane: Plane) -> None:
    random, run, differences = Random(SEED), secrets.token_hex(3), list[str]()
    statuses, pod_statuses = list[int](), list[int]()
    async with open_dry_run_client(plane.url, plane.ca, plane.token) as client:
        await client.create_marker_namespace(f"marker-{run}")
        await create_device_classes(client, f"marker-{run}")
        quotas_by_namespace = {}
        for name in (f"claims-{run}-{n}" for n in range(NAMESPACES)):
            await client.add_namespace(name)
            path = f"/api/v1/namespaces/{name}/resourcequotas"
            answers = [
                await client.send("POST", path, random_quota(random, f"quota-{n}"))
                for n in range(random.choice((1, 2)))
            ]
            quotas_by_namespace[name] = await client.wait_for_quota_status(
                name, sum(answer.status == 201 for answer in answers)
            )
            for item in quotas_by_namespace[name]:
                change = {"status": {"used": usage(random, item["status"].get("used", {}))}}
                item |= (await client.send("PATCH", f"{path}/{item['metadata']['name']}/status", change)).body
        await client.wait_for_admission_caches()
        for name, quotas in quotas_by_namespace.items():
            claims = [random_claim(random, f"claim-{n}") for n in range(CLAIMS)]
            for data, answer in zip(claims, await dry_run_claims(client, name, claims), strict=True):
                statuses.append(answer.status)
                differences += filter(None, [describe_difference(data, quotas, answer)])
            pods = [random_pod(random, f"pod-{n}") for n in range(PODS)]
            for data, answer in zip(pods, await client.dry_run_pods(name, pods), strict=True):
                pod_statuses.append(answer.status)
                if not any(matches_answer(each, answer) for each in predict_outcomes(data, (), parse_quotas(quotas))):
                    differences.append(f"\n{quotas}\n{data['spec']}\nAPI server: {answer}\n")
            await client.send("DELETE", f"/api/v1/namespaces/{name}")

    assert differences[:3] == []
    assert min(statuses.count(201), statuses.count(403)) > 20, statuses
    assert min(pod_statuses.count(201), pod_statuses.count(403)) > 10, pod_statuses


def test_a_pod_is_warned_about_a_claim_over_quota(plane: Plane, namespace: str, tmp_path: Path) -> None:
    namespace_path, hard = f"/api/v1/namespaces/{namespace}", {"waited-for.deviceclass.resource.k8s.io/devices": "1"}
    spec = {"spec": claim_spec([{"exactly": {"deviceClassName": "waited-for", "count": 2}}])}
    template = {"metadata": {"name": "two"}, "spec": spec}
    plane.api.create(f"{API}/namespaces/{namespace}/resourceclaimtemplates", template)
    plane.api.create(f"{namespace_path}/resourcequotas", {"metadata": {"name": "devices"}, "spec": {"hard": hard}})
    eventually(lambda: plane.api.get(f"{namespace_path}/resourcequotas/devices")["status"].get("used"))
    claims = [{"name": "gpus", "resourceClaimTemplateName": "two"}]
    pod = make_pod("waiting").namespace(namespace).claims(*claims).build()
    policies = tmp_path / "policies.yaml"
    policies.write_text(policy_text("limits", mode="enforce", limits={"resourceQuotas": "evaluate"}))

    checked = rightslice(plane, "check", "-", "--policies", str(policies), "-o", "json", stdin=json.dumps(pod))
    plane.api.create(f"{namespace_path}/pods", pod)

    (finding,) = json.loads(checked.stdout)["objects"][0]["findings"]
    api_message = re.search("exceeded quota: [^;]*", finding["message"])
    assert (finding["code"], checked.returncode) == ("GPU-Q306", 0)
    assert api_message is not None
    assert api_message[0].endswith("limited: waited-for.deviceclass.resource.k8s.io/devices=1")
    event_selector = "involvedObject.name=waiting,reason=FailedResourceClaimCreation"
    (event, *_) = eventually(lambda: plane.api.get(f"{namespace_path}/events", fieldSelector=event_selector)["items"])
    assert event["message"].endswith(api_message[0])
