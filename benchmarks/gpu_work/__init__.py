"""What ``benchmarks/gpu.py`` measures, and how."""
