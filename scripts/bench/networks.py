"""The benchmark networks in torch, with seeded random weights that are alive.

Batch normalisation gets the statistics that its inputs really have over a few
pictures, every bias is non-zero and no scale is the identity: so the numbers stay
of one size through the deepest network, and a mistake in folding shows in them.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from sample_inputs import sample
from torch import nn

SEED = 0
IMAGE_SHAPE = (1, 3, 224, 224)
TOKENS_SHAPE = (1, 128)
CALIBRATION_IMAGES = 4


@dataclass(frozen=True)
class Network:
    """A network and what it is fed.

    Parameters
    ----------
    module : nn.Module
        The network; it takes ``inputs`` by position and returns one tensor.
    inputs : tuple of Tensor
        Example inputs; their shapes become those of the file.
    input_names : tuple of str
        Names of the inputs in the file.
    """

    module: nn.Module
    inputs: tuple[torch.Tensor, ...]
    input_names: tuple[str, ...]


class Positional(nn.Module):
    """Give a network of transformers a positional signature and one output.

    Parameters
    ----------
    network : nn.Module
        Takes its inputs by name and returns a mapping.
    names : tuple of str
        The names of its inputs, in the order wanted.
    output : str
        Which of its outputs to return.
    fixed : keyword arguments
        Given to the network at every call.
    """

    def __init__(
        self, network: nn.Module, names: tuple[str, ...], output: str, **fixed: Any
    ) -> None:
        super().__init__()
        self.network = network
        self.names = names
        self.output = output
        self.fixed = fixed

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        """Return the chosen output."""
        named = dict(zip(self.names, inputs, strict=True))
        return self.network(**named, **self.fixed)[self.output]


def of_images(name: str) -> Callable[[], Network]:
    """Return the builder of a classifier of torchvision."""

    def builder() -> Network:
        module = getattr(import_torchvision().models, name)()
        return Network(module, (torch.randn(IMAGE_SHAPE),), ("image",))

    return builder


def vit_small() -> Network:
    """Return ViT-small with patches of 16 x 16 (the sizes of DeiT-S)."""
    transformers = import_transformers()
    config = transformers.ViTConfig(
        hidden_size=384, num_attention_heads=6, intermediate_size=1536, num_labels=1000
    )
    classifier = transformers.ViTForImageClassification(config)
    network = Positional(classifier, ("pixel_values",), "logits")
    return Network(network, (torch.randn(IMAGE_SHAPE),), ("image",))


def bert_base() -> Network:
    """Return the encoder of BERT-base for one sequence of 128 tokens."""
    transformers = import_transformers()
    config = transformers.BertConfig()
    encoder = transformers.BertModel(config, add_pooling_layer=False)
    names = ("input_ids", "attention_mask")
    tokens = torch.randint(config.vocab_size, TOKENS_SHAPE)
    network = Positional(encoder, names, "last_hidden_state")
    return Network(network, (tokens, torch.ones_like(tokens)), names)


def gpt2() -> Network:
    """Return GPT-2 (124 million weights) reading a prompt of 128 tokens.

    Its output are the logits of the next token, as generation needs them.
    """
    transformers = import_transformers()
    config = transformers.GPT2Config(use_cache=False)
    model = transformers.GPT2LMHeadModel(config)
    network = Positional(model, ("input_ids",), "logits", logits_to_keep=1)
    return Network(network, (torch.randint(config.vocab_size, TOKENS_SHAPE),), ("input_ids",))


def llama_block() -> Network:
    """Return one block with the sizes of TinyLlama 1.1B over 128 tokens.

    Grouped-query attention (32 heads over 4), rotary positions, SwiGLU, RMS-norm.
    """
    transformers = import_transformers()
    config = transformers.LlamaConfig(
        vocab_size=8,  # it is given embeddings
        hidden_size=2048,
        intermediate_size=5632,
        num_hidden_layers=1,
        num_attention_heads=32,
        num_key_value_heads=4,
        use_cache=False,
    )
    names = ("inputs_embeds",)
    network = Positional(transformers.LlamaModel(config), names, "last_hidden_state")
    return Network(network, (torch.randn(*TOKENS_SHAPE, config.hidden_size),), names)


def whisper_tiny() -> Network:
    """Return the encoder of Whisper-tiny for 30 seconds of sound."""
    transformers = import_transformers()
    config = transformers.WhisperConfig(
        d_model=384,
        encoder_layers=4,
        encoder_attention_heads=6,
        encoder_ffn_dim=1536,
        decoder_layers=1,
        decoder_attention_heads=6,
    )
    names = ("input_features",)
    encoder = transformers.WhisperModel(config).encoder
    network = Positional(encoder, names, "last_hidden_state")
    return Network(network, (torch.randn(1, config.num_mel_bins, 3000),), names)


BUILDERS: dict[str, Callable[[], Network]] = {
    "resnet18": of_images("resnet18"),
    "resnet50": of_images("resnet50"),
    "mobilenetv2": of_images("mobilenet_v2"),
    "mobilenetv3": of_images("mobilenet_v3_large"),
    "efficientnet_b0": of_images("efficientnet_b0"),
    "convnext_tiny": of_images("convnext_tiny"),
    "vit_small": vit_small,
    "bert_base": bert_base,
    "gpt2": gpt2,
    "llama_block": llama_block,
    "whisper_tiny": whisper_tiny,
}


def build(name: str) -> Network:
    """Return a network in evaluation mode; the same weights at every call.

    Raises
    ------
    ValueError
        Its output is not finite, or does not depend on its input.
    """
    torch.manual_seed(SEED)
    network = BUILDERS[name]()
    randomise(network.module)
    if any(is_batch_norm(layer) for layer in network.module.modules()):
        calibrate(network.module)
    network.module.eval()
    check_alive(name, network)
    return network


@torch.no_grad()
def randomise(module: nn.Module) -> None:
    """Move every scale and every zero vector of ``module`` off its default."""
    for name, parameter in module.named_parameters():
        kind = name.rpartition(".")[2]
        if kind == "layer_scale":  # ConvNeXt's; begins so small that a block would do nothing
            parameter.uniform_(0.2, 0.6)
        elif parameter.dim() == 1 and bool((parameter == 1).all()):
            parameter.uniform_(0.5, 1.5)
        elif parameter.dim() == 1 and not parameter.any():
            parameter.normal_(0.0, 0.05)


def is_batch_norm(layer: nn.Module) -> bool:
    """Whether a layer keeps statistics of what passed through it."""
    return isinstance(layer, nn.modules.batchnorm._BatchNorm)


@torch.no_grad()
def calibrate(module: nn.Module) -> None:
    """Give every batch normalisation the statistics of what it meets."""
    shape = (CALIBRATION_IMAGES, *IMAGE_SHAPE[1:])
    like = {"like": "picture", "low": -2, "high": 2}
    images = torch.from_numpy(sample(like, shape=shape, dtype="float32", seed=SEED))
    module.eval()
    for layer in batch_norms(module):
        layer.train()
        layer.momentum = None  # the mean over all calls, of which there is one
    module(images)


def batch_norms(module: nn.Module) -> Iterable[nn.modules.batchnorm._BatchNorm]:
    """Return the batch normalisations of ``module``."""
    return [layer for layer in module.modules() if is_batch_norm(layer)]


@torch.no_grad()
def check_alive(name: str, network: Network) -> None:
    """Refuse a network whose output says nothing about its input.

    Raises
    ------
    ValueError
        It is not finite, or moves by less than 1 % where the input is another one.
    """
    first, *others = network.inputs
    other = first.flip(-1)
    one, two = network.module(*network.inputs), network.module(other, *others)
    moved = float((one - two).abs().max() / one.abs().max())
    if not bool(torch.isfinite(one).all()) or not moved > 0.01:
        raise ValueError(f"{name}: its output is dead; another input moves it by {moved:.1e}")


def import_transformers() -> ModuleType:
    """Import transformers, which imports torchvision."""
    import_torchvision()
    return importlib.import_module("transformers")


def import_torchvision() -> ModuleType:
    """Import torchvision, also beside a CPU build of torch.

    PyPI's torchvision is built against the CUDA build of torch. Beside a CPU build
    its C++ library does not load, and the import then fails on two operators that
    no network here calls; declaring them is enough.
    """
    try:
        return importlib.import_module("torchvision")
    except RuntimeError:
        library = torch.library.Library("torchvision", "DEF")
        for operator in ("nms", "qnms"):
            library.define(f"{operator}(Tensor dets, Tensor scores, float threshold) -> Tensor")
        return importlib.import_module("torchvision")
