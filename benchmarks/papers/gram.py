"""CapsNet as Gram.AI's implementation computes it, and the steps by which P. Nair made it faster.

In plain PyTorch, with the parameters of :class:`capsnet_loma.reference.CapsNet` in that
implementation's shapes. The softmax of the routing runs over the input capsules.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from capsnet_loma import reference
from capsnet_loma.config import CapsNetConfig

# What the published table has one above the other; each is faster than the one before.
STAGES = (
    "Gram.AI",
    "W times X",
    "softmax over a dimension",
    "one convolution",
)


class Gram(nn.Module):
    """``forward(images, targets_one_hot=None) -> (capsules [B, I, O], reconstruction [B, P])``.

    ``stage``: so many of the improvements are made. Without targets the longest capsule is decoded.
    """

    def __init__(self, net: reference.CapsNet, stage: int = 0) -> None:
        super().__init__()
        self.config: CapsNetConfig = net.config
        self.stage = stage
        c = net.config
        self.conv, self.fc1, self.fc2, self.fc3 = net.conv, net.fc1, net.fc2, net.fc3
        # Components are the outermost index of the channels: a convolution has one of them.
        assert net.primary.bias is not None
        w, b = by_component(net.primary.weight, c), by_component(net.primary.bias, c)
        parts = [(w, b)] if stage >= 3 else list(zip(w.unbind(), b.unbind(), strict=True))
        self.primary_weights = nn.ParameterList(w.reshape(-1, *w.shape[-3:]) for w, _ in parts)
        self.primary_biases = nn.ParameterList(b.reshape(-1) for _, b in parts)
        weight = net.digit_weight.detach()  # [I, R, O, K]; X times W wants [I, R, K, O]
        self.digit_weight = nn.Parameter(
            (weight if stage >= 1 else weight.transpose(2, 3)).contiguous().clone()
        )

    def forward(
        self, images: Tensor, targets_one_hot: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        c = self.config
        features = F.relu(self.conv(images), inplace=True)
        components = [
            F.conv2d(features, w, b, stride=c.primary_stride)
            for w, b in zip(self.primary_weights, self.primary_biases, strict=True)
        ]
        if self.stage >= 3:
            inputs = components[0].reshape(len(images), c.primary_dim, -1).transpose(1, 2)
        else:
            inputs = torch.cat([part.reshape(len(images), -1, 1) for part in components], 2)
        capsules = self.routed(squash(inputs))
        if targets_one_hot is None:
            targets_one_hot = reference.longest(reference.lengths(capsules))
        weights = [part for fc in (self.fc1, self.fc2, self.fc3) for part in (fc.weight, fc.bias)]
        return capsules, reference.decoder(capsules, targets_one_hot, *weights)

    def routed(self, x: Tensor) -> Tensor:
        """Capsules [B, R, K] -> [B, I, O]: the predictions, and logits of their full size."""
        if self.stage >= 1:
            u = (self.digit_weight[:, None] @ x[None, :, :, :, None]).squeeze(4)  # [I, B, R, O]
        else:
            u = (x[None, :, :, None, :] @ self.digit_weight[:, None]).squeeze(3)
        softmax = over_dimension if self.stage >= 2 else by_transposing
        logits = torch.zeros_like(u)
        v = u
        for t in range(self.config.routing_iterations):
            v = squash((softmax(logits, 2) * u).sum(2, keepdim=True))
            if t + 1 < self.config.routing_iterations:
                logits = logits + (u * v).sum(3, keepdim=True)
        return v.squeeze(2).transpose(0, 1)

    def by_name(self, gradients: bool = False) -> Mapping[str, Tensor]:
        """The parameters, or their gradients, with the reference's names and shapes."""

        def part(p: Tensor) -> Tensor:
            if not gradients:
                return p.detach()
            assert p.grad is not None
            return p.grad

        c = self.config
        found = {
            name: part(p) for name, p in self.named_parameters() if name.startswith(("conv", "fc"))
        }
        weight = torch.cat([part(p) for p in self.primary_weights])
        bias = torch.cat([part(p) for p in self.primary_biases])
        for name, value in (("primary.weight", weight), ("primary.bias", bias)):
            split = value.unflatten(0, (c.primary_dim, c.primary_types))
            found[name] = split.transpose(0, 1).flatten(0, 1)
        digits = part(self.digit_weight)
        found["digit_weight"] = digits if self.stage >= 1 else digits.transpose(2, 3)
        return found


def by_component(channels: Tensor, config: CapsNetConfig) -> Tensor:
    """[types * dim, ...] -> [dim, types, ...], a copy."""
    split = channels.detach().unflatten(0, (config.primary_types, config.primary_dim))
    apart: Tensor = split.transpose(0, 1).contiguous()
    return apart


def squash(s: Tensor) -> Tensor:
    """As it is written there: the scale, times the vector, by the root of the squared norm."""
    square = s.square().sum(-1, keepdim=True)
    scaled: Tensor = square / (1.0 + square) * s / square.sqrt()
    return scaled


def over_dimension(x: Tensor, dim: int) -> Tensor:
    return x.softmax(dim)


def by_transposing(x: Tensor, dim: int) -> Tensor:
    """The dimension goes to the end, the others become one; then everything goes back."""
    moved = x.transpose(dim, -1)
    rows = moved.contiguous().view(-1, moved.shape[-1]).softmax(1)
    back: Tensor = rows.view(moved.shape).transpose(dim, -1)
    return back
