"""What must not get into records: keys among the arguments, passwords in addresses, folders of one machine."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

MASK = "***"
ELSEWHERE = "..."  # stands for the folders before a path's last name
_USER = re.compile(r"(?<=://)[^/@\s'\"]+@")
_FLAG = r"--?(?:[a-z0-9]+[-_])*(?:key|token|secret|password)"
_NAME = re.compile(_FLAG, re.IGNORECASE)
_PAIR = re.compile(rf"""(?P<flag>{_FLAG})(?P<between>["']?\s*[=,\s]\s*["']?)(?P<value>[^\s"',\]]+)""", re.IGNORECASE)


def masked(text: str) -> str:
    """The text with ``--api-key ...`` and the like, and ``user:password@`` of addresses, made unreadable."""
    hidden = _PAIR.sub(lambda found: f"{found['flag']}{found['between']}{MASK}", text)
    return _USER.sub(f"{MASK}@", hidden)


def masked_command(words: Sequence[str]) -> list[str]:
    """A command's words in the same way; a word behind the flag of a key is that key.

    Absolute paths are written from the working folder, those outside it by their last name behind ``...``.
    """
    found: list[str] = []
    for index, word in enumerate(words):
        is_key = index > 0 and _NAME.fullmatch(words[index - 1]) is not None
        found.append(MASK if is_key else _without_folders(masked(word)))
    return found


def _without_folders(word: str) -> str:
    """``/shelf/runs``, ``--out=/shelf/runs`` and ``eagle3=/shelf/drafter`` without the machine's folders."""
    name, equals, path = word.rpartition("=")
    if not path.startswith(("/", "~")) or len(Path(path).parts) < 2:
        return word
    whole, here = Path(path).expanduser(), Path.cwd()
    short = str(whole.relative_to(here)) if whole.is_relative_to(here) else f"{ELSEWHERE}/{whole.name}"
    return f"{name}{equals}{short}"
