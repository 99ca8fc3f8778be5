"""Wording that several tasks share, as evaluations of chat models in the field use it."""

from __future__ import annotations


def math_question(problem: str) -> str:
    """A mathematics problem with the request for steps and a boxed answer."""
    return f"{problem}\nPlease reason step by step, and put your final answer within \\boxed{{}}."
