"""Which dimensions tensors have, and in which order."""
