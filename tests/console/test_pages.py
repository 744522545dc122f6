"""What the pages say about the example cluster: the values of `audit`, `rightsize` and `capacity`."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from syrupy.assertion import SnapshotAssertion

from tests.audit.test_pod_audit import SLICES, right_sized
from tests.builders import make_namespace, make_node
from tests.cli.conftest import Run
from tests.console.conftest import Client, demo_flags, page_words
from tests.placement.clusters import placement_input
from webhook.cli.console_inputs import ConsoleReader
from webhook.console.reading import ClusterReading
from webhook.model.gpu_resources import CARD_MILLI
from webhook.model.node_labels import PRODUCT_LABEL
from webhook.report.console.nodes import node_page
from webhook.report.console.overview import overview_page
from webhook.report.console.query import PageQuery
from webhook.report.console.state import ConsoleState
from webhook.report.console.usage_band import BandPoint, UsageBand, band_chart
from webhook.report.console.workloads import workload_page, workloads_page
from webhook.report.text import sanitize

DEMO_PAGES = {
    "overview": "/",
    "workloads": "/workloads",
    "a workload with usage and advice": "/workload?namespace=search&name=Deployment/ranker",
    "a workload that keeps its GPUs": "/workload?namespace=search&name=CronJob/reindex",
    "nodes": "/nodes",
    "layout": "/layout",
    "findings": "/findings",
    "policies": "/policies",
    "a policy": "/policy?name=right-sizing-trial",
    "quotas and ranges": "/quotas",
    "a quota that other names bypass": "/quota?namespace=ml-infra&kind=ResourceQuota&name=gpus",
    "the form of a trial": "/try?name=team-limits",
    "a node whose agent reports its slices": "/node?name=a100-mixed-1",
    "a node with slices and no agent": "/node?name=a100-mixed-2",
    "a node with shares": "/node?name=l4-mps-1",
    "a node with devices of ResourceSlices": "/node?name=dra-1",
}


@pytest.mark.parametrize("path", DEMO_PAGES.values(), ids=DEMO_PAGES)
async def test_a_page_of_the_demo(client: Client, path: str, snapshot: SnapshotAssertion) -> None:
    answer = await client.get(path)

    assert answer.status == 200
    assert answer.words == snapshot


@pytest.mark.parametrize("path", DEMO_PAGES.values(), ids=DEMO_PAGES)
async def test_a_page_has_landmarks_and_headings_in_order(client: Client, path: str) -> None:
    text = (await client.get(path)).text

    assert [len(re.findall(f"<{tag}[ >]", text)) for tag in ("main", "header", "footer", "h1")] == [1, 1, 1, 1]
    assert text.index('class="skip" href="#content"') < text.index("<header")
    levels = [int(level) for level in re.findall(r"<h([1-6])", text)]
    assert all(after <= before + 1 for before, after in pairwise(levels)), levels
    assert not re.findall(r"<th(?![^>]* scope=)[ >]", text)
    labels = set(re.findall(r'<label for="([^"]+)"', text))
    assert labels == set(re.findall(r'<(?:input|select|textarea) id="([^"]+)"', text))
    assert not re.findall(r"<[^>]* on[a-z]+=", text)


async def test_every_link_of_the_demo_leads_to_a_page(client: Client) -> None:
    """From the overview, all links are followed until no new page appears."""
    seen, left = set[str](), ["/"]
    while left:
        path = left.pop()
        if path in seen or len(seen) > 150:
            continue
        seen.add(path)
        answer = await client.get(path)
        assert answer.status == 200, path
        left += [each.replace("&amp;", "&") for each in re.findall(r'<a href="(/[^"]*)"', answer.text)]

    assert {path.partition("?")[0] for path in seen} >= {"/", "/workloads", "/workload", "/nodes", "/node"}


async def test_idle_workloads_are_one_click_from_the_overview(client: Client) -> None:
    text = (await client.get("/")).text

    link = re.findall(r'<a href="([^"]*)">Idle workloads', text)[0].replace("&amp;", "&")
    assert "StatefulSet/playground" in (await client.get(link)).text


async def test_filters_select_and_sorting_orders(client: Client) -> None:
    async def names(query: str) -> list[str]:
        text = (await client.get(f"/workloads?{query}")).text
        return re.findall(r'<th scope="row"><a href="[^"]*">([^<]*)<', text)

    assert await names("namespace=ml-infra") == ["Deployment/embedder"]
    assert await names("q=RANK") == ["Deployment/ranker"]
    assert await names("q=reindex-29401560") == ["CronJob/reindex"]
    assert await names("show=saved") == ["Deployment/embedder"]
    assert "Deployment/summarizer" in await names("reason=Preallocates")
    assert (await names("sort=-requested"))[0] == "Pod/llm-train-0"
    rising = await names("sort=workload")
    assert rising == sorted(rising)
    assert await names("sort=-workload") == rising[::-1]
    assert await names("q=nothing-has-this-name") == []


PARTS = {
    "a namespace": ("/workloads?namespace=TEAM&sort=pods", "Namespace", "TEAM", ["team-nlp", "team-vision"]),
    "a finding": ("/workloads?code=T302", "Finding", "T302", ["GPU-T302"]),
    "a policy": ("/workloads?policy=sizing", "Policy", "sizing", ["right-sizing", "right-sizing-trial"]),
    "a namespace of findings": ("/findings?namespace=infra", "Namespace", "infra", ["ml-infra"]),
    "a namespace of quotas": ("/quotas?namespace=nlp", "Namespace", "nlp", ["team-nlp"]),
}


@pytest.mark.parametrize(("path", "label", "part", "names"), PARTS.values(), ids=PARTS)
async def test_a_part_of_a_name_leads_to_the_names_that_contain_it(
    client: Client, path: str, label: str, part: str, names: list[str]
) -> None:
    page = await client.get(path)

    assert f"{label}: must be a whole name, found {part}. Those with it: {' '.join(names)}" in page.words
    links = re.findall(r'<a href="([^"]*)">([^<]*)</a>', page.text.partition("Those with it:")[2].partition("</p>")[0])
    assert [name for _, name in links] == names
    for link, _ in links:
        assert 'scope="row"' in (await client.get(link.replace("&amp;", "&"))).text


async def test_a_name_that_nothing_contains_has_no_links(client: Client) -> None:
    assert "found none-such. None contains it." in (await client.get("/workloads?namespace=none-such")).words
    assert "must be a whole name" not in (await client.get("/workloads?namespace=search&q=none-such")).words


async def test_a_list_of_idle_workloads_that_is_empty_without_usage_data_says_so(demo: ClusterReading) -> None:
    rows = [row for row in demo.state.workloads if row.idle_unknown.milli]
    state = msgspec.structs.replace(demo.state, workloads=tuple(rows))
    empty = page_words(workloads_page(state, PageQuery({"show": "wasted"})))

    assert not [row for row in rows if row.waste.milli]
    unknown = f"Idle GPUs are unknown for {len(rows)} workloads: they have no usage data."
    assert f"{unknown} Workloads without usage data" in empty
    assert "Idle GPUs are unknown" not in page_words(workloads_page(state, PageQuery({"show": "denied"})))
    assert "Idle GPUs are unknown" not in page_words(workloads_page(demo.state, PageQuery({"show": "wasted"})))


async def test_links_to_islands_count_the_nodes_whose_islands_are_unknown(client: Client) -> None:
    words = (await client.get("/nodes")).words

    assert "2 GPUs or more: 2 nodes, 2 unknown 4 GPUs or more: 1 node, 1 unknown 8 GPUs or more: 0 nodes Name" in words


async def test_cards_without_an_agent_say_how_many_are_free(client: Client) -> None:
    whole, shares = (await client.get("/node?name=h100-2")).words, (await client.get("/node?name=l4-mps-1")).words

    assert whole.count("6 of 8 GPUs of the node are free; which is unknown without the node agent") == 8
    assert "shares of the node are free; which is unknown without the node agent" in shares


MISSING_OBJECTS = {
    "/workload?namespace=a&name=b": "This reading has no workload 'a/b' with GPUs.",
    "/node?name=a": "This reading has no node 'a'.",
    "/policy?name=a": "This reading has no policy 'a'.",
    "/quota?namespace=a&kind=ResourceQuota&name=b": "This reading has no quota or range 'a/ResourceQuota/b'.",
}


@pytest.mark.parametrize(("path", "sentence"), MISSING_OBJECTS.items())
async def test_a_page_of_an_object_that_is_missing_names_it(client: Client, path: str, sentence: str) -> None:
    assert sentence in (await client.get(path)).words


async def test_the_page_of_layouts_says_what_its_reasons_mean(client: Client) -> None:
    words = (await client.get("/layout")).words

    assert "SavingTooSmall: the GPUs that cover the need save less than the policy requires" in words
    assert "rightslice layout --quantile plans for them" in words


async def test_the_list_of_nodes_says_why_allocated_and_free_gpus_are_not_all_gpus(
    client: Client, demo: ClusterReading
) -> None:
    """Three slices can be less than their card, and all slices of a card a little more."""
    amounts = {node.name: (node.total_milli, CARD_MILLI * node.installed_gpus) for node in demo.state.nodes}
    assert amounts["dra-1"] == (2929, 3000)
    assert amounts["a100-mixed-1"] == (8074, 8000)

    words = (await client.get("/nodes")).words

    assert "add up what a node offers (cards, slices and shares), which can be slightly more or less" in words


async def test_the_filter_of_islands_says_which_nodes_are_left_out(client: Client) -> None:
    """Without an agent it is unknown which four of the eight GPUs are free, and not all of them are connected."""
    found = (await client.get("/nodes?island=4")).text
    [link] = re.findall(r'<a href="([^"]*)">Nodes with unknown islands', found)

    assert "h100-2" in found
    assert "1 node with enough free GPUs is not listed" in found
    assert "v100-dgx-1" in (await client.get(link)).text
    assert "not listed" not in (await client.get("/nodes?island=8")).text
    assert "not listed" not in (await client.get("/nodes")).text


async def test_findings_lead_to_their_workloads(client: Client) -> None:
    text = (await client.get("/findings?code=R102&mode=note")).text

    link = re.findall(r'<th scope="row"><a href="([^"]*)">GPU-R102<', text)[0].replace("&amp;", "&")
    assert "Deployment/ranker" in (await client.get(link)).text
    assert "GPU-R102" not in (await client.get("/findings?code=R102&mode=deny")).text
    assert "GPU-R102" not in (await client.get("/findings?code=R102&namespace=batch")).text


async def listed_workloads(client: Client, link: str) -> int:
    """Return the number of rows of a list."""
    return (await client.get(link.replace("&amp;", "&"))).text.count('<th scope="row">')


async def test_the_link_of_a_finding_lists_the_workloads_that_it_counts(client: Client, demo: ClusterReading) -> None:
    page = (await client.get("/findings")).text
    links = re.findall(r'<th scope="row"><a href="([^"]*)">', page)
    counted = [len(each.group.findings) for each in demo.findings if not each.of_claims]

    assert {"mode=warn", "mode=note"} <= {link.rpartition("&amp;")[2] for link in links}
    assert [await listed_workloads(client, link) for link in links] == counted


async def test_the_link_of_a_policy_lists_the_workloads_that_it_counts(client: Client, demo: ClusterReading) -> None:
    """One that matches pods without GPUs too."""
    page = (await client.get("/policy?name=guard")).text
    [link] = re.findall(r'<a href="([^"]*)">The workloads that it matches', page)
    [number] = re.findall(r"Matches<b>([0-9]+)</b>", page)

    assert int(number) == len(demo.state.workloads)
    assert await listed_workloads(client, link) == int(number)


async def test_a_policy_leads_to_the_workloads_that_it_matches(client: Client) -> None:
    page = (await client.get("/policy?name=right-sizing-trial")).text
    link = re.findall(r'<a href="([^"]*)">The workloads that it matches', page)[0]
    matched = await client.get(link)

    assert "Deployment/ranker" in matched.text
    assert "Pod/jupyter-d" not in matched.text
    [number] = re.findall(r"Matches<b>([0-9]+)</b>", page)
    assert f" {number} workload" in matched.words


async def test_quotas_that_do_not_do_what_they_say_have_a_corrected_object(client: Client) -> None:
    every = (await client.get("/quotas?kind=LimitRange")).text
    misleading = (await client.get("/quotas?kind=LimitRange&show=misleading")).text
    link = re.findall(r'<th scope="row"><a href="([^"]*)">at-most-four<', misleading)[0].replace("&amp;", "&")
    page = (await client.get(link)).text

    assert "defaults" in every.partition("<tbody")[2]
    assert "defaults" not in misleading.partition("<tbody")[2]
    assert "GPU-L301" in page
    assert "kind: LimitRange" in page.partition("<pre")[2]


async def test_a_column_of_links_cannot_be_sorted_by(client: Client) -> None:
    answer = await client.get("/policies")

    assert 'href="/policies?sort=rollout"' in answer.text
    assert "sort=trial" not in answer.text
    assert (await client.get("/policies?sort=trial")).status == 400


@pytest.mark.parametrize("spread", [0, 10, 2_000])
def test_a_band_is_seen_behind_its_middle_however_narrow_it_is(spread: int) -> None:
    points = tuple(BandPoint(3600 * i, 40_000 - spread, 40_000, 40_000 + spread) for i in range(9))

    chart = band_chart(UsageBand("main", 2, 81_559, points, 3600))

    [outline] = re.findall(r'class="range" points="([^"]*)"', chart)
    heights = [float(each.partition(",")[2]) for each in outline.split()]
    expected = max(6.0, 2 * spread / 81_559 * 150)
    assert max(heights) - min(heights) == pytest.approx(expected, abs=0.2)


async def test_the_sorted_column_is_marked(client: Client) -> None:
    text = (await client.get("/workloads?sort=-requested")).text

    assert re.findall(r'aria-sort="(\w+)"><a href="([^"]*)">', text) == [("descending", "/workloads?sort=requested")]


INVALID = {
    "an unknown parameter": "/workloads?x=1",
    "an unknown choice": "/workloads?show=everything",
    "an unknown column": "/nodes?sort=price",
}
MISSING = (
    "/workload?namespace=search&name=Deployment/none",
    "/workload",
    "/node?name=none",
    "/node",
    "/policy?name=none",
    "/quota?namespace=a&kind=LimitRange&name=none",
    "/try?name=none",
    "/missing",
)


@pytest.mark.parametrize("path", INVALID.values(), ids=INVALID)
async def test_an_invalid_address_is_explained(client: Client, path: str) -> None:
    answer = await client.get(path)

    assert answer.status == 400
    assert answer.words.startswith("This address is invalid")


@pytest.mark.parametrize("path", MISSING)
async def test_what_is_not_there_is_not_found(client: Client, path: str) -> None:
    answer = await client.get(path)

    assert answer.status == 404
    assert answer.words.startswith("Not found")


async def test_a_page_beyond_the_last_shows_the_last(client: Client) -> None:
    assert (await client.get("/workloads?page=999")).words == (await client.get("/workloads")).words


def state_with(demo: ClusterReading, names: list[str]) -> ConsoleState:
    """Return the state of the example with other workloads."""
    row = demo.state.workloads[0]
    rows = tuple(msgspec.structs.replace(row, namespace=name, name=f"Deployment/{name}") for name in names)
    by_workload = {(each.namespace, each.name): each for each in rows}
    return msgspec.structs.replace(
        demo.state,
        workloads=rows,
        by_workload=by_workload,
        pods=dict.fromkeys(by_workload, ()),
        policies_of=dict.fromkeys(by_workload, frozenset(names)),
    )


def test_a_table_has_a_hundred_rows_a_page(demo: ClusterReading) -> None:
    state = state_with(demo, [f"n{i:04}" for i in range(250)])

    pages = [workloads_page(state, PageQuery(page=page)) for page in (1, 2, 3)]

    assert [text.count('<th scope="row">') for text in pages] == [100, 100, 50]
    assert "101 to 200 of 250 workloads" in pages[1]
    assert ["Previous page" in text for text in pages] == [False, True, True]
    assert ["Next page" in text for text in pages] == [True, True, False]


HOSTILE = (
    "<script>window.attacked = 1</script>",
    "\"><img src=x onerror='top.attacked = 1'>",
    "{{ 7 * 7 }}{% raw %}",
    "javascript:alert(1)",
    "\u202ereversed\u0000",
    "w" * 253,
)


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_change_nothing(demo: ClusterReading, name: str) -> None:
    state = state_with(demo, [name])

    for text in (workloads_page(state, PageQuery({"q": name})), workload_page(state, state.workloads[0])):
        plain = workloads_page(state_with(demo, ["plain"]), PageQuery({"q": "plain"}))
        assert sanitize(name) in page_words(text) or " ".join(sanitize(name).split()) in page_words(text)
        assert re.findall("<script[^>]*>", text) == re.findall("<script[^>]*>", plain)
        assert "<img" not in text
        assert "\u202e" not in text
        assert "\0" not in text
        assert not [address for address in re.findall(r'href="([^"]*)"', text) if not address.startswith(("/", "#"))]


async def test_a_card_lists_the_gpus_to_which_it_has_a_link_of_its_own(client: Client) -> None:
    """Each GPU of a DGX-1 has links to four of the seven others."""
    words = (await client.get("/node?name=v100-dgx-1")).words

    linked = [set(map(int, each.split(","))) for each in re.findall(r"NVLink to: ([0-9,]+)", words)]
    assert [len(each) for each in linked] == [4] * 8
    assert linked[0] == {1, 2, 3, 4}
    assert all(one in linked[other] for one in range(8) for other in linked[one])
    assert "Connected directly or through other GPUs: 0,1,2,3,4,5,6,7 . The largest set" in words
    assert "connects every pair has 4 GPUs" in words


def test_the_links_of_an_unknown_product_are_unknown(demo: ClusterReading) -> None:
    placement = placement_input(make_node("n", {PRODUCT_LABEL: "NVIDIA-Z900"}, **{"nvidia.com/gpu": 4}))

    words = page_words(node_page(demo.state, placement.snapshot, 0, (), ()))

    assert words.count("NVLink to: unknown") == 4
    assert "Links: unknown" in words


NOTES_OF_NODES = {
    "dra-1": "ResourceSlices do not say which GPUs NVLink connects",
    "v100-dgx-1": "No agent runs on the node: it is unknown which of its GPUs are free",
}


@pytest.mark.parametrize(("name", "note"), NOTES_OF_NODES.items(), ids=NOTES_OF_NODES)
async def test_a_note_on_the_page_of_a_node_explains_no_mark(client: Client, name: str, note: str) -> None:
    words = (await client.get(f"/node?name={name}")).words

    assert f"connected pairwise, and free {note}" in words
    assert " ? " not in words


async def test_each_slice_of_a_card_has_the_pod_that_holds_it(client: Client) -> None:
    words = (await client.get("/node?name=a100-mixed-1")).words

    [card] = re.findall(r"GPU 4 (.*) NVLink to: .* GPU 5 ", words)
    assert "1g.10gb at 0: team-vision/embed-0 1g.10gb at 1: team-vision/embed-1" in card
    assert "1g.10gb at 6: free" in card
    assert "2g.20gb at 0: team-vision/segment-0 2g.20gb at 2: free" in words


def test_the_reason_of_a_workload_is_that_of_the_reach_in_audit(demo: ClusterReading, rightslice: Run) -> None:
    """A policy right-sizes notebooks, and has no share that is smaller than theirs; a queue keeps the fine-tuning."""
    reach = json.loads(rightslice("audit", "--cluster", "demo", "-o", "json", "--now", "2026-06-01T00:00:00Z").out)[
        "reach"
    ]
    reasons = {key: row.keep_reason for key, row in demo.state.by_workload.items()}

    assert reasons["notebooks", "Pod/jupyter-d"] == reasons["notebooks", "Pod/jupyter-a"] == "NoWholeGPU"
    assert reasons["search", "CronJob/finetune-nightly"] == "NotAdmittedByQueue"
    assert "NoRightSizingPolicy" not in reasons.values()
    assert "NotAdmittedByQueue" in {each["reason"] for each in reach["kept"]}
    assert "QueuedWorkload" not in {*reasons.values(), *(each["reason"] for each in reach["kept"])}


def test_the_overview_has_what_was_saved_at_admission(tmp_path: Path) -> None:
    pods = [right_sized("a"), right_sized("b")]
    file = tmp_path / "cluster.json"
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": [SLICES, make_namespace("team"), *pods]}))
    words = page_words(overview_page(ConsoleReader(demo_flags(cluster=str(file))).read().state))

    assert "Saved at admission 1.71 2 pods right-sized when created: requested 2, now 0.29 Can be saved by" in words
