"""What arithmetic and built-in functions compute: :mod:`loma.arithmetic.integers` in Python's ints,
:mod:`loma.arithmetic.grids` in NumPy."""
