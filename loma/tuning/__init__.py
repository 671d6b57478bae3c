"""Tuning: which of the ways that lowering could go is the fastest, for a function and its sizes.

:mod:`~loma.tuning.search` looks for it, :mod:`~loma.tuning.calls` compiles and measures what is
looked at, with the arguments of a call, and :mod:`~loma.tuning.results` keeps what was found.
"""
