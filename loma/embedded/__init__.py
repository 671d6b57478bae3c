"""Programs in Python files and notebooks: the decorator, and the words of the language."""
