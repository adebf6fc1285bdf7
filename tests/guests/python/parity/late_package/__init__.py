"""A package that is imported within a function only."""
