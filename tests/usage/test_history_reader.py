"""Histories read from a real Prometheus, for several exporters and scrape settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import pytest

from tests.usage.exporter import Sample
from tests.usage.fleets import Use, dcgm, owner_samples
from tests.usage.prometheus import PrometheusServer, now
from tests.usage.prometheus_readings import read_from, reading_of
from webhook.errors import UsageError
from webhook.usage import queries
from webhook.usage.history import GAP, UsageHistory
from webhook.usage.prometheus_source import PrometheusSource

HOURS_2 = 24
"""Number of samples in two hours."""


def by_pod(histories: Sequence[UsageHistory]) -> Mapping[str, UsageHistory]:
    """Return the history of each pod's only container."""
    assert len({history.pod for history in histories}) == len(histories)
    return {history.pod: history for history in histories}


OLD = {"namespace": "", "pod": "", "container": "", "pod_namespace": "ml", "pod_name": "a", "container_name": "main"}
LABELS: dict[str, tuple[str, Mapping[str, str]]] = {
    "honorLabels": ("dcgm", {}),
    "exported_pod": ("dcgm, exported", {}),
    "no target labels": ("dcgm, static", {}),
    "pod_name": ("dcgm, exported", OLD),
}


@pytest.mark.parametrize(("job", "labels"), LABELS.values(), ids=LABELS)
def test_all_label_schemes_identify_the_container(
    prometheus: PrometheusServer, job: str, labels: Mapping[str, str]
) -> None:
    end = now()
    use = Use("a", [1000] * HOURS_2 + [3000] * HOURS_2, engine=0.25, capacity=40_000, labels=labels)

    (found,) = reading_of(prometheus, dcgm([use], end), owner_samples("a", [], end), gpus_by=job).histories

    assert (found.workload_key, found.pod, found.image) == (("ml", "Pod/a", "main"), "a", "pytorch:2")
    assert set(found.peaks_mib) == {1000, 3000}
    assert 14 <= len(found.peaks_mib) <= 17
    assert (found.capacity_mib, found.compute_milli, found.active_milli) == (40_000, 250, 250)
    assert found.mean_mib is not None
    assert 1900 < found.mean_mib < 2100


@pytest.mark.parametrize("job", ["dcgm", "dcgm, exported"])
def test_unallocated_gpu_is_not_the_exporters(prometheus: PrometheusServer, job: str) -> None:
    """Without honorLabels its series have the name of the exporter's own pod, as `up` has."""
    end = now()
    no_pod = {"namespace": "", "pod": "", "container": ""}
    up = [Sample("up", no_pod, end - 300 * back, 1) for back in range(HOURS_2)]
    samples = [*dcgm([Use("a", [1000] * HOURS_2), Use("", [0] * HOURS_2, labels=no_pod)], end), *up]

    found = reading_of(prometheus, samples, owner_samples("a", [], end), gpus_by=job).histories

    assert [history.pod for history in found] == ["a"]


CHAINS: dict[str, tuple[list[tuple[str, str]], str]] = {
    "a Deployment": ([("ReplicaSet", "serve-5d4f"), ("Deployment", "serve")], "Deployment/serve"),
    "an Argo Rollout": ([("ReplicaSet", "roll-5d4f"), ("Rollout", "roll")], "Rollout/roll"),
    "a ReplicaSet that was gone before it was asked about": ([("ReplicaSet", "gone-5d4f")], "ReplicaSet/gone-5d4f"),
    "a StatefulSet": ([("StatefulSet", "db")], "StatefulSet/db"),
    "a Job": ([("Job", "train")], "Job/train"),
    "a CronJob": ([("Job", "nightly-29912345"), ("CronJob", "nightly")], "CronJob/nightly"),
    "a JobSet": ([("Job", "llm-node-0"), ("JobSet", "llm")], "JobSet/llm"),
    "an Argo Workflow": ([("Workflow", "train-x7k2p")], "Workflow/train-x7k2p"),
    "a Kubeflow PyTorchJob": ([("PyTorchJob", "llm")], "PyTorchJob/llm"),
    "nobody": ([("<none>", "<none>")], "Pod/nobody"),
}


