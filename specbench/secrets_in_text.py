"""What must not get into records: keys among the arguments, and passwords in addresses."""

from __future__ import annotations

import re
from collections.abc import Sequence

MASK = "***"
_USER = re.compile(r"(?<=://)[^/@\s'\"]+@")
_FLAG = r"--?(?:[a-z0-9]+[-_])*(?:key|token|secret|password)"
_NAME = re.compile(_FLAG, re.IGNORECASE)
_PAIR = re.compile(rf"""(?P<flag>{_FLAG})(?P<between>["']?\s*[=,\s]\s*["']?)(?P<value>[^\s"',\]]+)""", re.IGNORECASE)


def masked(text: str) -> str:
    """The text with ``--api-key ...`` and the like, and ``user:password@`` of addresses, made unreadable."""
    hidden = _PAIR.sub(lambda found: f"{found['flag']}{found['between']}{MASK}", text)
    return _USER.sub(f"{MASK}@", hidden)


def masked_command(words: Sequence[str]) -> list[str]:
    """A command's words in the same way; a word behind the flag of a key is that key."""
    found: list[str] = []
    for index, word in enumerate(words):
        is_key = index > 0 and _NAME.fullmatch(words[index - 1]) is not None
        found.append(MASK if is_key else masked(word))
    return found
