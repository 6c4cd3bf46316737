from __future__ import annotations

import numpy as np
import pytest

from tvmfuse.errors import ModelError
from tvmfuse.frontend import import_model

torch = pytest.importorskip("torch")


def export(module, *inputs, **options):
    return torch.export.export(module.eval(), inputs, **options)


class Classifier(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 4, 3)
        self.norm = torch.nn.BatchNorm2d(4)
        self.linear = torch.nn.Linear(4, 2)

    def forward(self, image):
        features = torch.relu(self.norm(self.conv(image))).mean((2, 3))
        return self.linear(features)


def test_program_gives_the_values_of_the_module(run):
    torch.manual_seed(0)
    module, image = Classifier(), torch.randn(1, 3, 8, 8)
    model = import_model(export(module, image))
    assert [str(spec) for spec in model.signature.inputs] == ["image: float32[1, 3, 8, 8]"]
    (found,) = run(model, {"image": image.numpy()}).values()
    np.testing.assert_allclose(found, module(image).detach().numpy(), rtol=1e-4, atol=1e-5)


def test_kept_weights_follow_the_inputs():
    image = torch.randn(1, 3, 8, 8)
    model = import_model(export(Classifier(), image), keep_params=True)
    main = model.module["main"]
    assert int(main.attrs["num_input"]) == len(model.signature.inputs) == 1
    assert len(main.params) == 1 + len(main.attrs["params"])


def test_open_batch_is_bound_by_a_shape():
    batch = torch.export.Dim("batch", min=1, max=64)
    program = export(Classifier(), torch.randn(2, 3, 8, 8), dynamic_shapes={"image": {0: batch}})
    with pytest.raises(ModelError, match="these are open: image"):
        import_model(program)
    model = import_model(program, shapes={"image": (5, 3, 8, 8)})
    assert model.signature.outputs[0].shape == (5, 2)


class SameTruth(torch.nn.Module):
    def forward(self, a, b):
        return (a > 0) == (b > 0), a == b


def test_booleans_are_compared(run):
    a, b = torch.tensor([1.0, -1.0, 2.0]), torch.tensor([3.0, 1.0, 2.0])
    found = run(import_model(export(SameTruth(), a, b)), {"a": a.numpy(), "b": b.numpy()})
    first, second = found.values()
    np.testing.assert_array_equal(first, [True, False, True])
    np.testing.assert_array_equal(second, [False, False, True])


class Unsupported(torch.nn.Module):
    def forward(self, x):
        return torch.linalg.eigh(x @ x.T)[0]


def test_operator_that_tvm_lacks_is_named():
    with pytest.raises(ModelError, match="eigh"):
        import_model(export(Unsupported(), torch.randn(3, 3)))
