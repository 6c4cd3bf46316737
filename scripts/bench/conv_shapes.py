"""Every distinct 3×3 and 1×1 convolution of ResNet-50, and depthwise one of MobileNetV2."""

from __future__ import annotations

from dataclasses import dataclass

BIAS_FLOPS = 1


@dataclass(frozen=True)
class ConvShape:
    """A square convolution of one picture, padded to keep its size (but for the stride)."""

    channels: int
    filters: int
    size: int
    kernel: int = 1
    stride: int = 1
    groups: int = 1

    @property
    def out(self) -> int:
        """Height and width of the result."""
        return -(-self.size // self.stride)

    @property
    def flops(self) -> int:
        """Multiply-adds, counted as two, and the bias."""
        each = 2 * self.kernel**2 * self.channels // self.groups + BIAS_FLOPS
        return self.out**2 * self.filters * each

    @property
    def title(self) -> str:
        """Its sizes in a few characters."""
        by = f"/{self.stride}" if self.stride > 1 else ""
        ins = self.channels if self.groups == 1 else f"{self.channels} depthwise"
        outs = f" → {self.filters}" if self.groups == 1 else ""
        return f"{self.kernel}×{self.kernel}{by}, {ins}{outs}, {self.size}×{self.size}"


# torchvision's ResNet-50: (channels, filters, size, kernel, stride), each shape once.
RESNET50 = (
    *(
        ConvShape(*sizes)
        for sizes in (
            (64, 64, 56),
            (64, 256, 56),
            (256, 64, 56),
            (256, 128, 56),
            (256, 512, 56, 1, 2),
            (128, 512, 28),
            (512, 128, 28),
            (512, 256, 28),
            (512, 1024, 28, 1, 2),
            (256, 1024, 14),
            (1024, 256, 14),
            (1024, 512, 14),
            (1024, 2048, 14, 1, 2),
            (512, 2048, 7),
            (2048, 512, 7),
        )
    ),
    *(
        ConvShape(channels, channels, size, 3, stride)
        for channels, size, stride in (
            (64, 56, 1),
            (128, 56, 2),
            (128, 28, 1),
            (256, 28, 2),
            (256, 14, 1),
            (512, 14, 2),
            (512, 7, 1),
        )
    ),
)
MOBILENETV2 = tuple(
    ConvShape(channels, channels, size, 3, stride, channels)
    for channels, size, stride in (
        (32, 112, 1),
        (96, 112, 2),
        (144, 56, 1),
        (144, 56, 2),
        (192, 28, 1),
        (192, 28, 2),
        (384, 14, 1),
        (576, 14, 1),
        (576, 14, 2),
        (960, 7, 1),
    )
)