@pytest.mark.parametrize("job", ["ksm", "ksm, exported"])
def test_workload_of_a_pod(prometheus: PrometheusServer, job: str) -> None:
    """One fleet with every kind of owner chain."""
    end = now()
    names = {why.rpartition(" ")[2].lower(): chain for why, (chain, _) in CHAINS.items()}
    assert len(names) == len(CHAINS)
    owners = [sample for name, chain in names.items() for sample in owner_samples(name, chain, end)]
    gpus = dcgm([Use(name, [100] * HOURS_2) for name in names], end)

    found = by_pod(reading_of(prometheus, gpus, owners, owners_by=job).histories)

    wanted = {why.rpartition(" ")[2].lower(): workload for why, (_, workload) in CHAINS.items()}
    assert {pod: history.workload for pod, history in found.items()} == wanted


def test_mig_usage_is_a_share_of_the_card(prometheus: PrometheusServer) -> None:
    """Activity is relative to the instance, and converted to a share of the card."""
    end = now()
    mig = [
        Use(f"i{i}", [1000 * i] * HOURS_2, engine=0.5, uuid="GPU-1", labels={"GPU_I_PROFILE": profile, "GPU_I_ID": i})  # type: ignore[dict-item] # written as text
        for i, profile in ((1, "1g.5gb"), (2, "3g.20gb"))
    ]

    found = by_pod(reading_of(prometheus, dcgm(mig, end)).histories)

    assert {pod: max(history.peaks_mib) for pod, history in found.items()} == {"i1": 1000, "i2": 2000}
    assert {pod: history.compute_milli for pod, history in found.items()} == {"i1": 65, "i2": 195}  # 14, 42 of 108 SMs
    assert {history.active_milli for history in found.values()} == {500}


def test_fullest_gpu_of_a_container_counts(prometheus: PrometheusServer) -> None:
    end = now()
    two = [
        Use("a", [memory] * HOURS_2, engine=engine, uuid=f"GPU-{memory}") for memory, engine in ((900, 0.1), (700, 0.4))
    ]

    (found,) = reading_of(prometheus, dcgm(two, end)).histories

    assert (max(found.peaks_mib), found.mean_mib, found.active_milli) == (900, 900, 400)


def test_two_exporters_for_one_gpu_count_once(prometheus: PrometheusServer) -> None:
    end = now()
    samples = list(dcgm([Use("a", [1000] * HOURS_2, engine=0.5)], end))
    selector = prometheus.feed({"dcgm": samples, "dcgm, another": samples})

    (found,) = read_from(PrometheusSource(prometheus.url, selector=selector, days=1)).histories

    assert (set(found.peaks_mib), found.mean_mib, found.compute_milli) == ({1000}, 1000, 500)


@pytest.mark.parametrize("job", ["dcgm", "dcgm, exported"])
def test_gpus_and_mig_instances_of_a_container_are_counted(prometheus: PrometheusServer, job: str) -> None:
    end = now()
    uses = [
        *(Use("many", [1000] * HOURS_2, uuid=f"GPU-{index}") for index in range(4)),
        *(Use("slices", [1000] * HOURS_2, uuid="GPU-5", labels={"GPU_I_ID": str(index)}) for index in (1, 2)),
        Use("one", [1000] * HOURS_2),
    ]
    owners = [sample for pod in ("many", "slices", "one") for sample in owner_samples(pod, [], end)]

    found = by_pod(reading_of(prometheus, dcgm(uses, end), owners, gpus_by=job).histories)

    assert {pod: history.gpus for pod, history in found.items()} == {"many": 4, "slices": 2, "one": 1}


def test_usage_of_a_shared_gpu_is_ignored(prometheus: PrometheusServer) -> None:
    """Each of the two pods shows the usage of both."""
    end = now()
    uses = [
        Use("one", [9000] * HOURS_2, uuid="GPU-shared"),
        Use("other", [9000] * HOURS_2, uuid="GPU-shared"),
        Use("alone", [100] * HOURS_2),
    ]

    reading = reading_of(prometheus, dcgm(uses, end))

    assert [history.pod for history in reading.histories] == ["alone"]


class InvalidSamples(NamedTuple):
    """Samples, oldest first, and the expected bins."""

    memory: Sequence[float | str]
    want: set[int]


INVALID_SAMPLES = {
    "NaN": InvalidSamples([1000, "NaN", 1000, 1000] * 6, {1000}),
    "infinite": InvalidSamples([1000] * 12 + ["+Inf"] * 12, {1000, GAP}),
    "negative": InvalidSamples([1000] * 12 + [-5] * 12, {1000, GAP}),
    "above the maximum": InvalidSamples([1000] * 12 + [1e15] * 12, {1000, GAP}),
}


