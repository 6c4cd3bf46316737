"""The patterns in use, as one frozen value that each compile is handed."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tvmfuse.errors import PatternError
from tvmfuse.patterns import plugins
from tvmfuse.patterns.add_layer_norm import AddLayerNorm
from tvmfuse.patterns.attention import FusedAttention
from tvmfuse.patterns.base import Generator
from tvmfuse.patterns.conv_bn_act import ConvBnAct
from tvmfuse.patterns.conv_pool import ConvPool
from tvmfuse.patterns.cross_entropy import CrossEntropy
from tvmfuse.patterns.depthwise_pointwise import DepthwisePointwise
from tvmfuse.patterns.elementwise import Elementwise
from tvmfuse.patterns.embed_norm import EmbedNorm
from tvmfuse.patterns.epilogue import Epilogue
from tvmfuse.patterns.gated import Gated
from tvmfuse.patterns.group_norm_act import GroupNormAct
from tvmfuse.patterns.gru_cell import GruCell
from tvmfuse.patterns.level import Level
from tvmfuse.patterns.linear_linear import LinearLinear
from tvmfuse.patterns.lstm_cell import LstmCell
from tvmfuse.patterns.matmul_bias_act import MatmulBiasAct
from tvmfuse.patterns.narrow_matmul import NarrowMatmul
from tvmfuse.patterns.norm_linear import NormLinear
from tvmfuse.patterns.prologue import Prologue
from tvmfuse.patterns.quantised import Quantised
from tvmfuse.patterns.recompute import Recompute
from tvmfuse.patterns.rope import Rope
from tvmfuse.patterns.row_statistics import RowStatistics
from tvmfuse.patterns.scaled_pointwise import ScaledPointwise
from tvmfuse.patterns.siblings import Siblings
from tvmfuse.patterns.softmax import Softmax
from tvmfuse.patterns.transposed_matmul import TransposedMatmul


@dataclass(frozen=True)
class Registry:
    """Patterns in order of preference.

    Where two find the same bindings, the first one keeps them.

    Parameters
    ----------
    patterns : tuple of Generator
        The patterns.
    failed : tuple of plugins.Failure
        Patterns that are installed but could not be loaded.
    """

    patterns: tuple[Generator, ...] = ()
    failed: tuple[plugins.Failure, ...] = ()

    def __post_init__(self) -> None:
        names = [pattern.name for pattern in self.patterns]
        for name in names:
            if names.count(name) > 1:
                raise PatternError(
                    f"registry: pattern names must be unique, but found {name!r} twice: rename one"
                )

    @property
    def names(self) -> frozenset[str]:
        """What the patterns are called."""
        return frozenset(pattern.name for pattern in self.patterns)

    def with_pattern(self, *patterns: Generator) -> Registry:
        """Return a registry in which ``patterns`` come first."""
        return replace(self, patterns=(*patterns, *self.patterns))


def register(pattern: plugins.Given) -> plugins.Given:
    """Add a pattern to those that every compile of this process looks for from now on.

    It goes before the patterns of tvmfuse: where both find the same operators, it keeps
    them. A name that is registered again replaces the earlier pattern, so that a cell of
    a notebook can be run twice. Works as the decorator of a class, too.

    Parameters
    ----------
    pattern : Pattern, Generator, a class of one, or relax.transform.FusionPattern
        The pattern; a class is called without arguments.

    Returns
    -------
    object
        What was given.

    Raises
    ------
    PatternError
        It is no pattern, lacks a name, or has the name of a pattern of tvmfuse.
    """
    return plugins.keep(pattern, taken=builtin().names)


def default() -> Registry:
    """Return all patterns: what users registered and installed, then what tvmfuse brings along."""
    ours = builtin()
    added = plugins.added(taken=ours.names)
    return Registry((*(plugin.pattern for plugin in added.plugins), *ours.patterns), added.failed)


def builtin() -> Registry:
    """Return the patterns that tvmfuse brings along, named ones before generic ones."""
    named = (
        ConvBnAct(),
        Quantised(),
        NarrowMatmul(),
        MatmulBiasAct(),
        Gated(),
        EmbedNorm(),
        AddLayerNorm(),
        GroupNormAct(),
        CrossEntropy(),
        Softmax(),
        FusedAttention(),
        Rope(),
        LstmCell(),
        GruCell(),
    )
    anchored = (
        TransposedMatmul(),
        Epilogue(),
        NormLinear(),
        LinearLinear(),
        DepthwisePointwise(),
        ScaledPointwise(),
        ConvPool(),
    )
    generic = (Siblings(), RowStatistics(), Level(), Elementwise(), Prologue(), Recompute())
    return Registry((*named, *anchored, *generic))
