from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tvmfuse.errors import ModelError
from tvmfuse.frontend import Signature, TensorSpec, parse_shape


def test_signature_survives_json():
    signature = Signature(
        inputs=(TensorSpec("x:0", (1, "batch", 3), "float32"), TensorSpec("a.b", (), "int64")),
        outputs=(TensorSpec("42", (2,), "bool"),),
    )
    assert Signature.from_json(json.loads(json.dumps(signature.to_json()))) == signature


def test_tensor_reads_as_name_type_and_shape():
    assert str(TensorSpec("x:0", (1, "n"), "float32")) == "x:0: float32[1, n]"


@pytest.mark.parametrize(
    ("text", "name", "shape"),
    [
        ("x=1,3,224,224", "x", (1, 3, 224, 224)),
        ("input:0=2", "input:0", (2,)),
        ("a=b=1, 2", "a=b", (1, 2)),
        ("scalar=", "scalar", ()),
    ],
)
def test_shape_is_split_at_the_last_equals_sign(text, name, shape):
    assert parse_shape(text) == (name, shape)


@pytest.mark.parametrize("text", ["x", "=1,2", "x=a", "x=1,,2", "x=-1", "x=0,2", "x=1.5", "x=1;2"])
def test_ill_formed_shape_is_refused_with_its_text(text):
    with pytest.raises(ModelError, match="NAME=1,3,224,224") as caught:
        parse_shape(text)
    assert repr(text) in str(caught.value)


def test_frontend_loads_without_tvm_onnx_or_torch():
    code = (
        "import sys, tvmfuse.frontend;"
        "sys.exit(any(name in sys.modules for name in ('tvm', 'onnx', 'torch', 'numpy')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
