"""The parameters of a CapsNet: shared by loma's network and its plain-PyTorch twin."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from capsnet_loma.config import CapsNetConfig


class CapsNetParameters(nn.Module):
    """Holds weights and biases under the names that a ``state_dict`` of either network has."""

    def __init__(self, config: CapsNetConfig | None = None) -> None:
        super().__init__()
        self.config = c = config or CapsNetConfig()
        channels = c.primary_types * c.primary_dim
        self.conv = nn.Conv2d(c.image_channels, c.conv_channels, c.conv_kernel)
        self.primary = nn.Conv2d(c.conv_channels, channels, c.primary_kernel, c.primary_stride)
        self.digit_weight = nn.Parameter(
            0.1 * torch.randn(c.classes, c.input_capsules, c.digit_dim, c.primary_dim)
        )
        self.fc1 = nn.Linear(c.classes * c.digit_dim, c.decoder_hidden[0])
        self.fc2 = nn.Linear(c.decoder_hidden[0], c.decoder_hidden[1])
        self.fc3 = nn.Linear(c.decoder_hidden[1], c.image_elements)

    @property
    def decoder_weights(self) -> tuple[Tensor, ...]:
        """Weight and bias of each of the decoder's layers."""
        layers = (self.fc1, self.fc2, self.fc3)
        return tuple(part for layer in layers for part in (layer.weight, layer.bias))
