from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tvmfuse.cost import kernel
from tvmfuse.cost.kernel import Kernel
from tvmfuse.cost.memory import bandwidth_gbps
from tvmfuse.cost.rates import WORKS, Rates
from tvmfuse.cost.roofline import Roofline
from tvmfuse.plan import Candidate, OpGraph, Peaks

KINDS = ("elementwise", "reduction", "matmul", "conv", "injective", "opaque")
RATES = Rates()

sizes = st.integers(0, 1 << 32)
kernels = st.builds(
    Kernel,
    flops=st.just({}),
    effort=st.dictionaries(st.sampled_from(WORKS), st.floats(0, 1e12)),
    starts_threads=st.booleans(),
    activation_bytes=sizes,
    constant_bytes=sizes,
    written_bytes=sizes,
    parallelism=st.integers(1, 1 << 30),
)
rates = st.floats(1.0, 1e4)
devices = st.builds(
    Peaks,
    gflops=rates,
    bandwidth_gbps=st.fixed_dictionaries(dict.fromkeys(("l1", "l2", "l3", "dram"), rates)),
    cache_bytes=st.fixed_dictionaries({"l1": sizes, "l2": sizes, "l3": sizes}),
    dispatch_us=st.floats(0.0, 100.0),
    cores=st.integers(1, 128),
)


def candidate(graph: OpGraph) -> Candidate:
    return Candidate("p", "f", "main", tuple(op.binding for op in graph.ops), graph)


def at_most(left: float, right: float) -> bool:
    return left <= right * (1 + 1e-9)


@given(
    devices,
    kernels,
    st.sampled_from(["activation_bytes", "constant_bytes", "written_bytes"]),
    sizes,
)
def test_more_bytes_are_never_faster(peaks, work, name, more):
    roofline = Roofline(peaks)
    grown = replace(work, **{name: getattr(work, name) + more})
    assert at_most(roofline.kernel_us(work), roofline.kernel_us(grown))


@given(devices, kernels, st.data(), st.floats(0, 1e12))
def test_more_operations_are_never_faster(peaks, work, data, more):
    kind = data.draw(st.sampled_from(WORKS))
    roofline = Roofline(peaks)
    grown = replace(work, effort={**work.effort, kind: work.effort.get(kind, 0.0) + more})
    assert at_most(roofline.kernel_us(work), roofline.kernel_us(grown))


@given(devices, kernels, st.sampled_from(["l1", "l2", "l3", "dram"]), st.floats(1.0, 100.0))
def test_better_device_is_never_slower(peaks, work, level, factor):
    before = Roofline(peaks).kernel_us(work)
    faster = {**peaks.bandwidth_gbps, level: peaks.bandwidth_gbps[level] * factor}
    assert at_most(Roofline(replace(peaks, bandwidth_gbps=faster)).kernel_us(work), before)
    assert at_most(Roofline(replace(peaks, gflops=peaks.gflops * factor)).kernel_us(work), before)
    quicker = replace(peaks, dispatch_us=peaks.dispatch_us / factor)
    assert at_most(Roofline(quicker).kernel_us(work), before)
    larger = {k: int(v * factor) for k, v in peaks.cache_bytes.items()}
    assert at_most(Roofline(replace(peaks, cache_bytes=larger)).kernel_us(work), before)


def test_fusing_a_chain_saves_intermediates_and_dispatches(chain, peaks):
    size = 1 << 22  # 16 MB: in memory, whether fused or not
    time = Roofline(peaks).predict(candidate(chain("elementwise", "elementwise", size=size)))
    n_bytes = 4 * size
    reached = RATES.reach["dram"] * peaks.bandwidth_gbps["dram"]
    saved_traffic_us = (n_bytes + 2 * n_bytes) / (reached * 1e3)
    assert time.saved_us == pytest.approx(saved_traffic_us + peaks.dispatch_us, rel=0.02)


def test_small_kernels_are_dominated_by_their_call_and_wake_no_core(chain, peaks):
    time = Roofline(peaks).predict(candidate(chain(*["elementwise"] * 5, size=16)))
    assert time.fused_us == pytest.approx(RATES.call_us, rel=0.1)
    assert time.unfused_us == pytest.approx(5 * RATES.call_us, rel=0.1)


