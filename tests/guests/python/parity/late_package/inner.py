"""A module of it."""


def twice(number: int) -> int:
    return 2 * number
