"""The task of the agents here: an expression, worked out with one tool."""

import operator
import re

OPERATORS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}
INSTRUCTIONS = 'Use the tool for every operation. Then end with "#### " and the number.'


def compute(a: float, sign: str, b: float) -> str:
    return f"{OPERATORS[sign](a, b):g}"


def grade(task, text):
    answer = re.search(r"#### (\S+)", text)
    return float(answer is not None and answer[1] == task.ground_truth)
