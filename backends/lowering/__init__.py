"""Functions to loop trees, for the machine that a record (:class:`Target`) describes."""
