"""Faults of the extender's surroundings: strangers that call it, absurd reports, nodes that die under a gang."""

from __future__ import annotations

import asyncio

import msgspec
import trustme

from tests.builders import Json
from tests.cpu_timer import CpuTimer
from tests.extender.harness import apply_watch_events, extender_body, filter_nodes, prioritize, scheduler_state
from tests.extender.test_gangs import member, node, put
from tests.extender.test_serving import TWO, serve_extender, state
from tests.placement.clusters import BRIDGED, gpu_node, gpu_node_report
from webhook.extender.state import RESERVATION_SECONDS
from webhook.model.gpu_node import GPUNode
from webhook.placement.devices import devices_from_report, find_report_error
from webhook.web.tls import ClientCertificateRules

AUTHORITY = trustme.CA()
SCHEDULER = ClientCertificateRules(AUTHORITY.cert_pem.bytes().decode(), "system:kube-scheduler")


async def test_a_caller_without_the_schedulers_certificate_changes_nothing() -> None:
    of = await asyncio.to_thread(state)
    async with serve_extender(of, clients=SCHEDULER) as site:
        answers = [await site.post(path, extender_body(TWO, ["n"])) for path in ("/filter", "/prioritize", "/preempt")]
        bind = await site.post("/bind", b"{}")

    assert [status for status, _ in answers] == [403, 403, 403]
    assert bind[0] == 404, "it never binds"
    assert not of.reservations


def with_links(count: int) -> Json:
    """Return a report whose first GPU has so many links."""
    data = gpu_node_report("n", 4, BRIDGED)
    data["status"]["gpus"][0]["links"] = [{"gpu": 1 + index % 3, "nvlinks": 1} for index in range(count)]
    return data


def test_a_report_of_a_million_links_is_read_in_bounded_time() -> None:
    report = msgspec.convert(with_links(1_000_000), GPUNode)
    with CpuTimer() as timer:
        error = find_report_error(report)
        devices = devices_from_report(report)

    assert error or devices is not None
    assert timer.seconds < 5
    ranked = prioritize(scheduler_state(gpu_node("n"), gpu_node("m"), with_links(100_000)), TWO, "n", "m")
    assert set(ranked) == {"n", "m"}


def test_a_report_in_the_name_of_another_node_speaks_for_no_other() -> None:
    broken = gpu_node_report("other", 4, {})
    honest = scheduler_state(gpu_node("n"), gpu_node_report("n", 4, BRIDGED))
    beside = scheduler_state(gpu_node("n"), gpu_node_report("n", 4, BRIDGED), broken)

    assert prioritize(beside, TWO, "n") == prioritize(honest, TWO, "n")


def test_a_node_without_a_report_is_ranked_and_never_excluded() -> None:
    silent = scheduler_state(gpu_node("n"), gpu_node("m"), gpu_node_report("n", 4, BRIDGED))
    apply_watch_events(silent, gpu_node_report("n", 4, BRIDGED), deleted=True)

    assert filter_nodes(silent, TWO, "n", "m")["NodeNames"] == ["n", "m"]
    ranked = prioritize(silent, TWO, "n", "m")
    assert sorted(ranked.values()) == [9, 10], "as equal nodes, and one is best"


def test_a_gang_that_is_half_placed_when_its_node_dies_is_placed_again() -> None:
    of = scheduler_state(
        *(node(f"a{index}", "a") for index in range(8)), *(node(f"b{index}", "b") for index in range(8))
    )
    places = {f"m{index}": put(of, member(f"m{index}", size=8)) for index in range(4)}
    dead = places["m0"]
    apply_watch_events(of, node(dead, dead[0]), deleted=True)
    apply_watch_events(of, member("m0", size=8).spec(nodeName=dead).build(), deleted=True)
    asyncio.run(of.rebuild_index())
    later = RESERVATION_SECONDS + 0.1

    again = [put(of, member(name, size=8), now=later) for name in ("m0", "m4", "m5", "m6", "m7")]

    assert dead not in again
    assert len({*again, *(place for name, place in places.items() if name != "m0")}) == 8
    assert RESERVATION_SECONDS <= 30
    lasting = [each.expires_at for name in of.reservations.nodes for each in of.reservations.on_node(name)]
    assert max(lasting, default=0.0) <= later + RESERVATION_SECONDS
