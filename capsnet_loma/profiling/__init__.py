"""Time, page faults and memory against PyTorch."""
