"""Compile times of CapsNet's layers: with an empty cache, and loaded from the cache.

Each measurement is a process of its own with a cache folder of its own; importing torch is not
counted.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

CHILD = """
import time
import torch
start = time.perf_counter()
from capsnet_loma.layers import layers
layers()
print(time.perf_counter() - start)
"""


def seconds(cache: str) -> float:
    done = subprocess.run(
        [sys.executable, "-c", CHILD],
        env={**os.environ, "LOMA_CACHE_DIR": cache},
        check=True,
        capture_output=True,
        text=True,
    )
    return float(done.stdout)


def main() -> None:
    with tempfile.TemporaryDirectory() as cache:
        print(f"empty cache: {seconds(cache):6.1f} s")
        warm = sorted(seconds(cache) for _ in range(5))
        print(f"warm cache:  {warm[2]:6.2f} s (median of 5, beyond importing torch)")


if __name__ == "__main__":
    main()
