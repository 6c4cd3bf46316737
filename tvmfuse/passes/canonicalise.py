"""Bring a module into the one form that patterns are written against."""

from __future__ import annotations

from typing import Any

from tvmfuse._tvm import relax, tvm
from tvmfuse.passes.rewrite import rewrite
from tvmfuse.passes.rules import moves, pads, scale, simplify, views
from tvmfuse.passes.rules.attention import write_attention_out
from tvmfuse.passes.rules.batch_norm import decompose_batch_norm
from tvmfuse.passes.rules.composites import recognise
from tvmfuse.passes.rules.cross_entropy import gather_for_one_hot, write_nll_loss_out
from tvmfuse.passes.rules.empty import constant_for_empty
from tvmfuse.passes.rules.fold import fold_constant, fold_constants
from tvmfuse.passes.rules.group_norm import group_norm_for_views, parameters_into_group_norm
from tvmfuse.passes.rules.narrow_weight import narrow_weight
from tvmfuse.passes.rules.quantised import integer_convolution, integer_product
from tvmfuse.passes.rules.share import share_equal_values
from tvmfuse.passes.rules.slices import product_of_slices
from tvmfuse.passes.rules.stacks import operator_for_stack
from tvmfuse.passes.rules.te_calls import operator_for_te_call
from tvmfuse.passes.rules.weight_only import byte_weight


def settle_empty(mod: Any) -> Any:
    """Return an equal module in which what has no elements is a constant.

    TVM 0.27's library passes, which take sorting and sums before anything else, divide by
    its extents.
    """
    return rewrite(relax.transform.Normalize()(mod), (constant_for_empty,))


def canonicalise(mod: Any) -> Any:
    """Return an equal module in canonical form; doing it twice changes nothing more.

    Constants are folded, inference batch norms are gone into the weights before them,
    formulas of known operators are those operators, operators that do nothing are
    dropped, equal values are computed once. Numbers change by rounding only.

    Parameters
    ----------
    mod : IRModule
        A module of Relax functions.

    Returns
    -------
    IRModule
        A well-formed module with the same functions, inputs and outputs.
    """
    mod = tvm.transform.Sequential(
        [
            relax.transform.Normalize(),
            relax.transform.ConvertToDataflow(min_size=1),
            relax.transform.CanonicalizeBindings(),
            relax.transform.DeadCodeElimination(),
        ]
    )(mod)
    simple = (operator_for_te_call(mod), fold_constant, *_SIMPLIFICATIONS)
    # Formulas are recognised in simple form, and before scales are merged into them.
    for rules in (simple, (*simple, recognise), (*simple, recognise, *_SCALES)):
        # Sharing first: importers repeat the same constant expressions at every node.
        mod = rewrite(fold_constants(share_equal_values(mod)), rules)
    return share_equal_values(mod)


_SIMPLIFICATIONS = (
    constant_for_empty,
    simplify.inline_shape,
    simplify.constant_last,
    simplify.scalar_for_uniform,
    simplify.scalar_for_uniform_choice,
    simplify.drop_settled_choice,
    simplify.drop_identity,
    simplify.multiply_by_reciprocal,
    simplify.rsqrt_for_reciprocal,
    simplify.add_negative,
    simplify.expand_power,
    simplify.multiply_for_square,
    simplify.relu_for_maximum,
    simplify.clip_for_bounds,
    pads.padding_of_convolution,
    moves.slices_for_split,
    moves.reshape_for_views,
    moves.merge_moves,
    moves.permute_before_reshape,
    moves.permute_before_merge,
    views.elementwise_before_view,
    views.view_before_norm,
    operator_for_stack,
    integer_product,
    integer_convolution,
    byte_weight,
    narrow_weight,
    product_of_slices,
    write_attention_out,
    write_nll_loss_out,
    gather_for_one_hot,
    group_norm_for_views,
    parameters_into_group_norm,
)

_SCALES = (
    decompose_batch_norm,
    moves.scale_before_moves,
    moves.scale_after_product,
    scale.move_scale_over_offset,
    scale.fold_scale_into_weight,
    scale.merge_scales,
    scale.merge_offsets,
)
