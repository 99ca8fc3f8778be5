"""Texts that say the same: exact copies by hash, near copies by the word triples that two texts share.

Against the evaluation tasks, of which there are few, shared triples are counted exactly. Among the training prompts
themselves, of which there may be millions, they are estimated by MinHash signatures (Broder 1997) found through bands.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import xxhash
from numpy.typing import NDArray

from specbench.types import Prompt

_PIECE = re.compile(r"\w+|[^\w\s]")
_WIDTH = 3  # words of a shingle
_COMMON_SHARE, _COMMON_COUNT = 0.1, 5  # triples in more prompts of a task than this are its wording, not its content
_CONTAINED, _ALIKE, _EXCERPT = 0.6, 0.5, 0.8
_FEW = 4  # an evaluation prompt of fewer triples than this must be contained whole
_BANDS, _ROWS = 16, 4
_SAME = 0.7


def pieces(text: str) -> list[str]:
    """Words and signs, with case, width and spacing taken out."""
    return _PIECE.findall(unicodedata.normalize("NFKC", text).casefold())


def text_hash(text: str) -> str:
    """Hash of what a text says: equal for texts that differ in case and spacing only."""
    return hashlib.sha256(" ".join(pieces(text)).encode()).hexdigest()


def prompt_text(prompt: Prompt) -> str:
    """What identifies a conversation: its system text and its first turn."""
    return f"{prompt.system}\n{prompt.turns[0]}" if prompt.system else prompt.turns[0]


def share_of_hash(*parts: str) -> float:
    """A number in [0, 1) drawn by hash, for decisions that must fall alike in every run."""
    digest = hashlib.sha256("\n".join(parts).encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64


def shingles(text: str) -> frozenset[int]:
    """64-bit hashes of all runs of three words; of the whole text where it is shorter."""
    words = pieces(text)
    last = max(len(words) - _WIDTH + 1, 1)
    return frozenset(xxhash.xxh64_intdigest(" ".join(words[i : i + _WIDTH]).encode()) for i in range(last))


@dataclass(frozen=True, slots=True)
class Match:
    """An evaluation prompt that a text repeats. ``kind`` is "same" or "near"; ``share`` of its triples are there."""

    kind: str
    task: str
    prompt: str
    share: float


@dataclass(slots=True)
class EvaluationIndex:
    """The prompts of evaluation tasks, to refuse training prompts by."""

    _hashes: dict[str, tuple[str, str]] = field(default_factory=dict)
    _names: list[tuple[str, str]] = field(default_factory=list)
    _sizes: list[int] = field(default_factory=list)
    _postings: dict[int, list[int]] = field(default_factory=dict)

    def add(self, task: str, prompts: Iterable[Prompt]) -> int:
        """Take in every turn of a task's prompts; how many prompts those were."""
        texts = [(prompt.id, turn) for prompt in prompts for turn in prompt.turns]
        sets = [shingles(text) for _, text in texts]
        counts = Counter(value for one in sets for value in one)
        limit = max(_COMMON_COUNT, _COMMON_SHARE * len(texts))
        for (name, text), found in zip(texts, sets, strict=True):
            self._hashes.setdefault(text_hash(text), (task, name))
            content = [value for value in found if counts[value] <= limit]
            if not content:
                continue
            number = len(self._names)
            self._names.append((task, name))
            self._sizes.append(len(content))
            for value in content:
                self._postings.setdefault(value, []).append(number)
        return len({name for name, _ in texts})

    def find(self, text: str) -> Match | None:
        """The evaluation prompt that ``text`` is, holds, or is a part of; the nearest where there are several."""
        same = self._hashes.get(text_hash(text))
        if same is not None:
            return Match("same", *same, 1.0)
        own = shingles(text)
        shared = Counter(number for value in own for number in self._postings.get(value, ()))
        best: Match | None = None
        for number, count in shared.items():
            size = self._sizes[number]
            near = (count >= _CONTAINED * size if size >= _FEW else count == size and size > 1) or count >= _ALIKE * (
                len(own) + size - count
            )
            excerpt = len(own) >= 2 * _FEW and count >= _EXCERPT * len(own)
            if (near or excerpt) and (best is None or count / size > best.share):
                best = Match("near", *self._names[number], count / size)
        return best


class NearDuplicates:
    """Texts seen so far; finds one that shares most of its word triples with a new one."""

    def __init__(self) -> None:
        source = np.random.Generator(np.random.PCG64(20240521))
        size = _BANDS * _ROWS
        self._factor = source.integers(1, 2**63, size=size, dtype=np.uint64) * np.uint64(2) + np.uint64(1)
        self._offset = source.integers(0, 2**63, size=size, dtype=np.uint64)
        self._buckets: dict[tuple[int, bytes], list[int]] = {}
        self._signatures: list[NDArray[np.uint32]] = []

    def __len__(self) -> int:
        return len(self._signatures)

    def find(self, text: str) -> int | None:
        """Number of an earlier text whose estimated Jaccard similarity is .7 or more; None where there is none."""
        return self._find(self._signature(text))

    def add(self, text: str) -> int | None:
        """Take a text in, unless an earlier one is like it: then the earlier one's number."""
        signature = self._signature(text)
        found = self._find(signature)
        if found is not None:
            return found
        number = len(self._signatures)
        self._signatures.append(signature)
        for key in _bands(signature):
            self._buckets.setdefault(key, []).append(number)
        return None

    def _signature(self, text: str) -> NDArray[np.uint32]:
        """[64] uint32: the least value of each of 64 hash functions over the text's triples."""
        values = np.fromiter(shingles(text), dtype=np.uint64)
        mixed = (values[:, None] * self._factor + self._offset) >> np.uint64(32)
        least: NDArray[np.uint32] = mixed.min(axis=0).astype(np.uint32)
        return least

    def _find(self, signature: NDArray[np.uint32]) -> int | None:
        seen = {number for key in _bands(signature) for number in self._buckets.get(key, ())}
        alike = [number for number in seen if np.mean(self._signatures[number] == signature) >= _SAME]
        return min(alike, default=None)


def _bands(signature: NDArray[np.uint32]) -> Sequence[tuple[int, bytes]]:
    return [(band, signature[band * _ROWS : (band + 1) * _ROWS].tobytes()) for band in range(_BANDS)]
