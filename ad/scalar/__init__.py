"""Both modes on scalar functions, which overwrite variables, arrays and structs."""
