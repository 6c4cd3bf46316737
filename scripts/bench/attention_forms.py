"""Export attention in every form that PyTorch and transformers write, as tiny ONNX files.

The files of ``tests/cases/attention`` were made by this script, in the environment of
``export_models.py``; a form that is there already is kept::

    python scripts/bench/attention_forms.py --into tests/cases/attention
"""

from __future__ import annotations

import argparse
import contextlib
import io
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import networks
import onnx
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

transformers = networks.import_transformers()

HEADS, DEPTH, ROWS = 2, 4, 6
HIDDEN = HEADS * DEPTH
VOCABULARY = 16

Inputs = tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class Form:
    """One module, what it is called with, and how it is exported."""

    build: Callable[[], nn.Module]
    inputs: Inputs
    opset: int = 18
    is_scripted: bool = False


class Function(nn.Module):
    """A function of tensors as a module."""

    def __init__(self, function: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
        """Call it."""
        return self.function(*tensors)


class SelfAttention(nn.Module):
    """PyTorch's own module."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(HIDDEN, HEADS, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Attend to itself."""
        return self.attention(x, x, x, need_weights=False)[0]


class CrossAttention(nn.Module):
    """Stable Diffusion's: heads in the batch, the scale in a ``baddbmm``."""

    def __init__(self, context: int = 12) -> None:
        super().__init__()
        self.q = nn.Linear(HIDDEN, HIDDEN, bias=False)
        self.k, self.v = (nn.Linear(context, HIDDEN, bias=False) for _ in "kv")
        self.out = nn.Linear(HIDDEN, HIDDEN)

    def forward(self, x: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
        """Attend to ``context``."""
        q, k, v = (_split(t) for t in (self.q(x), self.k(context), self.v(context)))
        empty = torch.empty(q.shape[0], q.shape[1], k.shape[1])
        scores = torch.baddbmm(empty, q, k.transpose(1, 2), beta=0, alpha=DEPTH**-0.5)
        y = torch.bmm(scores.softmax(-1), v).reshape(-1, HEADS, x.shape[1], DEPTH)
        return self.out(y.permute(0, 2, 1, 3).reshape(x.shape))


def _split(x: torch.Tensor) -> torch.Tensor:
    heads = x.reshape(*x.shape[:2], HEADS, DEPTH).permute(0, 2, 1, 3)
    return heads.reshape(-1, x.shape[1], DEPTH)


class Model(nn.Module):
    """A model of transformers whose first result counts."""

    def __init__(self, model: nn.Module, names: Sequence[str], options: Mapping[str, Any]) -> None:
        super().__init__()
        self.model, self.names, self.options = model, names, options

    def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
        """Run it without a cache."""
        return self.model(**dict(zip(self.names, tensors, strict=True)), **self.options)[0]


def sdpa(**options: Any) -> Callable[[], nn.Module]:
    """Return a builder of PyTorch's function with some options."""

    def attend(q: Any, k: Any, v: Any, mask: Any = None) -> torch.Tensor:
        return scaled_dot_product_attention(q, k, v, attn_mask=mask, **options)

    return lambda: Function(attend)


def written_out() -> Mapping[str, Callable[..., torch.Tensor]]:
    """Return attention as models write it themselves."""
    causal = torch.tril(torch.ones(1, 1, ROWS, ROWS, dtype=torch.bool))
    lowest = torch.finfo(torch.float32).min

    def scores(q: Any, k: Any) -> Any:
        return q @ k.transpose(-1, -2) / DEPTH**0.5

    def prescaled(q: Any, k: Any, v: Any) -> torch.Tensor:
        return ((q * DEPTH**-0.25) @ (k * DEPTH**-0.25).transpose(-1, -2)).softmax(-1) @ v

    def filled(q: Any, k: Any, v: Any, mask: Any) -> torch.Tensor:
        return scores(q, k).masked_fill(mask == 0, -1e9).softmax(-1) @ v

    def gpt2(q: Any, k: Any, v: Any) -> torch.Tensor:
        return torch.where(causal, scores(q, k), lowest).softmax(-1) @ v

    return {"both_prescaled": prescaled, "masked_fill": filled, "gpt2_where": gpt2}


def function_forms() -> dict[str, Form]:
    """Return the forms of PyTorch's function, and those that need no model."""
    q, k, v = (torch.randn(2, HEADS, ROWS, DEPTH) for _ in range(3))
    short, long = torch.randn(2, HEADS, 5, DEPTH), torch.randn(2, HEADS, 7, DEPTH)
    seen, offset = torch.rand(2, 1, ROWS, ROWS) > 0.3, torch.randn(2, 1, ROWS, ROWS)
    grouped = torch.randn(2, 2 * HEADS, ROWS, DEPTH)
    causal, x = sdpa(is_causal=True), torch.randn(2, ROWS, HIDDEN)
    cross = (torch.randn(2, 9, HIDDEN), torch.randn(2, 5, 12))
    forms = {f"torch_sdpa_op{n}": Form(sdpa(), (q, k, v), n) for n in (18, 20, 23)}
    forms |= {f"torch_sdpa_op{n}_script": Form(sdpa(), (q, k, v), n, True) for n in (14, 17)}  # noqa: FBT003
    for name, opset in (("op14_script", 14), ("op18", 18), ("op23", 23)):
        old = opset == 14
        forms[f"torch_sdpa_bool_mask_{name}"] = Form(sdpa(), (q, k, v, seen), opset, old)
        forms[f"torch_sdpa_causal_{name}"] = Form(causal, (q, k, v), opset, old)
    written = written_out()
    return forms | {
        "torch_sdpa_float_mask_op18": Form(sdpa(), (q, k, v, offset)),
        "torch_sdpa_scale_op18": Form(sdpa(scale=0.3), (q, k, v)),
        "torch_sdpa_cross_op18": Form(sdpa(), (short, long, long)),
        "torch_gqa_op18": Form(sdpa(enable_gqa=True, is_causal=True), (grouped, k, v)),
        "torch_mha_op18": Form(SelfAttention, (x,)),
        "torch_encoder_layer_op18": Form(encoder_layer, (x,)),
        "sd_cross_bmm_op18": Form(CrossAttention, cross),
        "sd_cross_bmm_op17_script": Form(CrossAttention, cross, 17, is_scripted=True),
        "both_prescaled_op18": Form(lambda: Function(written["both_prescaled"]), (q, k, v)),
        "masked_fill_op18": Form(lambda: Function(written["masked_fill"]), (q, k, v, seen.long())),
        "gpt2_where_op18": Form(lambda: Function(written["gpt2_where"]), (q, k, v)),
    }


def encoder_layer() -> nn.Module:
    """Return PyTorch's encoder layer, normalised first."""
    return nn.TransformerEncoderLayer(HIDDEN, HEADS, 16, batch_first=True, norm_first=True)


ENCODER = {"vocab_size": VOCABULARY, "max_position_embeddings": 16}
LAYER = {
    "hidden_size": HIDDEN,
    "num_hidden_layers": 1,
    "num_attention_heads": HEADS,
    "intermediate_size": 16,
}
GROUPED = {
    **ENCODER,
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 24,
}
PICTURE = {**LAYER, "image_size": 8, "patch_size": 4}
WHISPER = {
    "vocab_size": VOCABULARY,
    "d_model": HIDDEN,
    "encoder_layers": 1,
    "encoder_attention_heads": HEADS,
    "encoder_ffn_dim": 16,
    "num_mel_bins": 4,
    "max_source_positions": ROWS,
    "pad_token_id": 0,
}
T5 = {
    "vocab_size": VOCABULARY,
    "d_model": HIDDEN,
    "d_kv": DEPTH,
    "num_heads": HEADS,
    "d_ff": 16,
    "num_layers": 1,
    "feed_forward_proj": "gated-gelu",
}
# name: (class of the model, class of its configuration, settings)
MODELS: Mapping[str, tuple[str, str, Mapping[str, Any]]] = {
    "bert": ("BertModel", "BertConfig", {**ENCODER, **LAYER}),
    "distilbert": (
        "DistilBertModel",
        "DistilBertConfig",
        {**ENCODER, "dim": HIDDEN, "n_layers": 1, "n_heads": HEADS, "hidden_dim": 16},
    ),
    "gpt2": (
        "GPT2Model",
        "GPT2Config",
        {"vocab_size": VOCABULARY, "n_embd": HIDDEN, "n_layer": 1, "n_head": HEADS},
    ),
    "llama": ("LlamaModel", "LlamaConfig", GROUPED),
    "qwen2": ("Qwen2Model", "Qwen2Config", GROUPED),
    "vit": ("ViTModel", "ViTConfig", PICTURE),
    "clipvision": ("CLIPVisionModel", "CLIPVisionConfig", PICTURE),
    "cliptext": (
        "CLIPTextModel",
        "CLIPTextConfig",
        {**ENCODER, **LAYER, "eos_token_id": 15, "bos_token_id": 1, "pad_token_id": 0},
    ),
    "whisper": ("models.whisper.modeling_whisper.WhisperEncoder", "WhisperConfig", WHISPER),
    "t5": ("T5EncoderModel", "T5Config", T5),
}


def model_forms() -> dict[str, Form]:
    """Return the forms of models, with attention written out and by PyTorch's function."""
    ids = torch.randint(0, VOCABULARY, (2, ROWS))
    mask = torch.ones(2, ROWS, dtype=torch.long)
    mask[1, -2:] = 0
    of_text: dict[str, torch.Tensor] = {"input_ids": ids}
    masked = {**of_text, "attention_mask": mask}
    image = {"pixel_values": torch.randn(2, 3, 8, 8)}
    inputs = {
        **dict.fromkeys(("bert", "distilbert", "t5"), masked),
        **dict.fromkeys(("gpt2", "llama", "qwen2", "cliptext"), of_text),
        **dict.fromkeys(("vit", "clipvision"), image),
        "whisper": {"input_features": torch.randn(2, 4, 2 * ROWS)},
    }
    both = [(name, kind, 18) for kind in ("eager", "sdpa") for name in MODELS]
    both = [item for item in both if item[:2] not in (("qwen2", "eager"), ("t5", "sdpa"))]
    wanted = [*both, ("llama", "sdpa", 23), ("bert", "sdpa", 23)]
    scripted = [("bert", "eager", 17), ("bert", "sdpa", 17), ("t5", "eager", 17)]
    forms = {}
    for name, kind, opset in (*wanted, *scripted):
        old = (name, kind, opset) in scripted
        given = inputs[name]
        build = model_builder(name, kind, tuple(given))
        suffix = "_script" if old else ""
        forms[f"{name}_{kind}_op{opset}{suffix}"] = Form(build, tuple(given.values()), opset, old)
    return forms


def model_builder(name: str, kind: str, names: Sequence[str]) -> Callable[[], nn.Module]:
    """Return what builds a model of one layer."""
    model, config, settings = MODELS[name]

    def build() -> nn.Module:
        configured = getattr(transformers, config)(**settings)
        configured._attn_implementation = kind
        found: Any = transformers
        for part in model.split("."):
            found = getattr(found, part)
        options = {"use_cache": False} if name in ("gpt2", "llama", "qwen2") else {}
        return Model(found(configured), names, options)

    return build


def export(form: Form, path: Path) -> None:
    """Write one form, without the notes that exporters leave."""
    torch.manual_seed(0)
    module = form.build().eval()
    with torch.no_grad(), contextlib.redirect_stdout(io.StringIO()):
        for parameter in module.parameters():
            if parameter.dim() == 1:  # zero biases would hide mistakes
                parameter.add_(0.1 * torch.randn_like(parameter))
        options: dict[str, Any] = {} if form.is_scripted else {"external_data": False}
        torch.onnx.export(
            module,
            form.inputs,
            str(path),
            opset_version=form.opset,
            dynamo=not form.is_scripted,
            **options,
        )
    model = onnx.load(path)
    graph = model.graph
    for item in (*graph.node, *graph.value_info, *graph.input, *graph.output, *graph.initializer):
        del item.metadata_props[:]
        item.doc_string = ""
    del graph.metadata_props[:]
    del model.metadata_props[:]
    onnx.save(model, path)


def main() -> None:
    """Export the forms that are not there yet."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--into", type=Path, required=True, metavar="DIR")
    into: Path = parser.parse_args().into
    warnings.filterwarnings("ignore")
    torch.manual_seed(0)
    for name, form in (function_forms() | model_forms()).items():
        path = into / f"{name}.onnx"
        if not path.exists():
            export(form, path)
            print(f"{path}  {path.stat().st_size / 1e3:.0f} kB", flush=True)


if __name__ == "__main__":
    main()