def test_large_kernel_pays_for_waking_cores_and_runs_on_all(chain, peaks):
    roofline = Roofline(peaks)
    (woken,) = kernel.together(chain("elementwise", size=1 << 20))
    serial = replace(woken, starts_threads=False)
    wake_us = RATES.wake * peaks.dispatch_us
    spread_us = roofline.kernel_us(woken) - RATES.call_us - wake_us
    one_us = roofline.kernel_us(serial) - RATES.call_us
    assert one_us == pytest.approx(peaks.cores * spread_us)


def test_threads_are_woken_from_as_much_work_as_the_schedules_do(chain, matmul):
    assert not kernel.together(chain("elementwise", size=16383))[0].starts_threads
    assert kernel.together(chain("elementwise", size=16384))[0].starts_threads
    assert not kernel.together(matmul(10, 100, 199))[0].starts_threads
    assert kernel.together(matmul(10, 100, 200))[0].starts_threads


def test_views_cost_nothing(chain, peaks):
    roofline = Roofline(peaks)
    plain = roofline.predict(candidate(chain("elementwise", "elementwise")))
    assert roofline.predict(candidate(chain("elementwise", "view", "elementwise"))) == plain
    only_views = roofline.predict(candidate(chain("view", "view")))
    assert (only_views.fused_us, only_views.unfused_us) == (0.0, 0.0)


@pytest.mark.parametrize("kind", KINDS)
def test_single_operator_costs_the_same_fused_and_apart(chain, peaks, kind):
    time = Roofline(peaks).predict(candidate(chain(kind)))
    assert time.saved_us == 0.0


def test_large_matmul_runs_near_its_share_of_the_peak(matmul, peaks):
    graph = matmul(1024, 1024, 1024)
    time = Roofline(peaks).predict(candidate(graph))
    gflops = 2 * 1024**3 / time.fused_us / 1e3
    assert 0.5 * peaks.gflops < gflops < 0.9 * peaks.gflops


def test_matmul_epilogue_saves_about_the_epilogue(matmul, peaks):
    roofline = Roofline(peaks)
    alone = roofline.predict(candidate(matmul(512, 512, 512))).fused_us
    time = roofline.predict(candidate(matmul(512, 512, 512, epilogue=1)))
    assert alone < time.fused_us < 1.1 * alone
    assert time.saved_us > peaks.dispatch_us


def test_scalar_result_uses_one_core(peaks):
    work = Kernel({}, 4_000_000, 0, 4, parallelism=1, effort={"reduction": 1e6})
    spread = replace(work, parallelism=1 << 20)
    roofline = Roofline(peaks)
    start_us = RATES.call_us + RATES.wake * peaks.dispatch_us
    one = roofline.kernel_us(work) - start_us
    assert one == pytest.approx(peaks.cores * (roofline.kernel_us(spread) - start_us))


def test_level_is_the_nearest_that_holds_the_working_set(peaks):
    assert bandwidth_gbps(peaks, 16 << 10) == 400.0
    assert bandwidth_gbps(peaks, 512 << 10) == 100.0
    assert bandwidth_gbps(peaks, 4 << 20) == 40.0
    assert bandwidth_gbps(peaks, 64 << 20) == 10.0
    assert bandwidth_gbps(peaks, 16, last_cache_only=True) == 40.0


def test_gpu_with_two_levels_is_predicted(chain):
    gpu = Peaks(19_500.0, {"l2": 4000.0, "dram": 1555.0}, {"l2": 40 << 20}, 3.0, cores=108)
    time = Roofline(gpu).predict(candidate(chain("elementwise", "elementwise", size=1 << 26)))
    assert time.fused_us == pytest.approx(3.0 + 4 * 3 * (1 << 26) / 1555e3, rel=0.05)


def test_device_without_caches_reads_from_memory(chain):
    plain = Peaks(100.0, {"dram": 10.0})
    time = Roofline(plain).predict(candidate(chain("elementwise", size=1 << 20)))
    assert time.fused_us == pytest.approx(1.0 + 12 * (1 << 20) / 10e3, rel=0.05)
