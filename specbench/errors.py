"""Errors that a user can cause. Each says what is wrong, what was seen and what to do, in one line.

The command line prints them without a traceback and exits with code 2. ``assert`` is kept for invariants of
our own.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class SpecbenchError(Exception):
    """Base of every error that a user can cause or mend."""


class ConfigError(SpecbenchError):
    """A run, sweep or option is contradictory, out of range or misspelt."""


class UnknownNameError(SpecbenchError):
    """A method, task, target, metric or option does not exist. Names the nearest one."""


class TaskError(SpecbenchError):
    """A task file or data set cannot be read or is malformed."""


class TargetError(SpecbenchError):
    """The target model cannot be resolved, loaded or served by the engine."""


class DrafterError(SpecbenchError):
    """A drafter cannot be loaded or does not belong to the target."""


class CheckpointError(DrafterError):
    """A checkpoint is of an unknown or unsupported format, incomplete or damaged."""


class RecordError(SpecbenchError):
    """A record or results folder cannot be read, written or reproduced."""


class NewerSchemaError(RecordError):
    """A record was written by a newer version of this tool, whose meaning is not known here."""


class TrainDataError(SpecbenchError):
    """Training data or features cannot be read, are unfinished, damaged or belong to other settings."""


class CapacityError(SpecbenchError):
    """A request or run does not fit the memory, context or disk that it was given."""


def unknown_name(kind: str, name: str, known: Iterable[str]) -> UnknownNameError:
    """The error for a name that is not registered, with the nearest known names.

    ``kind`` is the word for the thing ("method", "task"); ``known`` the registered names.
    """
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(names) or 'none'}"
    return UnknownNameError(f"unknown {kind} '{name}'; {hint}")
