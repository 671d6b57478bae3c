"""What C and C++ have in common, as data: the expressions that backends build and print."""