@pytest.mark.parametrize("samples", INVALID_SAMPLES.values(), ids=INVALID_SAMPLES)
def test_invalid_amounts_are_ignored(prometheus: PrometheusServer, samples: InvalidSamples) -> None:
    (found,) = reading_of(prometheus, dcgm([Use("a", samples.memory)], now())).histories

    assert set(found.peaks_mib) | {GAP} == samples.want | {GAP}


@pytest.mark.parametrize("word", ["NaN", "+Inf", "-1"])
def test_container_without_valid_samples_is_reported(prometheus: PrometheusServer, word: str) -> None:
    reading = reading_of(prometheus, dcgm([Use("a", [word] * HOURS_2), Use("b", [5] * HOURS_2)], now()))

    assert [history.pod for history in reading.histories] == ["b"]
    assert any("1 of 2 containers have no valid memory samples" in note for note in reading.notes)


def test_gap_is_not_zero_usage(prometheus: PrometheusServer) -> None:
    end = now()
    samples = [sample for sample in dcgm([Use("a", [1000] * 96)], end) if not end - 14_400 < sample.moment < end - 3600]

    (found,) = reading_of(prometheus, samples).histories

    assert set(found.peaks_mib) == {1000, GAP}
    assert 10 <= sum(reading == GAP for reading in found.peaks_mib) <= 12


def test_xid_counts_when_the_code_changes(prometheus: PrometheusServer) -> None:
    """The metric keeps the last code, so the first code of a pod is that of the pod before."""
    end = now()
    uses = [Use("faulty", [5] * 48, xids=[0] * 24 + [31] * 24), Use("next", [5] * 48, xids=[43] * 48)]

    found = by_pod(reading_of(prometheus, dcgm(uses, end)).histories)

    ((moment, code),) = found["faulty"].xids
    assert code == 31
    assert end - 7200 <= moment <= end - 3600 + 300
    assert found["next"].xids == ()


def restart_samples(pod: str, restarts: Sequence[int], end: float) -> list[Sample]:
    """Return the series of kube-state-metrics for an OOM-killed container."""
    labels = {"namespace": "ml", "pod": pod, "container": "main"}
    moments = [end - 300 * back for back in range(len(restarts) - 1, -1, -1)]
    return [
        *(Sample(queries.RESTARTS, labels, moment, count) for moment, count in zip(moments, restarts, strict=True)),
        *(
            Sample(queries.LAST_TERMINATION, {**labels, "reason": "OOMKilled"}, moment, int(count > 0))
            for moment, count in zip(moments, restarts, strict=True)
        ),
    ]


RESTARTS = {
    "killed twice, hours apart": ([0] * 24 + [1] * 24 + [2] * 6, 2),
    "killed, and the counter was reset": ([0] * 24 + [3] * 24 + [0] * 6, 2),
    "never": ([0] * 48, 0),
    "killed before the period": ([4] * 48, 0),
}


@pytest.mark.parametrize(("restarts", "kills"), RESTARTS.values(), ids=RESTARTS)
def test_oom_kills_are_counted(prometheus: PrometheusServer, restarts: list[int], kills: int) -> None:
    end = now()
    owners = [*owner_samples("a", [], end), *restart_samples("a", restarts, end)]

    (found,) = reading_of(prometheus, dcgm([Use("a", [5] * 48)], end), owners).histories

    assert len(found.ooms) == kills
    assert all(end - 86_400 < moment <= end + 60 for moment in found.ooms)


def test_oom_kill_without_restart_counts_once(prometheus: PrometheusServer) -> None:
    end = now()
    dead = {"namespace": "ml", "pod": "a", "container": "main", "reason": "OOMKilled"}
    owners = [
        *owner_samples("a", [], end),
        *(Sample(queries.TERMINATION, dead, end - 300 * back, 1) for back in range(40)),
    ]

    (found,) = reading_of(prometheus, dcgm([Use("a", [5] * 48)], end), owners).histories

    assert len(found.ooms) == 1


SERVE = [("StatefulSet", "serve")]


