"""Arithmetic expressions, evaluated without running code: Python's own parser reads them, and
only numbers and the four operations are accepted."""

import ast
import operator

OPERATIONS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


def evaluate(expression: str) -> float:
    """Evaluates an expression. Raises `ValueError` for anything else."""
    try:
        return value_of(ast.parse(expression.strip(), mode="eval").body)
    except SyntaxError:
        raise ValueError(f"not an expression: {expression}") from None


def value_of(node: ast.expr) -> float:
    match node:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -value_of(operand)
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            return value_of(operand)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATIONS:
            return float(OPERATIONS[type(op)](value_of(left), value_of(right)))
        case _:
            raise ValueError("only numbers, +, -, *, / and parentheses are understood")


def as_text(value: float) -> str:
    """Formats a value as a person writes it."""
    return str(int(value)) if float(value).is_integer() else str(value)
