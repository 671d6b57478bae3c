"""For editors and documentation: what highlights a program, and what a language server knows."""
