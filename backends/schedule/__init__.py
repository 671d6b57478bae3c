"""Loop trees: how statements run on a device, as data, between the kernels and what prints code."""
