"""Functions that programs write out, exponentials above all."""
