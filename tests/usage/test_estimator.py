"""The estimate: from usage histories to a usage view."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.usage.usage_histories import CARD_MIB, NOW, QUARTER, record, steady
from webhook.model.usage import CERTAIN_PPM, RISKS_PPM, ObservedUsage, UsageView
from webhook.usage.estimator import BLOCK_SECONDS, PODS_PER_BATCH, TARGETS_PPM, estimate_usage
from webhook.usage.evidence_pools import MAX_WINDOWS, PRICES, EvidencePool, WindowSpan, thin_span
from webhook.usage.history import MAX_MIB, UsageHistory, UsageWindows

HALF_PERCENT = 5000


def usage_of(view: UsageView, workload: str = "Deployment/serve") -> ObservedUsage:
    """Return the usage of one workload in a view."""
    found = view.find("team", workload, "main")
    assert found is not None
    return found


def fleet(count: int = 20, mib: int = 60_000, hours: int = 240) -> list[UsageHistory]:
    """Return histories of other workloads with much higher usage."""
    return [
        steady(mib, hours=hours, workload=f"Deployment/other-{i}", pod=f"other-{i}", image="other")
        for i in range(count)
    ]


def test_constant_usage_needs_little_more() -> None:
    use = usage_of(estimate_usage([steady(8000), *fleet()], NOW))
    assert (use.memory_mib, use.pool, use.horizon_hours) == (8000, "workload", 24)
    assert 8000 < use.size_mib(HALF_PERCENT) < 9856
    assert use.risk_ppm(7000) > 500_000
    assert use.risk_ppm(CARD_MIB) == RISKS_PPM[-1]


@given(size=st.integers(0, 4 * MAX_WINDOWS))
def test_backtest_windows_are_sampled_evenly(size: int) -> None:
    every = np.arange(size, dtype=np.float64)
    span = WindowSpan(UsageWindows(*[every] * len(UsageWindows._fields)), 1.0)
    pool = EvidencePool("workload", span, span).map_spans(thin_span)

    chosen = pool.run.windows.at
    assert MAX_WINDOWS // 2 <= chosen.size <= MAX_WINDOWS or chosen.size == size <= MAX_WINDOWS
    assert np.unique(np.diff(chosen)).size <= 1
    assert pool.hour is pool.run


def test_unknown_card_memory_never_lowers_the_size() -> None:
    readings = [8000.0 + 40 * (i % 50) for i in range(960)]
    known, unknown, zero = (
        usage_of(estimate_usage([record(readings, capacity_mib=card), *fleet()], NOW)) for card in (CARD_MIB, None, 0)
    )
    for risk in RISKS_PPM[:4]:
        assert (unknown.size_mib(risk) or CARD_MIB) >= (known.size_mib(risk) or 0)
    assert unknown == zero


def test_card_smaller_than_the_peak_never_lowers_the_size() -> None:
    readings = [8000.0 + 40 * (i % 50) for i in range(960)]
    wrong, unknown = (
        usage_of(estimate_usage([record(readings, capacity_mib=card), *fleet()], NOW)) for card in (100, None)
    )
    assert wrong == unknown


def test_spikes_need_more() -> None:
    calm = [8000.0] * 40
    use = usage_of(estimate_usage([record([*calm, 30_000] * 24), *fleet()], NOW))
    assert use.size_mib(HALF_PERCENT) > 30_000
    assert use.risk_ppm(20_000) == 100_000, "four of 41 windows contain the spike"


def test_regular_peaks_are_not_hidden_in_long_runs() -> None:
    """Four pods in ten need 30,000 MiB all the time: four hours in ten, however long the runs."""
    pods = [steady(30_000 if i < 4 else 8000, pod=f"serve-{i}") for i in range(10)]
    assert usage_of(estimate_usage(pods, NOW)).risk_ppm(20_000) == pytest.approx(400_000, rel=0.3)


def test_short_history_has_no_forecast() -> None:
    use = usage_of(estimate_usage([steady(8000, hours=5), *fleet()], NOW))
    assert (use.samples, use.sizes_mib) == (0, ())
    assert use.memory_mib == 8000


def test_short_history_uses_the_pool_of_its_image() -> None:
    twins = [steady(8000, workload=f"Deployment/twin-{i}", pod=f"twin-{i}", image="app") for i in range(4)]
    use = usage_of(estimate_usage([steady(8000, hours=8, image="app"), *twins, *fleet()], NOW))
    assert use.pool == "image"
    assert use.size_mib(HALF_PERCENT) < 9856


def test_history_without_a_nearer_pool_uses_the_fleet() -> None:
    use = usage_of(estimate_usage([steady(8000, hours=8), *fleet()], NOW))
    assert use.pool == "fleet"
    assert use.size_mib(HALF_PERCENT) > 60_000


def nightly(mib: float, runs: int = 7, **fields: Any) -> list[UsageHistory]:
    """Return histories of a job that runs for an hour each night."""
    return [
        record([mib] * 4, pod=f"run-{i}", start=NOW - 7200 - 86_400 * i, workload="CronJob/nightly", **fields)
        for i in range(runs)
    ]


OWN_HISTORIES = {
    "few nights, in a fleet that uses less": nightly(11_500),
    "seven hours, in a fleet that uses less": [steady(11_500, hours=7, workload="CronJob/nightly")],
    "few nights, of an image that uses less": nightly(11_500, image="other"),
    "enough nights, too long ago to count": [
        record([11_500] * 4, pod=f"run-{i}", start=NOW - 86_400 * (30 + i), workload="CronJob/nightly")
        for i in range(40)
    ],
}


@pytest.mark.parametrize("own", OWN_HISTORIES.values(), ids=OWN_HISTORIES)
def test_other_pools_never_size_below_the_own_peak(own: list[UsageHistory]) -> None:
    use = usage_of(estimate_usage([*own, *fleet(mib=6000, hours=48)], NOW), "CronJob/nightly")
    assert use.sizes_mib[0] >= 11_500
    assert use.size_mib(HALF_PERCENT) > 12_000, "an hour may need slightly more than any observed one"


@settings(max_examples=20)
@given(
    own=st.lists(st.lists(st.none() | st.integers(100, 60_000), min_size=1, max_size=40), min_size=1, max_size=8),
    others=st.integers(100, 80_000),
    days=st.integers(0, 60),
    image=st.sampled_from(("", "other")),
)
def test_size_by_other_pools_is_at_least_the_own_peak(
    own: list[list[int | None]], others: int, days: int, image: str
) -> None:
    ago = 86_400 * days
    pods = [
        record(readings, pod=f"p-{i}", start=NOW - ago - QUARTER * len(readings), image=image)
        for i, readings in enumerate(own)
    ]
    use = usage_of(estimate_usage([*pods, *fleet(2, others, hours=24)], NOW))
    if use.sizes_mib and use.pool != "workload":
        assert use.sizes_mib[0] >= use.memory_mib


def test_own_windows_only_increase_the_size() -> None:
    """The image uses more than the workload, so the need of the image counts."""
    twins = [steady(40_000, workload=f"Deployment/twin-{i}", pod=f"twin-{i}", image="app") for i in range(4)]
    use = usage_of(estimate_usage([*nightly(8000, image="app"), *twins], NOW), "CronJob/nightly")
    assert use.pool == "image"
    assert use.size_mib(HALF_PERCENT) > 40_000


def test_jobs_are_sized_by_their_whole_runs() -> None:
    """Forty runs of half an hour; two of them needed twice as much."""
    runs = [
        record([4000, 16_000 if i % 20 == 0 else 8000], pod=f"run-{i}", start=NOW - 40_000 - 7200 * i)
        for i in range(40)
    ]
    use = usage_of(estimate_usage(runs, NOW))
    assert (use.samples, use.horizon_hours) == (40, 1)
    assert use.risk_ppm(10_000) > 50_000
    assert use.size_mib(HALF_PERCENT) > 16_000


def test_oom_kill_blocks_for_a_week_and_increases_the_need() -> None:
    killed = NOW - 3600
    view = estimate_usage([steady(8000, ooms=(killed,)), *fleet()], NOW)
    assert (
        usage_of(view).blocked_reason
        == "it ran out of memory on 2023-11-14 21:13Z, so it is not right-sized until 2023-11-21 21:13Z"
    )
    assert usage_of(view).risk_ppm(40_000) > HALF_PERCENT
    assert usage_of(estimate_usage([steady(8000, ooms=(killed,))], killed + BLOCK_SECONDS)).blocked_reason == ""


@pytest.mark.parametrize(("code", "blocked"), [(31, True), (43, True), (13, True), (79, False), (63, False)])
def test_application_xids_block_and_device_xids_do_not(code: int, blocked: bool) -> None:
    use = usage_of(estimate_usage([steady(8000, xids=((NOW - 60, code),))], NOW))
    assert use.blocked_reason.startswith(f"its GPU reported XID {code} on") is blocked


FAILURES: dict[str, dict[str, Any]] = {"an OOM kill": {"ooms": (NOW - 3600,)}, "an XID": {"xids": ((NOW - 3600, 31),)}}


@pytest.mark.parametrize("failures", FAILURES.values(), ids=FAILURES)
def test_failures_without_memory_samples_block_only(failures: dict[str, Any]) -> None:
    blind = record([None], pod="blind", **failures)
    alone, both = (
        usage_of(estimate_usage([steady(8000)], NOW)),
        usage_of(estimate_usage([steady(8000), blind], NOW)),
    )

    assert "it is not right-sized until 2023-11-21 21:13Z" in both.blocked_reason
    assert msgspec.structs.replace(both, blocked_reason="") == alone
    assert usage_of(estimate_usage([blind, *fleet()], NOW)).blocked_reason == both.blocked_reason


FLAT = {
    "nearly the whole card, constant": ([74_000.0] * 96, CARD_MIB, True),
    "low usage at the start": ([500.0, *[74_000.0] * 95], CARD_MIB, True),
    "half the card": ([40_000.0] * 96, CARD_MIB, False),
    "varying": ([74_000.0, 20_000.0] * 48, CARD_MIB, False),
    "unknown card": ([74_000.0] * 96, None, False),
    "few samples": ([74_000.0] * 4, CARD_MIB, False),
}


@pytest.mark.parametrize(("readings", "card", "want"), FLAT.values(), ids=FLAT)
def test_flat_usage(readings: list[float], card: int | None, want: bool) -> None:
    assert usage_of(estimate_usage([record(readings, capacity_mib=card)], NOW)).preallocates is want


ACTIVITY = {"none": ((0, 0), True), "noise": ((0, 15), True), "of one pod": ((0, 400), False), "unknown": ((), False)}


@pytest.mark.parametrize(("active", "idle"), ACTIVITY.values(), ids=ACTIVITY)
def test_idle_means_no_active_engine(active: tuple[int, ...], idle: bool) -> None:
    pods = [steady(8000, pod=f"serve-{i}", active_milli=each) for i, each in enumerate(active)] or [steady(8000)]
    assert usage_of(estimate_usage(pods, NOW)).is_idle(NOW) is idle


IDLE_HISTORIES = {
    "for ten days": ([steady(8000, active_milli=0)], True),
    "for ten hours": ([steady(8000, hours=10, active_milli=0)], True),
    "for a quarter of an hour": ([record([8000], active_milli=0)], False),
    "for a quarter of an hour, with a pod of unknown activity": (
        [record([8000], active_milli=0), steady(8000, pod="unknown")],
        False,
    ),
    "for ten days, with a new pod of unknown activity": (
        [steady(8000, active_milli=0), record([8000], pod="unknown")],
        False,
    ),
    "in two quarters of an hour, with a gap of hours between": (
        [record([8000, *[None] * 26, 8000], active_milli=0)],
        False,
    ),
    "without samples": ([record([None] * 40, active_milli=0)], False),
    "two days ago, with a gap since": ([record([8000] * 96 + [None] * 192, active_milli=0)], False),
    "by a pod that ended six days ago": ([record([8000] * 96, start=NOW - 7 * 86_400, active_milli=0)], False),
    "by an ended pod and a running one": (
        [record([8000] * 96, start=NOW - 7 * 86_400, active_milli=0), record([8000], pod="now", active_milli=0)],
        True,
    ),
}


@pytest.mark.parametrize(("pods", "idle"), IDLE_HISTORIES.values(), ids=IDLE_HISTORIES)
def test_idle_needs_six_hours_and_recent_samples(pods: list[UsageHistory], idle: bool) -> None:
    use = usage_of(estimate_usage(pods, NOW))
    assert use.is_idle(NOW) is idle
    assert use.samples or not use.is_idle(NOW), "an idle workload has samples"


@pytest.mark.parametrize(("hours", "idle"), [(0, True), (24, True), (25, False), (28 * 24, False)])
def test_idle_ends_a_day_after_the_last_sample(hours: int, idle: bool) -> None:
    """A view may be used long after it was built: a record file may be weeks old."""
    use = usage_of(estimate_usage([steady(8000, active_milli=0)], NOW))
    assert use.is_idle(NOW + 3600 * hours) is idle


GAPS = {
    "six hours": ([8000.0] * 24, True),
    "six hours, with gaps between": ([8000.0, None] * 24, True),
    "two quarters of an hour in seven hours": ([8000.0, *[None] * 26, 8000.0], False),
    "nothing in ten hours": ([None] * 40, False),
}


@pytest.mark.parametrize(("readings", "has_evidence"), GAPS.values(), ids=GAPS)
def test_gaps_are_not_evidence(readings: list[float | None], has_evidence: bool) -> None:
    """The fleet has enough evidence, but the workload itself was observed too briefly."""
    assert bool(usage_of(estimate_usage([record(readings), *fleet()], NOW)).samples) is has_evidence


@settings(max_examples=20)
@given(st.lists(st.integers(1, 60), min_size=1, max_size=4), st.integers(0, 10))
def test_idle_workload_has_samples(bins: list[int], days: int) -> None:
    pods = [
        record([8000] * many, pod=f"p-{i}", start=NOW - 86_400 * days - QUARTER * many, active_milli=0)
        for i, many in enumerate(bins)
    ]
    use = usage_of(estimate_usage(pods, NOW))
    assert use.samples or not use.is_idle(NOW)


def test_compute_is_the_largest_of_the_pods() -> None:
    assert (
        usage_of(
            estimate_usage([steady(8, compute_milli=100), steady(8, pod="b", compute_milli=300)], NOW)
        ).compute_milli
        == 300
    )


COMPUTE = {
    "both are known": ({"compute_milli": 100, "active_milli": 900}, 100),
    "only engine activity is known": ({"active_milli": 900}, 900),
    "neither is known": ({}, None),
}


@pytest.mark.parametrize(("fields", "want"), COMPUTE.values(), ids=COMPUTE)
def test_compute_falls_back_to_engine_activity(fields: dict[str, int], want: int | None) -> None:
    assert usage_of(estimate_usage([steady(8, **fields)], NOW)).compute_milli == want


def test_prices_exist_for_every_target_and_decrease() -> None:
    rng = np.random.default_rng(1)
    pods = [
        record(rng.gamma(4, 3000, 240).tolist(), workload=f"Deployment/w-{i}", pod=f"w-{i}", capacity_mib=CARD_MIB)
        for i in range(20)
    ]
    prices = dict(estimate_usage(pods, NOW).prices)
    assert tuple(prices) == TARGETS_PPM
    assert list(prices.values()) == sorted(prices.values(), reverse=True)
    assert prices[500] > prices[40_000] > 0


def test_peaks_beyond_the_card_do_not_count_as_overruns() -> None:
    """A price is still found: a limit of a whole card cannot be overrun."""
    every_hour = tuple(range(NOW - 240 * 3600, NOW, 3600))
    pods = [steady(8000, workload=f"Deployment/w-{i}", pod=f"w-{i}", ooms=every_hour) for i in range(10)]
    assert dict(estimate_usage(pods, NOW).prices)[40_000] < 1000 * PRICES[-1] / 10


@pytest.mark.parametrize("card", [None, 100, CARD_MIB])
def test_mean_beyond_the_card_is_accepted(card: int | None) -> None:
    use = usage_of(estimate_usage([steady(8000, mean_mib=1_000_000, capacity_mib=card)], NOW))
    assert max(use.sizes_mib) <= use.card_mib


def test_no_histories_give_an_empty_view() -> None:
    assert estimate_usage([], NOW).observed == {}


READING = st.none() | st.floats(0, MAX_MIB) | st.floats(0, 60_000)


@settings(max_examples=40)
@given(
    st.lists(
        st.tuples(st.lists(READING, max_size=120), st.integers(0, 200), st.none() | st.integers(1, 100_000)),
        min_size=1,
        max_size=6,
    )
)
def test_any_recording_gives_a_valid_curve(
    pods: list[tuple[list[float | None], int, int | None]],
) -> None:
    records = [
        record(readings, pod=f"p-{i}", start=NOW - QUARTER * (len(readings) + ago), capacity_mib=card, mean_mib=None)
        for i, (readings, ago, card) in enumerate(pods)
    ]
    use = usage_of(estimate_usage(records, NOW))
    assert list(use.sizes_mib) == sorted(use.sizes_mib)
    assert len(use.sizes_mib) in (0, len(RISKS_PPM))
    assert all(size <= use.card_mib for size in use.sizes_mib)
    assert all(0 < use.risk_ppm(size) <= CERTAIN_PPM for size in (0, 1000, 50_000, 200_000))


@settings(max_examples=15)
@given(st.lists(st.integers(1000, 60_000), min_size=40, max_size=120), st.sampled_from(RISKS_PPM))
def test_size_for_a_risk_has_at_most_that_risk(readings: list[int], risk: int) -> None:
    use = usage_of(estimate_usage([record(readings)], NOW))
    if use.sizes_mib:
        assert use.risk_ppm(use.size_mib(risk)) <= risk
        assert use.risk_ppm(use.size_mib(risk) - 1) > risk or use.size_mib(risk) == use.sizes_mib[0]


def test_estimate_does_not_depend_on_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workloads of one to three pods, of four lengths, in several batches."""
    pods = [
        steady(1000.0 + 37 * i % 9000, hours=(3, 7, 40, 240)[i % 4], workload=f"Deployment/{i % 150}", pod=f"serve-{i}")
        for i in range(3 * PODS_PER_BATCH // 2)
    ]
    many = estimate_usage(pods, NOW)
    monkeypatch.setattr("webhook.usage.estimator.PODS_PER_BATCH", 1)

    assert estimate_usage(pods, NOW) == many
    assert {observed.pool for observed in many.observed.values()} == {"workload", "fleet"}
