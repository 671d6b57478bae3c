"""The sizes and options of a CapsNet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Softmax = Literal["digits", "inputs"]


@dataclass(frozen=True, slots=True)
class CapsNetConfig:
    """Sizes of Sabour, Frosst and Hinton, "Dynamic Routing Between Capsules", 2017, for MNIST.

    ``routing_softmax`` is "digits" (over the digit capsules, as in the paper) or "inputs" (over
    the input capsules, as some implementations do). Raises ValueError for sizes that do not fit
    each other.
    """

    image_channels: int = 1
    image_size: int = 28
    conv_channels: int = 256
    conv_kernel: int = 9
    primary_types: int = 32
    primary_dim: int = 8
    primary_kernel: int = 9
    primary_stride: int = 2
    classes: int = 10
    digit_dim: int = 16
    routing_iterations: int = 3
    routing_softmax: Softmax = "digits"
    decoder_hidden: tuple[int, int] = (512, 1024)

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            numbers = value if isinstance(value, tuple) else (value,)
            if any(isinstance(n, int) and n < 1 for n in numbers):
                raise ValueError(f"CapsNetConfig: {name} must be at least 1, got {value}")
        if self.routing_softmax not in ("digits", "inputs"):
            raise ValueError(
                "CapsNetConfig: routing_softmax must be 'digits' or 'inputs', "
                f"got {self.routing_softmax!r}"
            )
        smallest = self.conv_kernel + self.primary_kernel - 1
        if self.image_size < smallest:
            raise ValueError(
                f"CapsNetConfig: image_size {self.image_size} is too small for kernels "
                f"{self.conv_kernel} and {self.primary_kernel}: it must be at least {smallest}"
            )

    @property
    def primary_grid(self) -> int:
        """Places along one side of the grid of primary capsules (6 for MNIST)."""
        features = self.image_size - self.conv_kernel + 1
        return (features - self.primary_kernel) // self.primary_stride + 1

    @property
    def input_capsules(self) -> int:
        """Number of primary capsules (1152 for MNIST)."""
        return self.primary_types * self.primary_grid**2

    @property
    def image_elements(self) -> int:
        """Number of values in an image, channels included (784 for MNIST)."""
        return self.image_channels * self.image_size**2

    @property
    def over_inputs(self) -> bool:
        return self.routing_softmax == "inputs"
