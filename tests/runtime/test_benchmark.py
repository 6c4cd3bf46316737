from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tvmfuse import bundle
from tvmfuse.errors import TuningError
from tvmfuse.runtime import npz, worker
from tvmfuse.runtime.benchmark import Benchmark, alternate
from tvmfuse.runtime.side import Side, python_side, start
from tvmfuse.runtime.timing import Timing, calls_in, measure, quartiles

if TYPE_CHECKING:
    from tvmfuse.compiled import Compiled

# A side whose calls all take the same made-up time, and which notes the order of the turns.
STEADY = """
import json, os, sys
name, time_us, log = sys.argv[1:]
print(json.dumps({"version": f"{name} with {os.environ['OMP_NUM_THREADS']} threads"}), flush=True)
for line in sys.stdin:
    open(log, "a").write(name)
    print(json.dumps({"us": [float(time_us)] * json.loads(line)["calls"]}), flush=True)
"""


def steady(name: str, time_us: float, log: Path) -> Side:
    command = (sys.executable, "-c", STEADY, name, str(time_us), str(log))
    return Side(name, command, threads=3)


def test_sides_take_turns_and_every_other_round_goes_backwards(tmp_path: Path) -> None:
    log = tmp_path / "log"
    found = alternate([steady("a", 100, log), steady("b", 200, log)], rounds=3, round_us=1000)
    # Once each to find the number of calls, then a warm-up and a turn for each side and round.
    assert log.read_text() == "ab" + "aabb" + "bbaa" + "aabb"
    assert found.timings == {"a": Timing((100.0,) * 3, 10), "b": Timing((200.0,) * 3, 5)}
    assert found.versions == {"a": "a with 3 threads", "b": "b with 3 threads"}


def test_a_ratio_below_one_says_that_the_first_side_is_faster() -> None:
    timings = {"ours": Timing((1.0, 2.0, 3.0), 5), "theirs": Timing((2.0, 2.0, 4.0), 5)}
    rows = Benchmark(timings, {"ours": "1", "theirs": "2"}).to_json()
    assert [row["ratio"] for row in rows] == [1.0, 0.75]
    assert rows[1]["ratio_quartiles"] == [0.625, 0.875]
    json.dumps(rows)


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("raise SystemExit('no such operator: Einsum')", "no such operator: Einsum"),
        ("pass", "nothing"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "exit -11"),
        ("import time; time.sleep(60)", "no answer within 0.5 s"),
    ],
    ids=["error", "silence", "crash", "hang"],
)
def test_a_side_that_does_not_start_is_named_with_its_last_words(code: str, said: str) -> None:
    side = Side("peer", (sys.executable, "-c", code), threads=1)
    with pytest.raises(TuningError, match="bench: peer ") as caught:
        alternate([side], rounds=1, timeout_s=0.5 if "sleep" in code else 60)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_side_that_dies_between_turns_is_named(tmp_path: Path) -> None:
    code = 'print(\'{"version": "1"}\', flush=True); raise SystemExit("out of memory")'
    side = Side("peer", (sys.executable, "-c", code), threads=1)
    with pytest.raises(TuningError, match=r"peer .* it said: out of memory"):
        alternate([side], rounds=1)


def test_a_side_that_cannot_be_started_is_named(tmp_path: Path) -> None:
    with pytest.raises(TuningError, match="bench: cannot start peer: "):
        alternate([Side("peer", (str(tmp_path / "no-python"),), threads=1)], rounds=1)


def test_a_bundle_is_a_side(compiled: Compiled, tmp_path: Path) -> None:
    saved = bundle.save(compiled, tmp_path / "m.tvmfuse")
    npz.write({"x:0": np.ones((2, 3), "float32")}, tmp_path / "inputs.npz")
    side = python_side("tvmfuse", saved.path, tmp_path / "inputs.npz", threads=1)
    with start(side, timeout_s=120) as (worker, version):
        assert version == "tvm 0.27.0.post1"
        assert len(worker.times_us(4, timeout_s=60)) == 4


@pytest.mark.peers
def test_onnxruntime_is_a_side(affine_onnx: Path, tmp_path: Path) -> None:
    npz.write({"x:0": np.ones((2, 3), "float32")}, tmp_path / "inputs.npz")
    side = python_side("onnxruntime", affine_onnx, tmp_path / "inputs.npz", threads=1)
    with start(side, timeout_s=120) as (worker, version):
        assert version.startswith("onnxruntime 1.")
        assert len(worker.times_us(4, timeout_s=60)) == 4


def test_a_round_has_three_to_a_thousand_calls() -> None:
    assert calls_in(1000, call_us=100) == 10
    assert calls_in(1000, call_us=1e9) == 3
    assert calls_in(1e9, call_us=0.0) == 1000


def test_quartiles_are_those_of_numpy() -> None:
    values = (5.0, 1.0, 4.0, 9.0, 2.0, 2.5)
    assert quartiles(values) == pytest.approx(tuple(np.quantile(values, [0.25, 0.75])))
    assert quartiles((3.0,)) == (3.0, 3.0)


def test_measuring_calls_as_often_as_it_says() -> None:
    count = 0

    def call() -> None:
        nonlocal count
        count += 1

    found = measure(call, rounds=4, round_us=1.0)
    assert len(found.rounds_us) == 4
    assert count == 3 + 4 * found.calls
    assert all(time > 0 and math.isfinite(time) for time in found.rounds_us)


@pytest.mark.parametrize("shape", [(), (0, 3), (5,), (3, 1, 7)])
@pytest.mark.parametrize("dtype", ["float32", "int64", "bool", "float16"])
def test_inputs_of_a_side_begin_at_a_cache_line(shape: tuple[int, ...], dtype: str) -> None:
    array = np.arange(math.prod(shape)).reshape(shape).astype(dtype)
    copy = worker.aligned(array)
    assert copy.ctypes.data % worker.ALIGNMENT == 0
    assert (copy.shape, copy.dtype) == (shape, np.dtype(dtype))
    np.testing.assert_array_equal(copy, array)
