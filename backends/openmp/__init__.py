"""Loops for CPUs: statements and kernels to trees, and trees to C++ with vectors and threads."""
