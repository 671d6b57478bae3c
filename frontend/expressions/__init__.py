"""Expressions: one grammar, so its modules know each other."""
