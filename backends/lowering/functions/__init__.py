"""What the lowering of a function is made of."""
