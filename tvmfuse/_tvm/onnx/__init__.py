"""TVM's ONNX importer, repaired and extended from outside."""

from tvmfuse._tvm.onnx.converters import qualified, supported_operators
from tvmfuse._tvm.onnx.importer import import_graph

__all__ = ["import_graph", "qualified", "supported_operators"]
