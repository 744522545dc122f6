"""Quota messages for a running pod that is resized or given a deadline: ours equal the API server's."""

from __future__ import annotations

from tests.builders import Json, make_pod
from tests.cluster.client import RefusedError
from tests.cluster.plane import Plane
from tests.cluster.polling import eventually
from tests.cluster.predicted_outcomes import parse_limit_ranges, parse_quotas
from webhook.engine.quota.admission import predict_resize_refusals, predict_update_refusals
from webhook.model.defaulting import apply_defaults
from webhook.model.pods import Pod, parse_pod

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

NO_RANGES = parse_limit_ranges([])


def amounts(cpu: str, cpu_limit: str, memory: str) -> Json:
    """Return requests and limits of the container."""
    return {"requests": {"cpu": cpu, "memory": memory}, "limits": {"cpu": cpu_limit, "memory": memory}}


def with_resources(pod: Json, resources: Json) -> Pod:
    """Return the pod with other amounts."""
    main, *others = pod["spec"]["containers"]
    return parse_pod(pod | {"spec": pod["spec"] | {"containers": [main | {"resources": resources}, *others]}})


def test_a_resize_is_charged_for_what_it_adds(plane: Plane, namespace: str) -> None:
    path = f"/api/v1/namespaces/{namespace}"
    plane.api.create(f"{path}/resourcequotas", {"metadata": {"name": "q"}, "spec": {"hard": HARD}})
    eventually(lambda: plane.api.get(f"{path}/resourcequotas/q")["status"].get("hard"))
    pod = make_pod("p").namespace(namespace)
    pod.main["resources"] = amounts("1", "2", "512Mi")
    stored = plane.api.create(f"{path}/pods", pod.build())
    eventually(lambda: plane.api.get(f"{path}/resourcequotas/q")["status"]["used"].get("pods") == "1")
    eventually(lambda: resize_message(plane, path, "2500m", "3", "512Mi"))
    quota = plane.api.get(f"{path}/resourcequotas/q")

    actual = {name: resize_message(plane, path, *wanted) for name, wanted in RESIZES.items()}
    predicted = {
        name: predicted_resize_message(quota, stored, with_resources(stored, amounts(*wanted)))
        for name, wanted in RESIZES.items()
    }

    assert actual == predicted
    assert [name for name, reason in actual.items() if not reason] == ["it fits", "less", "the same"]


LATER_QUOTA = {"requests.cpu": "2", "limits.memory": "4Gi", "pods": "9"}


def test_a_later_quota_rejects_updates_of_an_uncovered_pod(plane: Plane, namespace: str) -> None:
    path = f"/api/v1/namespaces/{namespace}"
    pod = make_pod("p").namespace(namespace).container("side", resources={"requests": {"memory": "64Mi"}})
    pod.main["resources"] = amounts("1", "2", "512Mi")
    stored = plane.api.create(f"{path}/pods", pod.build())
    plane.api.create(f"{path}/resourcequotas", {"metadata": {"name": "q"}, "spec": {"hard": LATER_QUOTA}})
    eventually(lambda: resize_message(plane, path, "2500m", "3", "512Mi"))
    quota = plane.api.get(f"{path}/resourcequotas/q")
    resized, deadline_patch = amounts("1500m", "2", "512Mi"), {"spec": {"activeDeadlineSeconds": 60}}

    resize = resize_message(plane, path, "1500m", "2", "512Mi")
    deadline = patch_message(plane, f"{path}/pods/p", deadline_patch)

    assert resize == predicted_resize_message(quota, stored, with_resources(stored, resized))
    assert deadline == predicted_deadline_message(
        quota, stored, parse_pod(stored | {"spec": stored["spec"] | deadline_patch["spec"]})
    )
    assert resize == deadline == "failed quota: q: must specify limits.memory for: side; requests.cpu for: side"


def resize_message(plane: Plane, path: str, cpu: str, cpu_limit: str, memory: str) -> str:
    """Return the API server's message for a resize; "" if it is accepted."""
    body = {"spec": {"containers": [{"name": "main", "resources": amounts(cpu, cpu_limit, memory)}]}}
    return patch_message(plane, f"{path}/pods/p/resize", body)


def patch_message(plane: Plane, path: str, body: Json) -> str:
    """Return the API server's message for a patch; "" if it is accepted."""
    try:
        plane.api.patch(f"{path}?dryRun=All", body, "strategic")
    except RefusedError as error:
        return error.message.removeprefix('pods "p" is forbidden: ')
    return ""


def predicted_resize_message(quota: Json, old: Json, new: Pod) -> str:
    """Return our predicted message for a resize."""
    before = parse_pod(old)
    held, wanted = apply_defaults(before, NO_RANGES), apply_defaults(new, NO_RANGES)
    found = predict_resize_refusals(before, held, wanted, parse_quotas([quota]))
    return found[0].message if found else ""


def predicted_deadline_message(quota: Json, old: Json, new: Pod) -> str:
    """Return our predicted message for a new deadline."""
    before = parse_pod(old)
    found = predict_update_refusals(
        before, new, apply_defaults(before, NO_RANGES), apply_defaults(new, NO_RANGES), parse_quotas([quota])
    )
    return found[0].message if found else ""