def test_oom_kill_without_gpu_samples_counts(prometheus: PrometheusServer) -> None:
    end, killed = now(), [0] * 24 + [1] * 24
    owners = [*owner_samples("a", SERVE, end), *owner_samples("b", SERVE, end), *owner_samples("web", [], end)]
    owners += [*restart_samples("b", killed, end), *restart_samples("web", killed, end)]

    reading = reading_of(prometheus, dcgm([Use("a", [5] * 48)], end), owners)

    assert {pod: len(one.ooms) for pod, one in by_pod(reading.histories).items()} == {"a": 0, "b": 1}
    assert by_pod(reading.histories)["b"].lacks_readings
    assert not any("no valid memory" in note for note in reading.notes)


def test_failures_count_without_valid_memory_samples(prometheus: PrometheusServer) -> None:
    end = now()
    owners = [*owner_samples("a", [], end), *restart_samples("a", [0] * 24 + [1] * 24, end)]
    gpu = Use("a", ["NaN"] * 48, xids=[0] * 24 + [31] * 24)

    (found,) = reading_of(prometheus, dcgm([gpu], end), owners).histories

    assert found.lacks_readings
    assert (len(found.ooms), [code for _, code in found.xids]) == (1, [31])


def test_without_kube_state_metrics_usage_is_stored_by_pod(prometheus: PrometheusServer) -> None:
    reading = reading_of(prometheus, dcgm([Use("serve-5d4f-x", [5] * HOURS_2)], now()))

    assert [history.workload for history in reading.histories] == ["Pod/serve-5d4f-x"]
    assert any("kube_pod_owner has no series" in note for note in reading.notes)


def test_without_profiling_compute_is_gpu_util_and_idle_is_unknown(prometheus: PrometheusServer) -> None:
    end = now()
    use = Use("a", [5] * HOURS_2)
    busy = [Sample(queries.GPU_UTIL, use.series(), end - 300 * back, 30) for back in range(HOURS_2)]

    reading = reading_of(prometheus, [*dcgm([use], end), *busy])

    assert [(history.compute_milli, history.active_milli) for history in reading.histories] == [(300, None)]
    assert any("DCGM_FI_PROF_GR_ENGINE_ACTIVE has no series" in note for note in reading.notes)
    assert any("DCGM_FI_DEV_FB_FREE has no series" in note for note in reading.notes)


MISSING_METRICS = {
    "no exporter": ([Sample("up", {}, now(), 1)], "must have metrics of DCGM exporter, found none"),
    "an exporter without memory": ([Sample("DCGM_FI_DEV_GPU_TEMP", {}, now(), 40)], "must have DCGM_FI_DEV_FB_USED"),
    "relabeled pod labels": (
        [Sample("DCGM_FI_DEV_FB_USED", {"k8s_pod": "a"}, now(), 5)],
        "must have a label with the pod (pod, exported_pod or pod_name), found none",
    ),
}


@pytest.mark.parametrize(("samples", "sentence"), MISSING_METRICS.values(), ids=MISSING_METRICS)
def test_missing_metrics_are_reported(prometheus: PrometheusServer, samples: list[Sample], sentence: str) -> None:
    with pytest.raises(UsageError) as error:
        reading_of(prometheus, samples, gpus_by="dcgm, static")

    assert sentence in str(error.value)


def test_too_many_containers_are_rejected(prometheus: PrometheusServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("webhook.usage.history_reader.MAX_SERIES", 3)

    with pytest.raises(UsageError) as error:
        reading_of(prometheus, dcgm([Use(f"p{i}", [5] * HOURS_2) for i in range(4)], now()))

    assert "must have at most 3 containers with GPUs at once, found 4. Write --prometheus-selector" in str(error.value)


def test_large_fleet_is_read_with_larger_bins_in_parts(
    prometheus: PrometheusServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("webhook.usage.history_reader.MAX_POINTS", 100)
    monkeypatch.setattr("webhook.usage.history_reader.POINTS_PER_ANSWER", 10)
    end = now()

    found = by_pod(reading_of(prometheus, dcgm([Use(p, range(280)) for p in "abc"], end)).histories)

    assert {history.step_seconds for history in found.values()} == {3600}
    assert len({tuple(history.peaks_mib) for history in found.values()}) == 1
    assert list(found["a"].peaks_mib) == sorted(found["a"].peaks_mib)
    assert len(found["a"].peaks_mib) >= 22
