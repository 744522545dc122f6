"""The trial: what is pasted is evaluated as `check` and `policy diff` evaluate it, within bounds."""

from __future__ import annotations

from html import unescape
from pathlib import Path
from urllib.parse import urlencode

import msgspec
import pytest

from tests.cli.conftest import Run
from tests.conftest import ROOT
from tests.console.conftest import Answer, Client
from webhook.audit.object_files import parse_objects
from webhook.console import trial
from webhook.console.guard import MAX_BODY_BYTES
from webhook.console.reading import ClusterReading
from webhook.console.trial import PodSamples, TrialCluster, run_trial

JUNE = "2026-06-01T00:00:00Z"
NOTEBOOK = (ROOT / "examples/pods/01-notebook-8gb.yaml").read_text()
FORM = "application/x-www-form-urlencoded"
EXAMPLES = ("01-notebook-8gb", "04-three-gpus", "07-privileged", "12-cpu-only", "13-deployment", "17-claim-8gb")
NO_GPUS = """\
apiVersion: rightslice.dev/v1alpha1
kind: GPUPolicy
metadata: {name: team-limits}
spec:
  mode: enforce
  match: {namespaces: ["search"], resources: ["nvidia.com/*"]}
  limits:
    perPod: [{resource: nvidia.com/gpu, max: 0}]
"""


async def paste(client: Client, objects: str = "", policies: str = "") -> Answer:
    origin = client.address.rstrip("/")
    body = urlencode({"objects": objects, "policies": policies})
    return await client.send("POST", "/try", body, Origin=origin, Content_Type=FORM)


def area(answer: Answer, name: str) -> str:
    """Return the text of a field of the form."""
    return answer.text.split(f'name="{name}"')[1].split(">\n", 1)[1].split("</textarea>")[0]


def blocks(answer: Answer) -> list[str]:
    """Return the texts that the page shows as they are."""
    parts = [part.split(">", 1)[1].split("</pre>")[0] for part in answer.text.split("<pre")[1:]]
    return [unescape(part) for part in parts]


@pytest.mark.parametrize("name", EXAMPLES)
async def test_the_report_is_that_of_check(
    client: Client, rightslice: Run, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)  # the reports name the files of the policies, relative to this folder
    text = (ROOT / f"examples/pods/{name}.yaml").read_text()

    answer = await paste(client, text)

    checked = rightslice("check", "-", "--cluster", "demo", "-v", "--now", JUNE, stdin=text)
    explained = rightslice("explain", "-f", "-", "--cluster", "demo", "--now", JUNE, stdin=text)
    report, explanation = blocks(answer)[:2]
    assert report.splitlines() == checked.out.splitlines()
    assert "Verdict" in explanation
    assert explanation.splitlines()[1] in explained.out


async def test_a_browser_sends_other_ends_of_lines(client: Client) -> None:
    assert blocks(await paste(client, NOTEBOOK.replace("\n", "\r\n"))) == blocks(await paste(client, NOTEBOOK))


async def test_a_pasted_policy_is_compared_with_the_clusters_own(client: Client) -> None:
    answer = await paste(client, NOTEBOOK.replace("team-vision", "search"), NO_GPUS)

    before, _, _, after, *_ = blocks(answer)
    assert "GPU-L103" not in before
    assert "deny  GPU-L103" in after
    assert "team-limits: changed" in answer.words
    assert "Deployment/ranker search newly denied 2 GPU-L103" in answer.words
    assert "ml-infra" not in answer.words.partition("What the policies would change")[2]


async def test_the_same_policy_again_changes_nothing(client: Client) -> None:
    text = (ROOT / "policies/right-sizing.yaml").read_text()

    answer = await paste(client, policies=text)

    assert "Nothing: no workload would be denied, allowed, warned or patched differently." in answer.words
    assert "no policy changed" in answer.words


async def test_the_form_of_a_policy_is_filled_with_it(client: Client) -> None:
    form = await client.get("/try?name=team-limits")

    area = unescape(form.text.split('name="policies"')[1].split(">", 1)[1].split("</textarea>")[0])
    assert "name: team-limits" in area
    assert form.headers["Referrer-Policy"] == "same-origin"
    assert "no policy changed" in (await paste(client, policies=area)).words


async def test_an_invalid_policy_is_explained_and_the_text_stays(client: Client) -> None:
    answer = await paste(client, NOTEBOOK, NO_GPUS.replace("perPod", "perPods"))

    assert "The policies cannot be used" in answer.words
    assert "pasted:8:" in answer.words
    assert "perPods" in answer.text.split('name="policies"')[1]
    assert "GPU-R101" in blocks(answer)[0]


INVALID = {"nothing": ("", ""), "blanks": (" \n", "\t"), "too many objects": (NOTEBOOK + "---\n{}\n" * 20, "")}


@pytest.mark.parametrize(("objects", "policies"), INVALID.values(), ids=INVALID)
async def test_nothing_is_evaluated(client: Client, objects: str, policies: str) -> None:
    answer = await paste(client, objects, policies)

    assert answer.status == 400
    assert answer.words.startswith("Nothing was evaluated")
    assert unescape(area(answer, "objects")).splitlines() == objects.splitlines()
    assert 'id="result" tabindex="-1"' in answer.text


