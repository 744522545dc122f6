"""The trial: what is pasted is evaluated as `check` and `policy diff` evaluate it, within bounds."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from html import unescape
from pathlib import Path
from urllib.parse import urlencode

import msgspec
import pytest

from tests.cli.conftest import Run
from tests.conftest import ROOT
from tests.console.conftest import Answer, Client, page_words
from webhook.audit.object_files import parse_objects
from webhook.audit.policy_diff import CHANGE_KINDS, PodPolicyDiff, compare_policies, policy_diffs_by_workload
from webhook.console.guard import MAX_BODY_BYTES
from webhook.console.pod_samples import PodSamples
from webhook.console.reading import ClusterReading
from webhook.console.trial import PASTED_POLICIES, TrialCluster, evaluate_trial
from webhook.policy.loader import load_policies
from webhook.report.console.trials import TrialOutcome, TrialPhase, TrialReport, trial_page

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


async def send_form(client: Client, objects: str = "", policies: str = "") -> Answer:
    origin = client.address.rstrip("/")
    body = urlencode({"objects": objects, "policies": policies})
    return await client.send("POST", "/try", body, Origin=origin, Content_Type=FORM)


async def paste(client: Client, objects: str = "", policies: str = "") -> Answer:
    """Send the form; return the page of the result, or the one that says why there is none."""
    answer = await send_form(client, objects, policies)
    return await ended_page(client, answer.headers["Location"]) if answer.status == 303 else answer


async def ended_page(client: Client, location: str) -> Answer:
    """Return the page of a trial when it has ended."""
    while (page := await client.get(location.partition("#")[0])).words.startswith("The trial is running"):
        await asyncio.sleep(0.01)
    return page


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


async def test_a_trial_has_the_total_of_policy_diff(client: Client) -> None:
    text = (ROOT / "policies/right-sizing-trial.yaml").read_text()

    answer = await paste(client, policies=text.replace("mode: audit", "mode: enforce"))

    assert "GPUs: 1.43 less for all pods that are patched differently." in answer.words


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


DENY_ALL = NO_GPUS.replace('namespaces: ["search"], ', "")


def steps_of(demo: ClusterReading, policies: str) -> list[TrialOutcome]:
    return list(evaluate_trial(TrialCluster(demo.state, demo.context, demo.samples), "", policies, ""))


def test_each_step_evaluates_one_workload_and_the_last_has_the_result(demo: ClusterReading) -> None:
    *steps, result = steps_of(demo, DENY_ALL)

    progress = [each.progress for each in steps if each.progress is not None]
    assert [each.evaluated for each in progress] == list(range(len(demo.samples) + 1))
    assert {each.workloads for each in progress} == {len(demo.samples)}
    assert all(each.cluster is None for each in steps)
    assert result.cluster is not None
    assert result.cluster.evaluated == len(demo.samples)
    assert progress[-1].changed == len(result.cluster.changes) > 0


CHANGED = {
    "nothing": (ROOT / "policies/right-sizing.yaml", "", ""),
    "a policy that denies": (ROOT / "policies/team-limits.yaml", "mode: enforce", "mode: audit"),
    "a policy that patches": (ROOT / "policies/right-sizing-trial.yaml", "mode: audit", "mode: enforce"),
    "a policy for fewer namespaces": (ROOT / "policies/team-limits.yaml", "mode: enforce", "mode: warn"),
}


@pytest.mark.parametrize(("path", "before", "after"), CHANGED.values(), ids=CHANGED)
def test_the_steps_end_with_what_policy_diff_finds_for_one_pod_of_each_workload(
    demo: ClusterReading, path: Path, before: str, after: str
) -> None:
    text = path.read_text().replace(before, after)
    loaded = load_policies([(PASTED_POLICIES, text)], demo.context.policies.sources).policies
    assert loaded is not None
    compared = compare_policies([each.restore() for each in demo.samples], demo.context, loaded)
    diffs = policy_diffs_by_workload(each for each in compared if isinstance(each, PodPolicyDiff))

    result = steps_of(demo, text)[-1].cluster

    assert result is not None
    assert [(each.change, each.namespace, each.workload, each.codes) for each in result.changes] == [
        (CHANGE_KINDS[each.kind], each.namespace, each.workload, each.codes) for each in diffs
    ]
    assert result.counts == Counter(CHANGE_KINDS[each.kind] for each in diffs)


def test_a_page_lists_some_of_many_changes_and_counts_all(
    demo: ClusterReading, monkeypatch: pytest.MonkeyPatch
) -> None:
    every = steps_of(demo, DENY_ALL)[-1].cluster
    monkeypatch.setattr("webhook.console.trial.MAX_CHANGES", 2)
    some = steps_of(demo, DENY_ALL)[-1]

    assert every is not None
    assert some.cluster is not None
    assert some.cluster.changes == every.changes[:2]
    assert (some.cluster.counts, some.cluster.gpu_milli) == (every.counts, every.gpu_milli)
    words = page_words(trial_page(demo.state, TrialReport("1", {}, TrialPhase.ENDED, some)))
    assert f"and {len(every.changes) - 2} more." in words


def pod(name: str, owner: str = "", phase: str = "Running", gpus: int = 0) -> dict[str, object]:
    owners = [{"kind": "ReplicaSet", "name": owner, "uid": owner}] if owner else []
    metadata = {"namespace": "a", "name": name, "ownerReferences": owners}
    limits = {"cpu": "1"} | ({"nvidia.com/gpu": gpus} if gpus else {})
    spec = {"containers": [{"name": "main", "resources": {"limits": limits}}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, "status": {"phase": phase}}


def names_of_kept(samples: PodSamples, written: Iterable[object]) -> list[str]:
    documents = [each for data in written for each in parse_objects("pods.yaml", msgspec.json.encode(data))]
    assert list(samples.observe(documents)) == documents
    assert [each.restore().data["metadata"]["name"] for each in samples] == [each.name for each in samples]
    return [each.name for each in samples]


def test_one_pod_of_each_owner_is_kept() -> None:
    written = [pod("r-1", "r"), pod("r-2", "r"), pod("s-1", "s"), pod("alone"), pod("ended", phase="Succeeded")]

    assert names_of_kept(PodSamples(), written) == ["r-1", "s-1", "alone"]


def test_pods_with_gpus_replace_others_where_there_are_too_many() -> None:
    samples = PodSamples(most=2)

    kept = names_of_kept(samples, [pod("a"), pod("b"), pod("c"), pod("d", gpus=1), pod("e", gpus=8), pod("f", gpus=1)])

    assert sorted(kept) == ["d", "e"]
    assert samples.omitted == 4


MALFORMED = {
    "owners": {"metadata": {"name": "a", "ownerReferences": "none"}},
    "an owner": {"metadata": {"name": "a", "ownerReferences": [1]}},
    "a uid": {"metadata": {"name": "a", "ownerReferences": [{"uid": {}}]}},
    "containers": {"spec": {"containers": 1}},
    "a container": {"spec": {"containers": [1]}},
    "limits": {"spec": {"containers": [{"resources": {"limits": []}}]}},
}


@pytest.mark.parametrize("changes", MALFORMED.values(), ids=MALFORMED)
def test_malformed_pods_are_kept_as_they_are(changes: dict[str, object]) -> None:
    samples = PodSamples()

    names_of_kept(samples, [pod("a") | changes])

    assert len(samples) == 1
