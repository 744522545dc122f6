"""What a quota says of a pod that is resized while it runs: our words are the API server's."""

from __future__ import annotations

from typing import Any

from tests.cluster.client import RefusedError
from tests.cluster.plane import Plane
from tests.cluster.ranging import quotas_of
from tests.cluster.waiting import eventually
from tests.make import Json, make_pod
from webhook.engine.limitrange import arrived
from webhook.engine.quota import refusals_on_resize
from webhook.model.pods import Pod, pod_of

HARD = {"requests.cpu": "2", "limits.cpu": "4", "requests.memory": "2Gi", "pods": "1"}
RESIZES = {
    "it fits": ("1500m", "2", "512Mi"),
    "too much of one key": ("2500m", "3", "512Mi"),
    "too much of two": ("2500m", "5", "512Mi"),
    "memory": ("1", "2", "3Gi"),
    "less": ("500m", "2", "512Mi"),
    "the same": ("1", "2", "512Mi"),
    "one up and one down": ("500m", "5", "512Mi"),
}


def amounts(cpu: str, most: str, memory: str) -> Json:
    """Requests and limits of the container."""
    return {"requests": {"cpu": cpu, "memory": memory}, "limits": {"cpu": most, "memory": memory}}


def resized(pod: Json, resources: Json) -> Pod:
    """The pod with other amounts."""
    container = pod["spec"]["containers"][0] | {"resources": resources}
    return pod_of(pod | {"spec": pod["spec"] | {"containers": [container]}})


def test_a_resize_is_charged_for_what_it_adds(plane: Plane, namespace: str) -> None:
    path = f"/api/v1/namespaces/{namespace}"
    plane.api.create(f"{path}/resourcequotas", {"metadata": {"name": "q"}, "spec": {"hard": HARD}})
    eventually(lambda: plane.api.get(f"{path}/resourcequotas/q")["status"].get("hard"))
    pod = make_pod("p").namespace(namespace)
    pod.main["resources"] = amounts("1", "2", "512Mi")
    stored = plane.api.create(f"{path}/pods", pod.build())
    eventually(lambda: plane.api.get(f"{path}/resourcequotas/q")["status"]["used"].get("pods") == "1")
    eventually(lambda: answer(plane, path, "2500m", "3", "512Mi"))
    quota = plane.api.get(f"{path}/resourcequotas/q")

    said = {name: answer(plane, path, *wanted) for name, wanted in RESIZES.items()}
    ours = {name: words(quota, stored, resized(stored, amounts(*wanted))) for name, wanted in RESIZES.items()}

    assert said == ours
    assert [name for name, reason in said.items() if not reason] == ["it fits", "less", "the same"]


def answer(plane: Plane, path: str, cpu: str, most: str, memory: str) -> str:
    """What the API server says; "" where it lets it pass."""
    body: Any = {"spec": {"containers": [{"name": "main", "resources": amounts(cpu, most, memory)}]}}
    try:
        plane.api.patch(f"{path}/pods/p/resize?dryRun=All", body, "strategic")
    except RefusedError as error:
        return error.message.removeprefix('pods "p" is forbidden: ')
    return ""


def words(quota: Json, old: Json, new: Pod) -> str:
    """What we say."""
    before = pod_of(old)
    found = refusals_on_resize(before, arrived(before, ()), arrived(new, ()), quotas_of([quota]))
    return found[0].words if found else ""
