"""Trees for CPUs as C++ with vectors and threads, and what that calls."""
