"""Loops for CPUs: statements and kernels to loop trees, and trees to C++ with vectors and threads."""
