"""How user turns begin when the target writes them itself: a system text and first words, by domain.

The target continues an opener as the user; a `whole` one is a complete turn already and is taken as it is. Words in
braces are drawn from `SLOTS`, so that many turns differ from their first word on.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
from dataclasses import asdict, dataclass

_FOLLOWED = 0.125  # share of turns that a second one follows
_SLOT = re.compile(r"\{([a-z]+)\}")


@dataclass(frozen=True, slots=True)
class Opener:
    """``text`` begins the user's turn; ``system`` None leaves the template's own system text.

    ``ending`` is put after the finished turn; ``then`` is a second turn, after the answer to the first.
    """

    text: str
    system: str | None = None
    whole: bool = False
    ending: str = ""
    then: str | None = None


SLOTS: dict[str, tuple[str, ...]] = {
    "name": (
        "Anna", "Ben", "Carla", "Dmitri", "Elif", "Femi", "Greta", "Hassan", "Ines", "Jonas", "Kavya", "Leo", "Marta",
        "Nadia", "Oskar", "Priya", "Quentin", "Rosa", "Samir", "Tess", "Umar", "Vera", "Wen", "Ximena", "Yuki", "Zoe",
    ),
    "thing": (
        "apples", "pencils", "tickets", "stamps", "bricks", "candles", "cookies", "marbles", "notebooks", "bottles",
        "seashells", "lemons", "buttons", "postcards", "batteries", "tulips", "eggs", "tiles", "coins", "towels",
        "screws", "pears", "balloons", "sandwiches", "books", "keys", "plates", "stickers", "ropes", "masks",
    ),
    "place": (
        "farm", "school", "library", "factory", "bakery", "museum", "garden", "stadium", "hospital", "harbour",
        "market", "hotel", "theatre", "workshop", "airport", "bookshop", "campsite", "zoo", "office", "café",
    ),
    "n": tuple(str(n) for n in (*range(2, 40), 42, 45, 48, 50, 54, 56, 60, 64, 72, 75, 80, 84, 90, 96, 108, 120, 125)),
    "big": tuple(str(n) for n in (130, 144, 150, 168, 180, 200, 216, 225, 250, 280, 300, 320, 365, 400, 450, 512, 640)),
    "shape": ("square", "triangle", "circle", "cube", "cylinder", "rectangle", "cone", "trapezoid", "sphere"),
    "maths": (
        "fractions", "prime numbers", "percentages", "linear equations", "the area of a triangle", "probability",
        "square roots", "averages", "negative numbers", "the Pythagorean theorem", "ratios", "arithmetic sequences",
        "logarithms", "derivatives", "the quadratic formula", "place value", "permutations", "angles in a polygon",
    ),
    "language": (
        "Python", "Python", "Python", "Python", "JavaScript", "Java", "C", "C++", "SQL", "Bash", "Rust", "Go", "HTML",
    ),
    "data": (
        "list of integers", "string", "dictionary", "list of words", "matrix", "linked list", "binary tree", "tuple",
        "set of numbers", "sentence", "list of tuples", "sorted array", "CSV file", "date string", "text file", "stack",
    ),
    "verb": (
        "count", "sort", "reverse", "merge", "filter", "sum", "find", "remove", "convert", "check", "replace", "split",
        "group", "compare", "rotate", "validate", "parse", "flatten", "print", "compute",
    ),
    "topic": (
        "volcanoes", "sleep", "the moon", "coffee", "bees", "electric cars", "ancient Rome", "chess", "vaccines",
        "whales", "the stock market", "earthquakes", "jazz", "photosynthesis", "the printing press", "deserts",
        "recycling", "bicycles", "the water cycle", "dreams", "tea", "bridges", "dinosaurs", "glaciers", "democracy",
        "black holes", "bread", "satellites", "memory", "the human heart", "coral reefs", "maps", "time zones",
        "solar power", "gravity", "the Silk Road", "migration of birds", "soap", "paper", "the internet",
    ),
    "hobby": (
        "gardening", "running", "painting", "learning the guitar", "photography", "baking", "hiking", "knitting",
        "swimming", "reading more", "yoga", "cycling", "birdwatching", "pottery", "writing poetry", "camping",
    ),
    "person": (
        "teacher", "neighbour", "boss", "friend", "sister", "customer", "landlord", "grandmother", "colleague", "coach",
        "roommate", "nephew", "doctor", "pen pal",
    ),
    "feeling": ("tired", "nervous", "excited", "bored", "worried", "lonely", "curious", "stressed", "proud", "unsure"),
    "city": (
        "Paris", "Tokyo", "Cairo", "Toronto", "Berlin", "Mumbai", "Lima", "Nairobi", "Rome", "Seoul", "Oslo", "Boston",
        "Istanbul", "Mexico City", "Sydney", "Prague",
    ),
    "mood": ("funny", "short", "sad", "mysterious", "cheerful", "formal", "dramatic", "simple", "poetic", "friendly"),
}  # fmt: skip

# As the field words its tests (specbench_tasks): the form of a prompt shapes the answer, its content is another.
_STEPS = "\nPlease reason step by step, and put your final answer within \\boxed{}."
_TESTS = "Write a solution to the following problem and make sure that it passes the tests:\n```python\n"

_TUTOR = "You are a patient mathematics tutor. The user asks for help with a problem."
_CODER = "You are an experienced programmer. The user asks for help with code."
_HELPER = "You are a helpful assistant. The user asks a question or gives a task."

OPENERS: dict[str, tuple[Opener, ...]] = {
    "math": (
        Opener("{name} has {n} {thing}", _TUTOR),
        Opener("{name} buys {n} {thing} at a {place}", _TUTOR),
        Opener("A {place} sells {n} {thing} a day", _TUTOR),
        Opener("There are {big} {thing} in a {place}", _TUTOR),
        Opener("{name} and {name} share {n} {thing}", _TUTOR),
        Opener("If {n} {thing} cost ${n}, how", _TUTOR),
        Opener("A {place} has {n} rooms and each room", _TUTOR),
        Opener("{name} walks {n} kilometres", _TUTOR),
        Opener("The length of a {shape} is {n} cm", _TUTOR),
        Opener("What is the area of a {shape}", _TUTOR),
        Opener("How many {thing}", _TUTOR),
        Opener("Find the value of", _TUTOR),
        Opener("Solve the equation", _TUTOR),
        Opener("Let $x$ be", _TUTOR),
        Opener("What is the probability that", _TUTOR),
        Opener("The sum of two numbers is {big}", _TUTOR),
        Opener("Explain {maths} with", _TUTOR),
        Opener("A train", _TUTOR),
        Opener("{name} earns ${n} an hour", _TUTOR),
        Opener("In a class of {n} students", _TUTOR),
        Opener("Simplify", _TUTOR),
        Opener("{name} has {n} {thing}", _TUTOR, ending=_STEPS),
        Opener("A {place} has {n}", _TUTOR, ending=_STEPS),
        Opener("{name} and {name}", _TUTOR, ending=_STEPS),
        Opener("Every day {name}", _TUTOR, ending=_STEPS),
        Opener("There are {n} {thing}", _TUTOR, ending=_STEPS),
        Opener("{name} spends ${n} on {thing}", _TUTOR, ending=_STEPS),
        Opener("Find", _TUTOR, ending=_STEPS),
        Opener("What is", _TUTOR, ending=_STEPS),
        Opener("A {shape}", _TUTOR, ending=_STEPS),
        Opener("", "You are a mathematics tutor. The user gives a word problem about {thing}.", ending=_STEPS),
        Opener("", "You are a mathematics tutor. The user gives a word problem about {thing}."),
        Opener("", "You are a mathematics tutor. The user asks about {maths}."),
        Opener("Compute {big} divided by {n} and show each step.", whole=True),
        Opener("What is {n}% of {big}? Show how you get there.", whole=True),
        Opener("What are the first {n} multiples of {n}?", whole=True),
        Opener("{name} packs {big} {thing} into boxes of {n}. How many boxes does {name} fill?", whole=True),
        Opener("Explain {maths} to {name}, who is {n} years old, with one worked example.", whole=True),
        Opener("A {place} had {big} {thing}. It sold {n} of them on Monday and {n} on Tuesday. How many are left?",
               whole=True),
        Opener("Solve {n}x + {n} = {big} for x.", whole=True),
        Opener("Write {n}/{big} as a fraction in lowest terms and as a decimal.", whole=True),
    ),
    "code": (
        Opener("Write a {language} function that", _CODER),
        Opener("Write a {language} function to {verb}", _CODER),
        Opener("Write a function in {language} which takes a {data}", _CODER),
        Opener("Write a {language} program", _CODER),
        Opener("How do I {verb} a {data} in {language}", _CODER),
        Opener("I have a {data} in {language} and I", _CODER),
        Opener("What does this code do?\n\n```python\ndef", _CODER),
        Opener("Fix the bug in this function:\n\n```python\ndef", _CODER),
        Opener("Complete this function:\n\n```python\ndef {verb}_", _CODER),
        Opener("Complete the following code.\n\n```python\nfrom typing import List\n\n\ndef", _CODER),
        Opener(_TESTS + "def", _CODER),
        Opener(_TESTS + "def {verb}_", _CODER),
        Opener(_TESTS + "from typing import List\n\n\ndef", _CODER),
        Opener("Write a function to {verb}", _CODER),
        Opener("Write a python function to", _CODER),
        Opener("Write a function to find", _CODER),
        Opener("Write a Python class", _CODER),
        Opener("Explain the difference between", _CODER),
        Opener("Given a {data}, {verb}", _CODER),
        Opener("Create a {language} script", _CODER),
        Opener("Implement", _CODER),
        Opener("Write an SQL query", _CODER),
        Opener("Write unit tests for", _CODER),
        Opener("Add comments to this code:\n\n```", _CODER),
        Opener("Write a regular expression that", _CODER),
        Opener("", "You are a programmer. The user asks for a {language} function that works on a {data}."),
        Opener("", "You are a programmer. The user asks about {language}."),
        Opener("Write a Python function that takes a {data} and will {verb} it. Explain it briefly.", whole=True),
        Opener("Show how to {verb} a {data} in {language}, with a short example.", whole=True),
        Opener("Write a {language} program that prints the numbers from {n} to {big} in steps of {n}.", whole=True),
        Opener("Write a {language} class for a {place} that keeps track of its {thing}.", whole=True),
        Opener("Describe a function `{verb}_{thing}` for a {place}, then write it in {language}.", whole=True),
        Opener("Create a table of {thing} sold by a {place} in SQL and list the {n} most expensive ones.", whole=True),
    ),
    "chat": (
        Opener("What is", _HELPER),
        Opener("How do", _HELPER),
        Opener("Why is", _HELPER),
        Opener("Can you explain", _HELPER),
        Opener("I feel {feeling} because", _HELPER),
        Opener("Give me some tips for {hobby}", _HELPER),
        Opener("Write a {mood} story about", _HELPER),
        Opener("Write a {mood} poem about {topic}", _HELPER),
        Opener("Write a {mood} email to my {person}", _HELPER),
        Opener("Tell me about {topic}", _HELPER),
        Opener("What are the main differences between", _HELPER),
        Opener("Summarize the following text:", _HELPER),
        Opener("Suggest", _HELPER),
        Opener("Plan a day in {city} for", _HELPER),
        Opener("Rewrite this sentence", _HELPER),
        Opener("My {person} and I", _HELPER),
        Opener("I am writing about {topic}", _HELPER),
        Opener("Imagine you are", _HELPER),
        Opener("Compare {topic} and", _HELPER),
        Opener("Describe", _HELPER),
        Opener("List", _HELPER),
        Opener("", _HELPER),
        Opener(""),
        Opener("", "You are a helpful assistant. The user is interested in {topic}."),
        Opener("", "You are a friendly companion. The user feels {feeling} and wants to talk about {hobby}."),
        Opener("Explain {topic} to a child in a few sentences.", whole=True),
        Opener("Write a {mood} paragraph about {topic} for my {person}.", whole=True),
        Opener("How do I begin with {hobby}? I feel {feeling} and have {n} minutes a day.", whole=True),
        Opener("What should I see in {city} if I like {topic} and {hobby}?", whole=True),
        Opener("Write a {mood} dialogue between a {person} and a {person} about {topic}.", whole=True),
        Opener("Name {n} facts about {topic}.", whole=True),
        Opener("What are the advantages and the disadvantages of {hobby} in {city}?", whole=True),
        Opener("Write a {mood} invitation from {name} to a {person} for an evening of {hobby}.", whole=True),
    ),
}  # fmt: skip


FOLLOW_UPS: dict[str, tuple[str, ...]] = {
    "math": (
        "Now do the same with {n} instead of the first number.",
        "How can I check that this is right?",
        "Explain the last step in other words.",
        "Give me a similar exercise and its solution.",
        "What would change if everything were {n} times as large?",
    ),
    "code": (
        "Add error handling to it.",
        "Now write it in {language}.",
        "Explain how it works, line by line.",
        "Write {n} tests for it.",
        "Can it be made faster?",
        "Add type hints and comments.",
    ),
    "chat": (
        "Make it shorter and more {mood}.",
        "Can you give me an example?",
        "Say that again for a child of {n}.",
        "What else should I know about it?",
        "Write it as a list of points.",
        "How does that compare with {topic}?",
    ),
}


def openers_hash() -> str:
    """Hash of everything that turns are drawn from."""
    parts = {
        "openers": {domain: [asdict(one) for one in found] for domain, found in OPENERS.items()},
        "follow_ups": FOLLOW_UPS,
        "slots": SLOTS,
        "followed": _FOLLOWED,
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def draw_opener(domain: str, *, seed: int, number: int) -> Opener:
    """The opener of candidate ``number``, its slots filled: the same for the same arguments, anywhere."""
    source = random.Random(f"{seed}/{domain}/{number}")  # strings are hashed alike by every Python
    chosen = source.choice(OPENERS[domain])
    system = None if chosen.system is None else _filled(chosen.system, source)
    text = _filled(chosen.text, source)
    then = _filled(source.choice(FOLLOW_UPS[domain]), source) if source.random() < _FOLLOWED else None
    return Opener(text, system, chosen.whole, chosen.ending, then)


def _filled(text: str, source: random.Random) -> str:
    """``text`` with each slot replaced by a draw; two slots of one name may differ."""
    return _SLOT.sub(lambda found: source.choice(SLOTS[found[1]]), text)
