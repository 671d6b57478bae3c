"""Tensor functions for devices of their own: numbers, so that the host waits for none of them, and
biases of convolutions."""
