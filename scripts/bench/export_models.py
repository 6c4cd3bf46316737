"""Export the benchmark networks with seeded random weights as ONNX files.

Batch normalisation gets statistics that are not the identity and every bias is
non-zero, so that a mistake in folding shows in the numbers. The plain names come
from torch's present exporter, which folds batch normalisation; a name that ends
in ``_bn`` comes from its older one, which here keeps the BatchNormalization
nodes. The two write different graphs, and both kinds of file are in use.

Needs the packages of ``requirements.txt`` beside this file::

    python scripts/bench/export_models.py --into models/bench
"""

from __future__ import annotations

import argparse
import importlib
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import torch
from torch import nn

SEED = 0
IMAGE_SHAPE = (1, 3, 224, 224)
TOKENS_SHAPE = (1, 128)


@dataclass(frozen=True)
class Network:
    """A network in evaluation mode, ready to be exported.

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


class LastHiddenState(nn.Module):
    """Give a transformers encoder a positional signature and one output."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Return the last hidden state, shape (batch, tokens, width)."""
        output = self.encoder(input_ids=input_ids, attention_mask=attention_mask)
        return output.last_hidden_state


def resnet18() -> Network:
    """Return torchvision's ResNet-18."""
    models = import_torchvision().models
    return Network(models.resnet18(), (torch.randn(IMAGE_SHAPE),), ("image",))


def mobilenetv2() -> Network:
    """Return torchvision's MobileNetV2."""
    models = import_torchvision().models
    return Network(models.mobilenet_v2(), (torch.randn(IMAGE_SHAPE),), ("image",))


def bert_base() -> Network:
    """Return the encoder of BERT-base for one sequence of 128 tokens."""
    import_torchvision()  # transformers imports it
    from transformers import BertConfig, BertModel

    config = BertConfig()
    encoder = LastHiddenState(BertModel(config, add_pooling_layer=False))
    tokens = torch.randint(config.vocab_size, TOKENS_SHAPE)
    return Network(encoder, (tokens, torch.ones_like(tokens)), ("input_ids", "attention_mask"))


BUILDERS: dict[str, Callable[[], Network]] = {
    "resnet18": resnet18,
    "mobilenetv2": mobilenetv2,
    "bert_base": bert_base,
}
KEEPS_BATCH_NORM = "_bn"
NAMES = (*BUILDERS, "resnet18_bn", "mobilenetv2_bn")


def main(argv: Sequence[str] | None = None) -> None:
    """Export the networks named on the command line, or all of them."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}")
    parser.add_argument("--into", type=Path, required=True, metavar="DIR")
    args = parser.parse_args(argv)
    unknown = sorted(set(args.names) - set(NAMES))
    if unknown:
        parser.error(f"unknown network {', '.join(unknown)}: choose from {', '.join(NAMES)}")
    # The older exporter is meant; its warning says that there is a newer one.
    warnings.filterwarnings("ignore", "You are using the legacy", DeprecationWarning)
    for name in args.names or NAMES:
        path = args.into / f"{name}.onnx"
        export(name, path)
        print(f"{path}  {path.stat().st_size / 1e6:.1f} MB", flush=True)


def export(name: str, path: Path) -> None:
    """Write the network called ``name`` to ``path``.

    The file appears whole or not at all.
    """
    torch.manual_seed(SEED)
    network = BUILDERS[name.removesuffix(KEEPS_BATCH_NORM)]()
    randomise(network.module)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    if name.endswith(KEEPS_BATCH_NORM):
        options = {
            "dynamo": False,
            "training": torch.onnx.TrainingMode.PRESERVE,
            "do_constant_folding": False,
            "opset_version": 17,
        }
    else:
        options = {"dynamo": True, "external_data": False, "opset_version": 18}
    torch.onnx.export(
        network.module.eval(),
        network.inputs,
        partial,
        input_names=network.input_names,
        output_names=("output",),
        verbose=False,
        **options,
    )
    partial.replace(path)


@torch.no_grad()
def randomise(module: nn.Module) -> None:
    """Move every normalisation and every zero vector of ``module`` off its default."""
    for layer in module.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.running_mean.normal_(0.0, 0.1)
            layer.running_var.uniform_(0.5, 1.5)
        if isinstance(layer, nn.BatchNorm2d | nn.LayerNorm):
            layer.weight.uniform_(0.5, 1.5)
    for parameter in module.parameters():
        if parameter.dim() == 1 and not parameter.any():
            parameter.normal_(0.0, 0.05)


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


if __name__ == "__main__":
    main()
