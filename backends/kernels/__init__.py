"""Kernels: functions as loops that a backend runs in parallel, before any backend's spelling."""
