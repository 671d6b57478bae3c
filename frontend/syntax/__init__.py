"""What Python's parser gives: which of it is loma, and reports of what is not."""
