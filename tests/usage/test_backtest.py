"""The backtest: the protocol's baselines match the published figures, and the estimator uses no future data."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.gentd26 import HOUR, Decision, Pod, decisions, history_of, read_trace, score, synthetic_trace
from benchmarks.hourly_limits import chosen, pool_of
from benchmarks.rightsizing import PUBLISHED, baseline_limits, format_score, main


@pytest.fixture(scope="module")
def trace(shared: Path) -> list[Pod]:
    """Return the published day."""
    folder = shared / "traces" / "gentd26"
    if not folder.is_dir():
        pytest.skip("needs the trace gentd26 in ../shared/traces, which is not there")
    return read_trace(folder)


@pytest.fixture(scope="module")
def replayed_decisions(trace: list[Pod]) -> list[Decision]:
    """Return every decision of the published day."""
    return decisions(trace)


def test_protocol_has_the_published_number_of_decisions(trace: list[Pod], replayed_decisions: list[Decision]) -> None:
    assert (len(trace), sum(pod.at.size for pod in trace)) == (144, 161_413)
    assert (len({each.pod.name for each in replayed_decisions}), len(replayed_decisions)) == (128, 2415)


def test_baselines_match_the_published_figures(trace: list[Pod], replayed_decisions: list[Decision]) -> None:
    found = {
        name: format_score(score(replayed_decisions, limits))
        for name, limits in baseline_limits(replayed_decisions, trace).items()
    }
    for name, want in PUBLISHED.items():
        assert [text for text, published in zip(found[name], want, strict=True) if published] == list(
            filter(None, want)
        )


def test_estimator_meets_the_acceptance_bounds(trace: list[Pod], replayed_decisions: list[Decision]) -> None:
    found = chosen(replayed_decisions, pool_of(trace), (0.02, 0.005))
    half, strict = (score(replayed_decisions, found.priced[target]) for target in (0.02, 0.005))
    assert half.overrun <= 2
    assert round(half.slack, 1) <= 38.5
    assert strict.overrun <= 0.5
    assert round(strict.slack, 1) <= 46
    assert abs(100 * found.stated[0.02].mean() - half.overrun) < 0.75, "the stated risk is close to the observed one"


def cut(pod: Pod, until: float) -> Pod:
    """Return a pod as known at some time, with a fictitious future."""
    return pod._replace(used=np.where(pod.at <= until, pod.used, 1.0))


def test_limits_use_only_earlier_data() -> None:
    pods = synthetic_trace()
    moment = float(pods[0].at[0]) + 6 * HOUR
    all_decisions = [each for each in decisions(pods) if each.at + HOUR <= moment]
    other = [cut(pod, moment) for pod in pods]
    cut_decisions = [each for each in decisions(other) if each.at + HOUR <= moment]
    whole, part = (chosen(a, pool_of(b), (0.02,)) for a, b in ((all_decisions, pods), (cut_decisions, other)))
    assert len(all_decisions) >= 40
    assert (whole.at_prices == part.at_prices).all()
    assert (whole.priced[0.02] == part.priced[0.02]).all()


def test_bin_includes_the_sample_at_its_end() -> None:
    pod = Pod("p", np.array([1000.0, 1057.0, 1171.0]), np.array([1.0, 2.5, 3.0]))
    record = history_of(pod)
    assert record.peaks_mib.tolist() == [1, 3, -1, 3]
    assert record.end == 1171


def test_benchmark_runs_without_a_trace(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert "| the estimator |" in capsys.readouterr().out


def test_missing_trace_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["--trace", str(tmp_path)])
    assert end.value.code == 2
    assert f"--trace: must be a folder of the trace, found no {tmp_path}" in capsys.readouterr().err
