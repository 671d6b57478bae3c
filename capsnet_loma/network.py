"""CapsNet on the compiled layers: PyTorch holds the parameters, loma does the mathematics."""

from __future__ import annotations

from torch import Tensor

from capsnet_loma.config import CapsNetConfig
from capsnet_loma.layers import layers
from capsnet_loma.parameters import CapsNetParameters
from capsnet_loma.reference import RECONSTRUCTION_WEIGHT, longest


class CapsNet(CapsNetParameters):
    """``forward(images, targets_one_hot=None) -> (capsules [B, I, O], reconstruction [B, P])``.

    Without targets the longest capsule is decoded. Parameters have the names, shapes and initial
    values of :class:`capsnet_loma.reference.CapsNet`.
    """

    def __init__(self, config: CapsNetConfig | None = None) -> None:
        super().__init__(config)
        layers()  # compiles before the first batch

    def forward(
        self, images: Tensor, targets_one_hot: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        c = self.config
        f = layers()
        features = f.convolution(images, self.conv.weight, self.conv.bias)
        inputs = f.primary(
            features, self.primary.weight, self.primary.bias, c.primary_dim, c.primary_stride
        )
        capsules = f.digit_capsules(
            self.digit_weight, f.squash(inputs), c.routing_iterations, int(c.over_inputs)
        )
        if targets_one_hot is None:
            mask = longest(f.lengths(capsules))
        else:
            mask = targets_one_hot.to(capsules.dtype)
        return capsules, f.decoder(capsules, mask, *self.decoder_weights)


def capsule_loss(
    images: Tensor, targets_one_hot: Tensor, capsules: Tensor, reconstruction: Tensor
) -> Tensor:
    """Margin loss plus 0.0005 times the reconstruction loss: a 0-dim tensor."""
    f = layers()
    margin = f.margin_loss(f.lengths(capsules), targets_one_hot.to(capsules.dtype))
    blurred = f.reconstruction_loss(images.flatten(1), reconstruction)
    return margin + RECONSTRUCTION_WEIGHT * blurred
