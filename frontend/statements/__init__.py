"""Statements and index statements."""
