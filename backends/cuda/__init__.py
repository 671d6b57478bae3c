"""Loops for NVIDIA GPUs: statements to trees for teams of threads, and these to CUDA C++."""