MISPLACED = {
    "a pod as a policy": ("", NOTEBOOK, "is not a policy. Paste it under Pods or workloads"),
    "a pod beside a policy": ("", f"{NO_GPUS}---\n{NOTEBOOK}", "is not a policy. Paste it under Pods or workloads"),
    "a policy as a pod": (NO_GPUS, "", "is not a pod or workload. Paste it under Policies"),
    "a policy beside a pod": (f"{NOTEBOOK}---\n{NO_GPUS}", NO_GPUS, "GPUPolicy"),
}


@pytest.mark.parametrize(("objects", "policies", "message"), MISPLACED.values(), ids=MISPLACED)
async def test_what_is_in_the_wrong_field_is_not_ignored(
    client: Client, objects: str, policies: str, message: str
) -> None:
    answer = await paste(client, objects, policies)

    assert answer.status == 400
    assert message in answer.words


async def test_what_is_not_yaml_is_reported_as_check_does(client: Client) -> None:
    answer = await paste(client, "a: [")

    assert answer.status == 200
    assert "stdin:" in blocks(answer)[0]
    assert "invalid" in blocks(answer)[0]


async def test_hostile_input_is_shown_and_does_nothing(client: Client) -> None:
    text = NOTEBOOK.replace("notebook-ana", '"</textarea></pre><script>attack()</script>\\u202e"')

    answer = await paste(client, text, "</textarea><script>attack()</script>")

    assert "<script>attack" not in answer.text
    assert "\u202e" not in answer.text
    assert "attack()" in unescape(answer.text)


ORIGINS: tuple[dict[str, str], ...] = (
    {},
    {"Origin": "null"},
    {"Origin": "https://evil.example"},
    {"Origin": "http://127.0.0.1:1"},
)


@pytest.mark.parametrize("headers", ORIGINS, ids=str)
async def test_a_form_of_another_site_is_rejected(client: Client, headers: dict[str, str]) -> None:
    answer = await client.send("POST", "/try", urlencode({"objects": NOTEBOOK}), Content_Type=FORM, **headers)

    assert answer.status == 403
    assert "GPU-R101" not in answer.text


async def test_a_large_body_is_rejected(client: Client) -> None:
    answer = await paste(client, "#" * MAX_BODY_BYTES)

    assert answer.status == 413
    assert answer.words.startswith("Too much was pasted A trial must be at most 256 KiB")
    assert '<nav aria-label="Pages">' in answer.text


async def test_other_fields_are_rejected(client: Client) -> None:
    body, origin = urlencode({"objects": "a", "policies": "", "more": ""}), client.address.rstrip("/")

    assert (await client.send("POST", "/try", body, Origin=origin, Content_Type=FORM)).status == 400


UNREADABLE = {
    "another type": ("objects=a&policies=", {"Content_Type": "text/plain"}),
    "JSON": ("{}", {"Content_Type": "application/json"}),
    "a form with files": ("--a--", {"Content_Type": "multipart/form-data; boundary=a"}),
    "an unknown character set": ("objects=a&policies=", {"Content_Type": f"{FORM}; charset=none"}),
    "another character set": ("objects=a&policies=", {"Content_Type": f"{FORM}; charset=utf-16"}),
    "compressed": ("no gzip", {"Content_Type": FORM, "Content_Encoding": "gzip"}),
}


@pytest.mark.parametrize(("body", "headers"), UNREADABLE.values(), ids=UNREADABLE)
async def test_other_types_of_forms_are_rejected(client: Client, body: str, headers: dict[str, str]) -> None:
    answer = await client.send("POST", "/try", body.encode(), Origin=client.address.rstrip("/"), **headers)

    assert answer.status == 415


async def test_a_form_that_is_not_utf8_is_rejected(client: Client) -> None:
    body, origin = b"objects=\xff&policies=", client.address.rstrip("/")

    assert (await client.send("POST", "/try", body, Origin=origin, Content_Type=FORM)).status == 400


def test_the_time_to_evaluate_the_cluster_is_bounded(demo: ClusterReading, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "TRIAL_SECONDS", -1.0)

    outcome = run_trial(TrialCluster(demo.state, demo.context, demo.samples), "", NO_GPUS, "")

    assert outcome.evaluated == (0, len(demo.samples))
    assert outcome.changes == ()


def test_one_pod_of_each_owner_is_kept() -> None:
    def pod(name: str, owner: str = "", phase: str = "Running") -> dict[str, object]:
        owners = [{"kind": "ReplicaSet", "name": owner, "uid": owner}] if owner else []
        metadata = {"namespace": "a", "name": name, "ownerReferences": owners}
        return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "status": {"phase": phase}}

    samples, path = PodSamples(), Path("pods.yaml")
    written = [pod("r-1", "r"), pod("r-2", "r"), pod("s-1", "s"), pod("alone"), pod("ended", phase="Succeeded")]
    documents = [each for data in written for each in parse_objects(str(path), msgspec.json.encode(data))]

    assert list(samples.observe(documents)) == documents
    assert [each.data["metadata"]["name"] for each in samples.pods(60)] == ["r-1", "s-1", "alone"]
