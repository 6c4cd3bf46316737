"""Calibration: its kernels compute what they claim, its results are kept and found."""

import json
from dataclasses import replace

import numpy as np
import pytest

from tvmfuse._tvm import tvm
from tvmfuse._tvm.threads import in_use
from tvmfuse.calibrate import cache, calibrate, kernels, load_cached, measurement
from tvmfuse.errors import TargetError
from tvmfuse.targets import Target, resolve

THREADS = 2


@pytest.fixture(scope="module")
def target() -> Target:
    return resolve("cpu")


@pytest.fixture(autouse=True)
def cache_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(cache.platformdirs, "user_cache_dir", lambda _: str(tmp_path / "cache"))
    return tmp_path / "cache" / "peaks"


@pytest.fixture(scope="module")
def quick():
    """Make calibration brief: these tests are about its form, not its numbers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measurement, "_TURNS", 1)
        patch.setattr(measurement, "_TURN_SECONDS", 0.02)
        patch.setattr(measurement, "_MAX_MEMORY_BYTES", 32 << 20)
        yield


@pytest.fixture(scope="module")
def peaks(quick, target):
    return calibrate(target)


def ones(*shape: int):
    return tvm.runtime.tensor(np.ones(shape, "float32"))


def zeros(*shape: int):
    return tvm.runtime.tensor(np.zeros(shape, "float32"))


@pytest.mark.parametrize("spec", ["cpu", "cpu:x86-64-v2", "cpu:x86-64-v3"])
@pytest.mark.parametrize("repeats", [1, 3])
def test_product_is_added_up_as_often_as_asked(spec, repeats):
    target = resolve(spec)
    if not target.runs_here:
        pytest.skip(f"code for {spec} does not run on this CPU")
    rows, columns = kernels.tile(target)
    out = zeros(THREADS, rows, columns)
    product = kernels.multiply(target, threads=THREADS, repeats=repeats)
    product(ones(THREADS, kernels.DEPTH, rows), ones(THREADS, kernels.DEPTH, columns), out)
    np.testing.assert_array_equal(out.numpy(), repeats * kernels.DEPTH)


@pytest.mark.parametrize(("rows", "repeats"), [(5, 3), (1, 1)])
def test_sum_reads_every_element_as_often_as_asked(target, rows, repeats):
    shape = (THREADS, rows, *kernels.row(target))
    x = np.arange(np.prod(shape), dtype="float32").reshape(shape)
    out = zeros(THREADS, *kernels.row(target))
    kernels.read(target, threads=THREADS, rows=rows, repeats=repeats)(tvm.runtime.tensor(x), out)
    np.testing.assert_allclose(out.numpy(), repeats * x.sum(axis=1), rtol=1e-6)


def test_fill_writes_every_element(target):
    x = zeros(THREADS, 3, *kernels.row(target))
    kernels.fill(target, threads=THREADS, rows=3)(x)
    assert (x.numpy() == 1).all()


def test_triad_adds_three_times_the_second(target):
    b, c, a = (zeros(THREADS, 3, *kernels.row(target)) for _ in "bca")
    b.copyfrom(np.full(b.shape, 2, "float32"))
    c.copyfrom(np.full(b.shape, 5, "float32"))
    kernels.triad(target, threads=THREADS, rows=3)(b, c, a)
    np.testing.assert_array_equal(a.numpy(), 17)


@pytest.mark.parametrize("length", [1, 7])
def test_chain_runs_every_kernel(target, length):
    x = zeros(THREADS, target.lanes)
    result = kernels.chain(target, threads=THREADS, length=length)(x)
    np.testing.assert_array_equal(result.numpy(), length)


def test_tile_leaves_registers_for_the_operands():
    for spec in ("cpu:x86-64-v2", "cpu:x86-64-v3", "cpu:x86-64-v4", "cpu:aarch64"):
        target = resolve(spec)
        rows, columns = kernels.tile(target)
        assert rows * columns // target.lanes == 3 * target.vector_registers // 4


def test_measured_peaks_are_complete(peaks, target):
    assert peaks.source == "measured"
    assert peaks.cores == in_use()
    assert peaks.gflops > 0
    assert set(peaks.bandwidth_gbps) >= {"l1", "l2", "dram"}
    assert all(rate > 0 for rate in peaks.bandwidth_gbps.values())
    assert peaks.cache_bytes == target.peaks.cache_bytes


def test_buffers_grow_with_distance(target):
    sizes = list(measurement.buffers(target, THREADS).values())
    assert sizes == sorted(sizes)
    assert sizes[0] < target.peaks.cache_bytes["l1"] * THREADS


def test_machine_without_a_third_level_is_measured_without_it(target):
    small = replace(target.peaks, cache_bytes={"l1": 32 << 10, "l2": 4 << 20})
    assert list(measurement.buffers(target.with_peaks(small), 1)) == ["l1", "l2", "dram"]


def test_peaks_are_found_again(peaks, target):
    assert load_cached(target) is None
    assert cache.store(target, peaks) is None
    assert load_cached(target) == peaks


def test_peaks_of_other_code_or_threads_are_not_taken(peaks, target, monkeypatch):
    cache.store(target, peaks)
    assert load_cached(replace(target, attrs={**target.attrs, "mcpu": "x86-64"})) is None
    monkeypatch.setattr(cache, "in_use", lambda: peaks.cores + 1)
    assert load_cached(target) is None


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"peaks": 1}', "null"])
def test_damaged_file_is_as_good_as_none(peaks, target, cache_folder, text):
    cache.store(target, peaks)
    (path,) = cache_folder.iterdir()
    path.write_text(text)
    assert load_cached(target) is None


def test_file_of_another_device_is_not_taken(peaks, target, cache_folder):
    cache.store(target, peaks)
    (path,) = cache_folder.iterdir()
    data = json.loads(path.read_text())
    path.write_text(json.dumps({**data, "device": {**data["device"], "cpu": "another"}}))
    assert load_cached(target) is None


@pytest.mark.usefixtures("quick")
def test_folder_that_cannot_be_written_is_a_note_and_no_failure(target, cache_folder):
    cache_folder.parent.write_text("a file where the folder should be")
    told: list[str] = []
    assert calibrate(target, progress=told.append).source == "measured"
    assert told[-1].startswith("not kept: ")
    assert load_cached(target) is None


@pytest.mark.parametrize("target_", ["cuda:sm_80", "metal:m1", "cpu:apple-m1"])
def test_device_that_is_not_here_cannot_be_measured(target_):
    device = resolve(target_)
    if device.runs_here:
        pytest.skip(f"{target_} is here")
    with pytest.raises(TargetError, match=f"runs on this machine, but got '{target_}'"):
        calibrate(device)
