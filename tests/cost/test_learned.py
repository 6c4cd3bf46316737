"""What is learned from measurements, and what is refused."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.cost import measured
from tvmfuse.cost import data, examples, judging, kernel, shipped, training
from tvmfuse.cost.extraction import extract
from tvmfuse.cost.features import UNKNOWN, Features, Resources
from tvmfuse.cost.learned import Learned
from tvmfuse.cost.rates import Rates
from tvmfuse.cost.roofline import Roofline
from tvmfuse.cost.trained import Trained, class_of
from tvmfuse.errors import CostModelError
from tvmfuse.plan import Candidate, OpGraph, Peaks


@pytest.fixture(scope="module")
def trained() -> Trained:
    return measured.trained()


def row(graph: OpGraph, rates: Rates | None = None) -> Features:
    return extract(graph, kernel.together(graph), measured.PEAKS, rates=rates)


def test_law_of_the_machine_is_learned(trained: Trained) -> None:
    model = Learned(trained, measured.PEAKS)
    graphs = [measured.elementwise(3 << 14, 3), measured.product(48, 192, 80, epilogue=1)]
    predictions = model.kernels([row(graph, model.rates) for graph in graphs])
    for graph, prediction in zip(graphs, predictions, strict=True):
        assert prediction.is_known
        assert prediction.us == pytest.approx(measured.true_us(graph), rel=0.3)
    assert trained.metrics["unseen_median_error"] < 0.2 < trained.metrics["prior_median_error"]


def test_model_no_better_than_the_roofline_on_what_it_had_not_seen_is_not_used(
    trained: Trained,
) -> None:
    worse = {**trained.metrics, "unseen_median_error": 0.5, "prior_median_error": 0.4}
    chosen = shipped.learned(replace(trained, metrics=worse), measured.PEAKS)
    assert isinstance(chosen.model, Roofline)
    assert "off by 50 %" in chosen.note
    assert "the roofline by 40 %" in chosen.note
    disordered = {**trained.metrics, "unseen_rank_correlation": 0.7, "prior_rank_correlation": 0.8}
    chosen = shipped.learned(replace(trained, metrics=disordered), measured.PEAKS)
    assert isinstance(chosen.model, Roofline)
    assert isinstance(shipped.learned(trained, measured.PEAKS).model, Learned)


def test_stranger_gets_the_prior(trained: Trained) -> None:
    huge = row(measured.elementwise(1 << 28, 2))
    (prediction,) = Learned(trained, measured.PEAKS).kernels([huge])
    assert not prediction.is_known
    assert prediction.us == huge.prior_us
    assert not trained.knows(replace(huge, element_bytes=2.0))


def test_schedules_of_records_are_told_from_those_of_a_family() -> None:
    def us(graph: OpGraph) -> float:
        return 2.0 * measured.true_us(graph)

    found = measured.measurements()
    twice = measured.measurements(us)
    tuned = [replace(each, schedule="tuned") for each in found.kernels]
    both = replace(found, kernels=(*twice.kernels, *tuned))
    model = training.train(measured.RUN, examples.of([both]), boosting_rounds=60)
    graph = measured.product(64, 192, 96, epilogue=1)
    candidate = Candidate("p", "gemm", "main", (0, 1), graph)
    plain = Learned(model, measured.PEAKS).predict(candidate)
    quick = Learned(model, measured.PEAKS, tuned=[kernel.unplaced(graph)]).predict(candidate)
    assert quick.fused_us == pytest.approx(plain.fused_us / 2, rel=0.25)
    assert quick.unfused_us == plain.unfused_us  # no record of an operator alone


def test_device_without_measured_peaks_has_those_of_the_model(trained: Trained) -> None:
    assert Learned(trained, replace(measured.PEAKS, source="default")).peaks == measured.PEAKS
    mine = replace(measured.PEAKS, gflops=77.0)
    assert Learned(trained, mine).peaks == mine


def test_model_survives_text(trained: Trained) -> None:
    again = Trained.from_text(trained.to_text())
    assert again == replace(trained, peaks=again.peaks)
    graph = row(measured.elementwise(4096, 3))
    before, after = (Learned(t, measured.PEAKS).kernels([graph]) for t in (trained, again))
    assert before == after


def test_contributions_multiply_to_the_prediction(trained: Trained) -> None:
    model, graph = Learned(trained, measured.PEAKS), row(measured.elementwise(4096, 3))
    (prediction,) = model.kernels([graph])
    assert set(model.contributions(graph)) == set(Features.names())
    assert prediction.us != graph.prior_us


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda text: text.replace("Test CPU", "Best CPU", 1), "checksum"),
        (lambda text: text[: len(text) // 2], "JSON"),
        (lambda text: "", "JSON"),
        (lambda text: "[]", "JSON"),
        (lambda text: '{"sha256": 1}', "JSON"),
    ],
)
def test_damaged_model_is_refused(trained: Trained, spoil: Callable[[str], str], says: str) -> None:
    with pytest.raises(CostModelError, match=says):
        Trained.from_text(spoil(trained.to_text()))


def test_model_of_other_features_is_refused(
    trained: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = trained.to_text()
    monkeypatch.setattr("tvmfuse.cost.features.VERSION", 99)
    with pytest.raises(CostModelError, match="version 99"):
        Trained.from_text(text)


def test_trees_that_are_none_are_refused(trained: Trained) -> None:
    with pytest.raises(CostModelError, match="cannot read its trees"):
        Learned(replace(trained, trees=({"version": [1, 2, 3]},)), measured.PEAKS)


def test_prior_stands_in_where_xgboost_is_missing(
    trained: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "xgboost", None)
    monkeypatch.setattr(shipped, "trained", lambda family: trained)
    found = shipped.best("x86-64-v3", measured.PEAKS)
    assert isinstance(found.model, Roofline)
    assert "pip install xgboost" in found.note


def test_missing_xgboost_is_named(trained: Trained, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "xgboost", None)
    with pytest.raises(CostModelError, match="pip install xgboost"):
        Learned(trained, measured.PEAKS)


def test_device_that_nobody_learned_on_gets_the_prior() -> None:
    found = shipped.best("pdp-11", measured.PEAKS)
    assert isinstance(found.model, Roofline)
    assert found.note == (
        "times are predicted by the roofline alone: cost model: none has learned on pdp-11; "
        "'tvmfuse tune' measures what one learns from"
    )


def test_every_shipped_model_loads() -> None:
    folder = Path(shipped.__file__).parent / "models"
    for path in folder.glob("*.json"):
        model = shipped.trained(path.stem)
        assert model.device_family == path.stem
        assert Learned(model, Peaks(1.0, {"dram": 1.0})).kernels([row(measured.product(8, 8, 8))])


def test_resources_of_an_assembler_are_learned_from_and_may_be_missing() -> None:
    def us(graph: OpGraph) -> float:
        return measured.true_us(graph) * (4.0 if len(graph.ops) > 2 else 1.0)

    found = measured.measurements(us)
    spills = [
        replace(k, resources=Resources(255, 64) if len(k.graph.ops) > 2 else Resources(32))
        for k in found.kernels
    ]
    rows = examples.of([replace(found, kernels=tuple(spills))])
    model = Learned(training.train(measured.RUN, rows, boosting_rounds=60), measured.PEAKS)
    graph = measured.elementwise(4096, 3)
    known = [
        extract(graph, kernel.together(graph), measured.PEAKS, rates=model.rates, resources=r)
        for r in (Resources(32), Resources(255, 64), UNKNOWN)
    ]
    quick, slow, unknown = model.kernels(known)
    assert slow.us > 1.5 * quick.us
    assert np.isfinite(unknown.us)


class TestTraining:
    def examples(self, n: int) -> list[examples.Example]:
        return examples.of([measured.measurements()])[:n]

    @pytest.mark.parametrize("n", [0, 3, 99])
    def test_too_little_is_refused(self, n: int) -> None:
        with pytest.raises(CostModelError, match=f"but got {n} of"):
            training.train(measured.RUN, self.examples(n))

    def test_one_architecture_is_too_little(self) -> None:
        alike = [replace(example, model_family="one") for example in self.examples(200)]
        with pytest.raises(CostModelError, match="of 1;"):
            training.train(measured.RUN, alike)

    def test_times_that_are_none_are_left_out(self) -> None:
        broken = [
            replace(e, us=us) for e, us in zip(self.examples(3), (0.0, np.nan, -1.0), strict=True)
        ]
        few = [*self.examples(99), *broken]
        with pytest.raises(CostModelError, match="but got 99 of"):
            training.train(measured.RUN, few)

    def test_two_devices_do_not_mix(self) -> None:
        other = replace(measured.RUN, device="Other CPU")
        mixed = [measured.measurements(), measured.measurements(run=other)]
        with pytest.raises(CostModelError, match="Other CPU"):
            examples.of(mixed)

    def test_same_data_give_the_same_model(self, trained: Trained) -> None:
        assert measured.trained().to_text() == trained.to_text()

    def test_equal_kernels_count_once(self) -> None:
        once = examples.of([measured.measurements()])
        twice = examples.of([measured.measurements(), measured.measurements()])
        assert len(once) == len(twice)

    def test_held_out_architectures_are_not_seen(self) -> None:
        seen, unseen = examples.split([measured.measurements()], {"family of net0"})
        assert {k.model for k in unseen[0].kernels} == {"net0"}
        assert "net0" not in {k.model for k in seen[0].kernels}
        assert len(unseen[0].plans) == 1


def test_classes_are_told_by_the_work() -> None:
    assert class_of(row(measured.product(8, 8, 8, epilogue=2))) == "matmul"
    assert class_of(row(measured.elementwise(64, 2))) == "elementwise"


class TestJudging:
    def test_model_that_knows_all_is_perfect(self) -> None:
        class Oracle:
            def predict(self, candidate):
                us = measured.true_us(candidate.graph) if candidate.graph.ops else 0.0
                return Roofline(measured.PEAKS).predict(candidate).__class__(us, us + 1.0)

        for score in judging.judge([measured.measurements()], Oracle()):
            assert score.rank_correlation == pytest.approx(1.0)
            assert score.median_error == pytest.approx(0.0)
            assert score.noise == pytest.approx(0.0)

    def test_decision_compares_a_group_with_its_operators(self) -> None:
        pair, graphs = measured.elementwise(4096, 2), []
        for pattern, graph, us in (
            ("p", pair, 5.0),
            ("single", kernel.alone(pair, pair.ops[0]), 3.0),
            ("single", kernel.alone(pair, pair.ops[1]), 4.0),
        ):
            place = tuple(op.binding for op in graph.ops)
            about = ("net", "family", "plan", pattern, "elementwise", "family", graph)
            graphs.append(data.MeasuredKernel(*about, us - data.CALL_US, 0.0, 1, (place,)))
        (found,) = judging.decisions(graphs)
        assert (found.fused_us, found.apart_us) == pytest.approx((5.0, 7.0))
        assert found.is_clear
        assert not list(judging.decisions(graphs[:2]))


class TestData:
    def test_measurements_survive_text(self, tmp_path: Path) -> None:
        found = measured.measurements()
        path = tmp_path / "m.jsonl"
        text = [data.run_line(found.run), *data.lines(found.kernels, found.plans)]
        path.write_text("\n".join(text) + "\n")
        (again,) = data.read(path)
        assert again.run == found.run
        assert again.plans == found.plans
        assert [k.graph for k in again.kernels] == [k.graph for k in found.kernels]
        assert again.kernels[0].resources is None
        path.write_text("\n".join(text) + '\n{"graph": [[')
        assert len(data.read(path)[0].kernels) == len(found.kernels)

    def test_resources_survive_text(self) -> None:
        each = replace(measured.measurements().kernels[0], resources=Resources(40, 8, 1024))
        (line,) = data.lines([each], ())
        assert data.kernel_of(line).resources == each.resources

    @pytest.mark.parametrize("us", [0, -1, "NaN", None, "fast"])
    def test_time_that_is_none_is_named(self, tmp_path: Path, us: object) -> None:
        found = measured.measurements()
        lines = [data.run_line(found.run), *data.lines(found.kernels[:2], ())]
        broken = json.loads(lines[1])
        broken["us"] = us
        path = tmp_path / "m.jsonl"
        text = json.dumps(broken).replace('"NaN"', "NaN")
        path.write_text("\n".join([lines[0], text, lines[2]]) + "\n")
        with pytest.raises(CostModelError, match="line 2"):
            data.read(path)

    def test_file_that_is_no_measurement_is_named(self, tmp_path: Path) -> None:
        path = tmp_path / "diary.txt"
        path.write_text("dear diary\nnothing\n")
        with pytest.raises(CostModelError, match=r"diary\.txt: line 1"):
            data.read(path)
