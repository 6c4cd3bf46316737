"""The recurrent kernel: right for any cell, extents and directions, in little memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests import recurrence
from tests.graphs import module, on, run
from tests.kernels.contract import MACHINES
from tvmfuse import testing
from tvmfuse._pipeline import prepare
from tvmfuse._tvm import relax
from tvmfuse._tvm.recurrence import Activation
from tvmfuse.passes.verify import kernel_facts
from tvmfuse.targets import resolve

MACHINE = MACHINES["8 lanes"]

ACTIVATIONS = [
    Activation("affine", 0.5, 0.1),
    Activation("elu", 0.9),
    Activation("hardsigmoid", 0.2, 0.5),
    Activation("leakyrelu", 0.1),
    Activation("relu"),
    Activation("scaledtanh", 0.8, 0.7),
    Activation("sigmoid"),
    Activation("softplus"),
    Activation("softsign"),
    Activation("thresholdedrelu", 0.3),
]


def check(layer: recurrence.Layer, machine: Any = MACHINE) -> None:
    """Compile a layer to its kernel and compare it with NumPy."""
    mod = layer.module()
    kernels = prepare(mod, on(machine)).schedules.kernels
    assert [(k.family, k.note) for k in kernels.values()] == [("recurrent", "")]
    found = run(mod, *layer.inputs, target=on(machine))
    for result, expected in zip(found, layer.expected(), strict=True):
        testing.assert_close(result, expected)


@pytest.mark.parametrize("name", recurrence.VARIANTS)
def test_every_variant_is_right(name: str) -> None:
    check(recurrence.layer(**recurrence.VARIANTS[name]))


@pytest.mark.parametrize(
    ("cell", "machine"), [("gru", "4 lanes"), ("gru", "16 lanes"), ("lstm", "8 lanes")]
)
def test_units_that_fill_no_vector_and_rows_that_fill_no_tile(cell: str, machine: str) -> None:
    check(recurrence.layer(cell, steps=3, batch=13, hidden=37), MACHINES[machine])


@pytest.mark.parametrize("cell", ["rnn", "gru", "lstm"])
def test_threads_meet_between_steps(cell: str) -> None:
    layer = recurrence.layer(cell, steps=9, batch=2, hidden=160, backwards=(False, True))
    (kernel,) = prepare(layer.module(), on(MACHINE)).schedules.kernels.values()
    assert "parallel_barrier_when_finish" in kernel.function.script()
    check(layer)


def test_a_rounded_state_is_that_of_all_rows_and_threads() -> None:
    given = {"steps": 3, "batch": 1, "hidden": 160, "backwards": (False, True)}
    layer = recurrence.layer("lstm", **given, rounds_state=True)
    check(layer)
    twice = {name: value for name, value in layer.values.items() if name == "weight"}
    doubled = {
        name: np.repeat(value, 2, axis=1)
        for name, value in layer.values.items()
        if name not in twice
    }
    both = recurrence.Layer(layer.recurrence, {**twice, **doubled}, layer.constants)
    check(both)  # equal rows have the range of one


@pytest.mark.parametrize("cell", ["gru", "lstm"])
@pytest.mark.parametrize("constants", [("weight",), ()], ids=["packed before", "packed here"])
def test_a_single_step_keeps_nothing_in_memory(cell: str, constants: tuple[str, ...]) -> None:
    layer = recurrence.layer(
        cell, steps=1, batch=1, hidden=300, reset_after=cell == "gru", constants=constants
    )
    (kernel,) = prepare(layer.module(), on(MACHINE)).schedules.kernels.values()
    assert ("planes" in kernel.function.script()) is False
    check(layer)


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=lambda a: a.name)
def test_every_activation_is_right(activation: Activation) -> None:
    check(recurrence.layer("rnn", activations=[activation]))


def test_directions_may_differ_in_their_activations() -> None:
    layer = recurrence.layer("rnn", backwards=(False, True))
    two = ((Activation("tanh"),), (Activation("relu"),))
    differing = recurrence.Recurrence("rnn", (False, True), two)
    check(recurrence.Layer(differing, layer.values, layer.constants))


def test_weights_that_are_known_only_at_run_time_are_packed_by_the_kernel() -> None:
    check(recurrence.layer("gru", hidden=21, constants=()))


@pytest.mark.parametrize("steps", [1, 3])
def test_state_and_cell_may_be_one_tensor(steps: int) -> None:
    layer = recurrence.layer("lstm", steps=steps, hidden=9)
    values = {**layer.values, "cell": layer.values["state"]}

    def graph(x: Any, state: Any) -> Any:
        weight = relax.const(values["weight"], "float32")
        operands = {"x": x, "weight": weight, "state": state, "cell": state}
        result = relax.BlockBuilder.current().emit(layer.recurrence.call(operands))
        return [relax.TupleGetItem(result, k) for k in range(3)]

    found = run(module(graph, values["x"], values["state"]), values["x"], values["state"])
    for result, expected in zip(found, recurrence.reference(layer.recurrence, values), strict=True):
        testing.assert_close(result, expected)


def test_nan_spoils_its_row_only() -> None:
    layer = recurrence.layer("lstm", batch=3, hidden=9)
    layer.values["x"][1, 1, 0] = np.nan
    check(layer)


def test_memory_does_not_grow_with_the_steps() -> None:
    facts = [
        kernel_facts(kernel.function)
        for steps in (10, 1000)
        for kernel in prepare(
            recurrence.layer("gru", steps=steps, hidden=64).module(), resolve("cpu")
        ).schedules.kernels.values()
    ]
    assert facts[0].scratch_bytes == facts[1].scratch_bytes


def test_doubles_are_computed_in_steps() -> None:
    layer = recurrence.layer("lstm", steps=2, dtype="float64")
    found = run(layer.module(), *layer.inputs)
    for result, expected in zip(found, layer.expected(), strict=True):
        testing.assert_close(result, expected)
