"""The CUDA backend: loops of tensor functions as kernels of a GPU."""
