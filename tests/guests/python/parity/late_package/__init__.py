"""A package that only a function imports."""
