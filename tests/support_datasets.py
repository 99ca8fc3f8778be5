"""Two rows of each published data set, written for the tests, and the prompts that they become."""

from __future__ import annotations

from typing import Any

STEPS = "\nPlease reason step by step, and put your final answer within \\boxed{}."
TESTS = "Write a solution to the following problem and make sure that it passes the tests:\n"
ROLE = (
    "You are an expert Python programmer. You will be given a question (problem specification) and will generate a "
    "correct Python program that matches the specification and passes all tests. You will NOT return anything except "
    "for the program\n\n### Question:\n"
)
ANSWER = "\n```\n\n### Answer: (use the provided format with backticks)"

# The columns are those that each data set is published with.
ROWS: dict[str, list[dict[str, Any]]] = {
    "gsm8k": [{"question": "2 + 2?", "answer": "4\n#### 4"}, {"question": "3 - 1?", "answer": "2\n#### 2"}],
    "math500": [
        {"problem": "$1+1$", "solution": "s", "answer": "2", "subject": "Algebra", "level": 1, "unique_id": "t/1.json"},
        {"problem": "$2^3$", "solution": "s", "answer": "8", "subject": "Algebra", "level": 2, "unique_id": "t/2.json"},
    ],
    "aime25": [
        {"problem_idx": 1, "problem": "Find $n$.", "answer": 70, "problem_type": ["Algebra"]},
        {"problem_idx": 2, "problem": "Find $m$.", "answer": 588, "problem_type": ["Geometry"]},
    ],
    "humaneval": [
        {"task_id": f"HumanEval/{i}", "prompt": f"def f{i}():\n", "canonical_solution": "    pass\n", "test": "t",
         "entry_point": f"f{i}"} for i in range(2)
    ],
    "mbpp": [
        {"source_file": "f", "task_id": i, "prompt": f"Write a function to add {i}.", "code": "c", "test_imports": [],
         "test_list": ["assert f(1) == 2"]} for i in (11, 12)
    ],
    "livecodebench": [
        {"question_title": "t", "question_content": "Sum a list.", "platform": "leetcode", "question_id": "2727",
         "starter_code": "class Solution:\n    def f(self):\n        ", "private_test_cases": "x" * 1000},
        {"question_title": "t", "question_content": "Read n.", "platform": "atcoder", "question_id": "abc301_a",
         "starter_code": "", "private_test_cases": "x" * 1000},
    ],
    "mt-bench": [
        {"prompt": ["Write.", "Rewrite."], "reference": [], "category": "writing", "prompt_id": 29573679},
        {"prompt": ["Add.", "Again."], "reference": ["3", "4"], "category": "math", "prompt_id": 80660805},
    ],
    "alpaca": [
        {"instruction": "Name a fruit.", "input": "", "output": "Fig", "text": "x"},
        {"instruction": "Translate.", "input": "Guten Tag", "output": "Good day", "text": "x"},
    ],
    "arena-hard-v2": [
        {"uid": "0a", "category": "hard_prompt", "subcategory": "coding", "language": "English", "prompt": "zig?"},
        {"uid": "0b", "category": "creative_writing", "subcategory": "x", "language": "English", "prompt": "story"},
    ],
}  # fmt: skip

WORDED: dict[str, list[tuple[str, ...]]] = {
    "gsm8k": [("2 + 2?" + STEPS,), ("3 - 1?" + STEPS,)],
    "math500": [("$1+1$" + STEPS,), ("$2^3$" + STEPS,)],
    "aime25": [("Find $n$." + STEPS,), ("Find $m$." + STEPS,)],
    "humaneval": [(f"{TESTS}```python\ndef f{i}():\n\n```",) for i in range(2)],
    "mbpp": [("Write a function to add 11.",), ("Write a function to add 12.",)],
    "livecodebench": [
        (ROLE + "Sum a list.\n\n### Format: Use the following code structure:\n```python\nclass Solution:\n    "
         "def f(self):\n        " + ANSWER,),
        (ROLE + "Read n.\n\n### Format: Write your code in the following format:\n```python\n# YOUR CODE HERE"
         + ANSWER,),
    ],
    "mt-bench": [("Write.", "Rewrite."), ("Add.", "Again.")],
    "alpaca": [("Name a fruit.",), ("Translate.\n\nInput:\nGuten Tag",)],
    "arena-hard-v2": [("zig?",), ("story",)],
}  # fmt: skip

IDS = {
    "gsm8k": ["gsm8k-0", "gsm8k-1"],
    "math500": ["t/1.json", "t/2.json"],
    "aime25": ["aime25-0", "aime25-1"],
    "humaneval": ["HumanEval/0", "HumanEval/1"],
    "mbpp": ["mbpp-11", "mbpp-12"],
    "livecodebench": ["2727", "abc301_a"],
    "mt-bench": ["29573679", "80660805"],
    "alpaca": ["alpaca-0", "alpaca-1"],
    "arena-hard-v2": ["0a", "0b"],
}
