"""What is written from the results: tables and pictures."""
