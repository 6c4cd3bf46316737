"""The patterns in use, as one frozen value that each compile is handed."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tvmfuse.errors import PatternError
from tvmfuse.patterns.add_layer_norm import AddLayerNorm
from tvmfuse.patterns.attention import FusedAttention
from tvmfuse.patterns.base import Generator
from tvmfuse.patterns.conv_bn_act import ConvBnAct
from tvmfuse.patterns.elementwise import Elementwise
from tvmfuse.patterns.epilogue import Epilogue
from tvmfuse.patterns.matmul_bias_act import MatmulBiasAct
from tvmfuse.patterns.softmax import Softmax
from tvmfuse.patterns.transposed_matmul import TransposedMatmul


@dataclass(frozen=True)
class Registry:
    """Patterns in order of preference.

    Where two find the same bindings, the first one keeps them.
    """

    patterns: tuple[Generator, ...] = ()

    def __post_init__(self) -> None:
        names = [pattern.name for pattern in self.patterns]
        for name in names:
            if names.count(name) > 1:
                raise PatternError(
                    f"registry: pattern names must be unique, but found {name!r} twice: rename one"
                )

    def with_pattern(self, pattern: Generator) -> Registry:
        """Return a registry in which ``pattern`` comes first."""
        return replace(self, patterns=(pattern, *self.patterns))


def default() -> Registry:
    """Return the patterns that tvmfuse brings along, named ones before generic ones."""
    named = (ConvBnAct(), MatmulBiasAct(), AddLayerNorm(), Softmax(), FusedAttention())
    return Registry((*named, TransposedMatmul(), Epilogue(), Elementwise()))
