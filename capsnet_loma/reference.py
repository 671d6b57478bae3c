"""The same CapsNet in plain PyTorch: what loma's version is compared with and measured against.

Same arguments, same ``state_dict`` keys and shapes. The functions are the twins of the ``.loma``
files; equation numbers are those of Sabour, Frosst and Hinton 2017. Autograd goes through all of
the routing.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from capsnet_loma.parameters import CapsNetParameters

RECONSTRUCTION_WEIGHT = 0.0005


def convolution(images: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """[B, C, H, W] -> [B, F, H', W'], through a ReLU."""
    return F.relu(F.conv2d(images, weight, bias))


def primary(features: Tensor, weight: Tensor, bias: Tensor, dim: int, stride: int) -> Tensor:
    """[B, C, H, W] -> capsules [B, types * places, dim], not yet squashed."""
    return grid_to_capsules(F.conv2d(features, weight, bias, stride=stride), dim)


def grid_to_capsules(grid: Tensor, dim: int) -> Tensor:
    """[B, types * dim, H, W] -> [B, types * H * W, dim]."""
    batch, channels, height, width = grid.shape
    types = grid.reshape(batch, channels // dim, dim, height * width)
    return types.transpose(2, 3).reshape(batch, channels // dim * height * width, dim)


def squash(capsules: Tensor) -> Tensor:
    """Equation (1), over the last dimension; value and gradient of a zero capsule are zero."""
    norm = torch.linalg.vector_norm(capsules, dim=-1, keepdim=True)
    squashed: Tensor = capsules * (norm / (1.0 + norm.square()))
    return squashed


def predictions(weight: Tensor, capsules: Tensor) -> Tensor:
    """Equation (2), right part: [I, R, O, K], [B, R, K] -> [B, I, R, O].

    einsum's result has the batch inside the capsules; in order, routing is up to twice as fast.
    """
    return torch.einsum("irok,brk->biro", weight, capsules).contiguous()


def routing(predicted: Tensor, iterations: int, over_inputs: int) -> Tensor:
    """Procedure 1: [B, I, R, O] -> [B, I, O]; the softmax is over R if ``over_inputs``, else I."""
    logits = predicted.new_zeros(predicted.shape[:3])
    output = predicted.new_zeros(predicted.shape[0], predicted.shape[1], predicted.shape[3])
    for iteration in range(iterations):
        coupling = logits.softmax(dim=2 if over_inputs else 1)
        output = squash(torch.einsum("bir,biro->bio", coupling, predicted))
        if iteration + 1 < iterations:
            logits = logits + torch.einsum("biro,bio->bir", predicted, output)
    return output


def digit_capsules(weight: Tensor, capsules: Tensor, iterations: int, over_inputs: int) -> Tensor:
    """[I, R, O, K], [B, R, K] -> [B, I, O]."""
    return routing(predictions(weight, capsules), iterations, over_inputs)


def lengths(capsules: Tensor) -> Tensor:
    """[B, I, O] -> [B, I]."""
    norm: Tensor = torch.linalg.vector_norm(capsules, dim=-1)
    return norm


def decoder(
    capsules: Tensor,
    mask: Tensor,
    w1: Tensor,
    b1: Tensor,
    w2: Tensor,
    b2: Tensor,
    w3: Tensor,
    b3: Tensor,
) -> Tensor:
    """[B, I, O], mask [B, I] -> image [B, P]."""
    masked = (capsules * mask.unsqueeze(-1)).flatten(1)
    hidden = F.relu(F.linear(F.relu(F.linear(masked, w1, b1)), w2, b2))
    return torch.sigmoid(F.linear(hidden, w3, b3))


def margin_loss(lengths: Tensor, targets: Tensor) -> Tensor:
    """Equation (4), summed over the classes, mean over the batch."""
    present = targets * F.relu(0.9 - lengths).square()
    absent = 0.5 * (1.0 - targets) * F.relu(lengths - 0.1).square()
    return (present + absent).sum(dim=1).mean()


def reconstruction_loss(images: Tensor, reconstruction: Tensor) -> Tensor:
    """Sum of squared differences of an image [B, P], mean over the batch."""
    return (reconstruction - images).square().sum(dim=1).mean()


class CapsNet(CapsNetParameters):
    """``forward(images, targets_one_hot=None) -> (capsules [B, I, O], reconstruction [B, P])``.

    Without targets the longest capsule is decoded.
    """

    def forward(
        self, images: Tensor, targets_one_hot: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        c = self.config
        features = F.relu(self.conv(images))
        inputs = grid_to_capsules(self.primary(features), c.primary_dim)
        predicted = predictions(self.digit_weight, squash(inputs))
        capsules = routing(predicted, c.routing_iterations, c.over_inputs)
        mask = longest(lengths(capsules)) if targets_one_hot is None else targets_one_hot
        return capsules, decoder(capsules, mask, *self.decoder_weights)


def longest(lengths: Tensor) -> Tensor:
    """A one-hot mask [B, I] of the longest capsule."""
    return F.one_hot(lengths.argmax(dim=1), lengths.shape[1]).to(lengths.dtype)


def capsule_loss(
    images: Tensor, targets_one_hot: Tensor, capsules: Tensor, reconstruction: Tensor
) -> Tensor:
    """Margin loss plus 0.0005 times the reconstruction loss: a 0-dim tensor."""
    margin = margin_loss(lengths(capsules), targets_one_hot)
    return margin + RECONSTRUCTION_WEIGHT * reconstruction_loss(images.flatten(1), reconstruction)
