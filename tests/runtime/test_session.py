from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tvmfuse import bundle
from tvmfuse._tvm import relax, threads, tvm
from tvmfuse.errors import BundleError, InputError
from tvmfuse.frontend import Signature, TensorSpec
from tvmfuse.host import detect
from tvmfuse.runtime import Session, load
from tvmfuse.runtime.memory import LargePages

if TYPE_CHECKING:
    from tvmfuse.compiled import Compiled

X = np.arange(6, dtype="float32").reshape(2, 3)


def expected(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return x * np.array([1, 2, 3], "float32") + np.float32(0.5)


def test_a_bundle_answers_like_the_model_it_was_made_of(
    compiled: Compiled, session: Session, tmp_path: Path
) -> None:
    loaded = load(bundle.save(compiled, tmp_path / "m.tvmfuse").path)
    np.testing.assert_array_equal(loaded(X), expected(X))
    np.testing.assert_array_equal(session(X), expected(X))


def test_a_session_goes_on_after_its_bundle_is_gone(compiled: Compiled, tmp_path: Path) -> None:
    saved = bundle.save(compiled, tmp_path / "m.tvmfuse")
    loaded = load(saved.path)
    for path in saved.path.iterdir():
        path.unlink()
    np.testing.assert_array_equal(loaded(X), expected(X))


def test_a_damaged_library_is_refused_before_it_is_opened(
    compiled: Compiled, tmp_path: Path
) -> None:
    saved = bundle.save(compiled, tmp_path / "m.tvmfuse")
    library = saved.library.read_bytes()
    saved.library.write_bytes(library[: len(library) // 2])  # opening it would be SIGBUS
    with pytest.raises(BundleError, match=r"lib\.so was changed or damaged"):
        load(saved.path)


def test_all_ways_to_pass_an_input_agree(session: Session) -> None:
    for found in (session(X), session({"x:0": X}), session(**{"x:0": X})):
        np.testing.assert_array_equal(found, expected(X))
    np.testing.assert_array_equal(session.run(None, {"x:0": X})[0], expected(X))
    np.testing.assert_array_equal(session.run(["y"], {"x:0": X})[0], expected(X))


def test_run_returns_the_outputs_that_were_asked_for(session: Session) -> None:
    assert session.run([], {"x:0": X}) == []
    assert len(session.run(["y", "y"], {"x:0": X})) == 2
    assert len(session.run((spec.name for spec in session.outputs), {"x:0": X})) == 1
    with pytest.raises(InputError, match="no output 'z'; the outputs are y"):
        session.run(["z"], {"x:0": X})


def test_a_session_describes_itself(session: Session) -> None:
    assert session.inputs == (TensorSpec("x:0", (2, 3), "float32"),)
    assert session.outputs == (TensorSpec("y", (2, 3), "float32"),)


@pytest.mark.parametrize(
    "x",
    [
        np.asfortranarray(X),
        X[::-1, ::-1],
        np.repeat(X, 2, axis=1)[:, ::2],
        np.broadcast_to(X[0], (2, 3)),
        np.frombuffer(b"\0" + X.tobytes(), dtype="uint8")[1:].view("float32").reshape(2, 3),
        tvm.runtime.tensor(X),
    ],
    ids=["Fortran", "reversed", "strided", "broadcast", "misaligned", "DLPack"],
)
def test_the_layout_of_an_input_does_not_matter(session: Session, x: Any) -> None:
    values = x.numpy() if isinstance(x, tvm.runtime.Tensor) else x
    np.testing.assert_array_equal(session(x), expected(values))


def test_an_output_survives_later_calls(session: Session) -> None:
    first = session(X)
    kept = np.array(first)
    session(-X)
    np.testing.assert_array_equal(first, kept)


def test_a_call_that_failed_does_not_spoil_the_next(session: Session) -> None:
    with pytest.raises(InputError):
        session(X[:1])
    np.testing.assert_array_equal(session(X), expected(X))


def test_an_output_is_written_where_asked(session: Session) -> None:
    out = np.empty((3, 2), "float32").T
    assert session(X, out={"y": out}) is out
    np.testing.assert_array_equal(out, expected(X))


def test_a_session_times_itself_with_inputs_of_its_own(session: Session) -> None:
    found = session.benchmark(rounds=2)
    assert len(found.rounds_us) == 2
    assert found.median_us > 0
    with pytest.raises(InputError):
        session.benchmark({"x:0": X[:1]})


def test_calls_of_all_sessions_share_the_cores_by_turns(compiled: Compiled) -> None:
    turns, held = threads.turns(), 0
    while turns.acquire(blocking=False):
        held += 1
    caller = threading.Thread(target=Session.of(compiled), args=(X,))
    try:
        assert held == max(1, detect().cores // threads.in_use())
        caller.start()
        caller.join(0.1)
        assert caller.is_alive()
    finally:
        for _ in range(held):
            turns.release()
    caller.join(60)
    assert not caller.is_alive()


def test_four_threads_share_a_session(session: Session) -> None:
    wrong: list[tuple[int, int]] = []

    def call(thread: int) -> None:
        for i in range(50):
            x = np.full((2, 3), 100 * thread + i, "float32")
            if not np.array_equal(session(x), expected(x)):
                wrong.append((thread, i))

    callers = [threading.Thread(target=call, args=(number,)) for number in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert not wrong


def test_a_bundle_for_a_gpu_names_the_device_that_is_missing(compiled: Compiled) -> None:
    if tvm.metal().exist:
        pytest.skip("this machine has the device")
    attrs = {"kind": "metal", "host": compiled.target.attrs}
    with pytest.raises(BundleError, match="affine needs a metal device, but TVM finds none"):
        Session.of(_with(compiled, attrs))


def _with(compiled: Compiled, attrs: dict[str, Any]) -> Compiled:
    from dataclasses import replace

    return replace(compiled, target=replace(compiled.target, attrs=attrs))


# One output for each input: itself, itself again, a view, and plain values.
DTYPES = ("float32", "float16", "float64", "bfloat16", "int64", "int32", "uint8", "int8", "bool")
SHAPES = ((2, 3), (), (0, 4), (1,))


def _identity_session(spec: TensorSpec) -> Session:
    """``x -> x, x, reshape(x), copy of x``, all of it without a parameter."""
    x = relax.Var("x", relax.TensorType(spec.shape, spec.dtype))
    params = relax.Var("params", relax.TupleType([]))
    builder = relax.BlockBuilder()
    with builder.function("main", [x, params]):
        with builder.dataflow():
            flat = builder.emit(relax.op.reshape(x, (int(np.prod(spec.shape)),)))
            joined = builder.emit(relax.op.concat([flat, flat]))
            out = builder.emit_output(relax.Tuple([x, x, flat, joined]))
        builder.emit_func_output(out)
    size = int(np.prod(spec.shape))
    outputs = (
        TensorSpec("same", spec.shape, spec.dtype),
        TensorSpec("again", spec.shape, spec.dtype),
        TensorSpec("flat", (size,), spec.dtype),
        TensorSpec("joined", (2 * size,), spec.dtype),
    )
    target = tvm.target.Target("llvm")
    library = tvm.compile(builder.get(), target, relax_pipeline=relax.get_default_pipeline(target))
    return Session(library, (), signature=Signature((spec,), outputs), device=tvm.cpu())


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_goes_in_and_comes_out(dtype: str) -> None:
    session = _identity_session(TensorSpec("x", (2, 3), dtype))
    x = np.arange(6).reshape(2, 3).astype(dtype)
    _check_identity(session, x)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_shape_goes_in_and_comes_out(shape: Sequence[int]) -> None:
    session = _identity_session(TensorSpec("x", tuple(shape), "float32"))
    _check_identity(session, np.full(shape, 3, "float32"))


def _check_identity(session: Session, x: np.ndarray[Any, Any]) -> None:
    same, again, flat, joined = session(x)
    for found, wanted in [(same, x), (again, x), (flat, x.ravel())]:
        assert found.dtype == x.dtype
        np.testing.assert_array_equal(found, wanted)
    np.testing.assert_array_equal(joined, np.concatenate([x.ravel(), x.ravel()]))


def test_outputs_that_share_memory_inside_are_apart_outside() -> None:
    session = _identity_session(TensorSpec("x", (2, 3), "float32"))
    first = session(X)
    first[0][:] = -1  # an input straight to an output: its own memory must stay untouched
    np.testing.assert_array_equal(first[1], X)
    np.testing.assert_array_equal(first[2], X.ravel())
    np.testing.assert_array_equal(session(X)[0], X)
    session(X + 1)
    np.testing.assert_array_equal(first[1], X)


def _aligned(shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    return LargePages().empty(shape, np.dtype("float32"))


@pytest.mark.parametrize("offset", [0, 1])
def test_large_arrays_are_answered_alike_wherever_they_lie(offset: int) -> None:
    shape = (300, 301)
    session = _identity_session(TensorSpec("x", shape, "float32"))
    memory = _aligned((301, 301)).reshape(-1)
    x = memory[offset:][: 300 * 301].reshape(shape)
    x[...] = np.arange(x.size).reshape(shape)
    _check_identity(session, x)
    _check_identity(session, x[::-1])
    x.flags.writeable = False
    _check_identity(session, x)


def test_large_outputs_are_the_callers_own() -> None:
    session = _identity_session(TensorSpec("x", (300, 301), "float32"))
    x = _aligned((300, 301))
    x[...] = 1
    first = session(x)
    assert not any(np.shares_memory(x, found) for found in first)
    assert not any(np.shares_memory(a, b) for a, b in itertools.combinations(first, 2))
    x[...] = 2
    for found in session(x):
        found[...] = 3
    assert (x == 2).all()
    for found in first:
        np.testing.assert_array_equal(found, np.ones_like(found))


def test_what_a_call_gave_goes_into_the_next_without_a_copy() -> None:
    session = _identity_session(TensorSpec("x", (300, 301), "float32"))
    joined = session(np.ones((300, 301), "float32"))[3][: 300 * 301].reshape(300, 301)
    del session
    again = _identity_session(TensorSpec("x", (300, 301), "float32"))
    np.testing.assert_array_equal(again(joined)[0], np.ones((300, 301)))


def test_an_extent_with_a_name_is_bound_by_each_call() -> None:
    n = tvm.tirx.Var("n", "int64")
    x = relax.Var("x", relax.TensorType((n, 2), "float32"))
    params = relax.Var("params", relax.TupleType([]))
    builder = relax.BlockBuilder()
    with builder.function("main", [x, params]):
        with builder.dataflow():
            y = builder.emit_output(relax.op.add(x, x))
        builder.emit_func_output(y)
    target = tvm.target.Target("llvm")
    library = tvm.compile(builder.get(), target, relax_pipeline=relax.get_default_pipeline(target))
    spec = TensorSpec("x", ("n", 2), "float32")
    signature = Signature((spec,), (TensorSpec("y", ("n", 2), "float32"),))
    session = Session(library, (), signature=signature, device=tvm.cpu())
    for size in (3, 0, 1):
        x_value = np.ones((size, 2), "float32")
        np.testing.assert_array_equal(session(x_value), 2 * x_value)
    with pytest.raises(InputError, match=r"out has the shape \[4, 2\], the output \[3, 2\]"):
        session(np.ones((3, 2), "float32"), out={"y": np.empty((4, 2), "float32")})
