"""Backends: the interpreter (the oracle of the tests) and libtorch (C++ that torch loads)."""
