"""What a server is started with, whatever the engine: what is asked for, the command for it, and its refusal."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from specbench.errors import ConfigError, DrafterError, TargetError
from specbench.secrets_in_text import masked_command

HOST = "127.0.0.1"
SERVED_NAME = "specbench"  # what a server that we start calls its model


@dataclass(frozen=True, slots=True)
class LaunchAsk:
    """A server for one method. ``model`` and ``drafter`` lie on this disk; ``scratch`` takes what the engine leaves."""

    method: str
    draft_length: int
    model: Path
    drafter: Path | None
    options: Mapping[str, Any]
    port: int
    device: str
    dtype: str
    threads: int
    rows: int
    max_context: int
    python: str
    scratch: Path
    weights: Path | None = None
    args: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Launch:
    """A command, and the variables that it needs beside the process's own."""

    argv: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)

    def shown(self, ask: LaunchAsk) -> list[str]:
        """The flags as a record keeps them: paths go by their last part, the port and keys do not get there."""
        names = {str(p): p.name for p in (ask.model, ask.drafter, ask.weights, ask.scratch) if p is not None}
        found = []
        for text in self.argv[1:]:
            for path, name in names.items():
                text = text.replace(path, name)
            found.append("PORT" if text == str(ask.port) else text)
        return masked_command(found)


class ServerEngine(Protocol):
    """An engine that can be started. A module ``specbench.serving.engines.NAME`` sets ``PLUGIN`` to one."""

    @property
    def name(self) -> str:
        """As `ServerTrace.engine` calls it."""
        ...

    @property
    def distributions(self) -> Sequence[str]:
        """Any of these is the engine's package."""
        ...

    @property
    def methods(self) -> Sequence[str]:
        """The methods that it can be started with."""
        ...

    def check(self, ask: LaunchAsk) -> None:
        """Errors: DrafterError, ConfigError for what the engine lacks or does not know, before anything is started."""
        ...

    def launch(self, ask: LaunchAsk) -> Launch:
        """The command for it."""
        ...


def check_method(engine: ServerEngine, ask: LaunchAsk, *, options: Mapping[str, Sequence[str]]) -> None:
    """What is the same for all engines: the method is known, has its checkpoint, and takes the options given.

    Errors: DrafterError, ConfigError.
    """
    if ask.method not in engine.methods:
        known = ", ".join(engine.methods)
        raise DrafterError(f"{engine.name} has no method '{ask.method}' that can be launched; it has {known}")
    known_options = options.get(ask.method, ())
    for name in ask.options:
        if name not in known_options:
            takes = ", ".join(known_options) or "none"
            raise ConfigError(f"option '{name}' of {ask.method} has no place in {engine.name}; it takes: {takes}")
    if ask.method in ("draft-model", "eagle3", "dflash", "dspark") and ask.drafter is None:
        raise DrafterError(f"{engine.name} needs the checkpoint of {ask.method}; give --drafter {ask.method}=PATH")


def stated_dtype(ask: LaunchAsk) -> str:
    """As engines call it: what is not told follows from the weights."""
    return "auto" if ask.dtype == "unknown" else ask.dtype


def engine_version(engine: ServerEngine, python: str) -> str:
    """The version of the engine in the interpreter's environment, by its package's metadata.

    Errors: TargetError when the interpreter does not run or has no such package.
    """
    code = (
        "import importlib.metadata as m, json\nfound = {}\n"
        f"for name in {list(engine.distributions)!r}:\n"
        "    try: found[name] = m.version(name)\n"
        "    except m.PackageNotFoundError: pass\nprint(json.dumps(found))"
    )
    try:
        done = subprocess.run(
            [python, "-c", code], capture_output=True, text=True, timeout=60, check=True, stdin=subprocess.DEVNULL
        )
        found: dict[str, str] = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        last = (str(getattr(error, "stderr", "") or "").strip() or str(error)).splitlines()[-1]
        raise TargetError(
            f"{python} cannot be asked for {engine.name}: {last[:160]}; correct --engine-python"
        ) from error
    if not found:
        wanted = " or ".join(engine.distributions)
        raise TargetError(
            f"{python} has no {engine.name} (package {wanted}); install it there, or give --engine-python"
        )
    return next(iter(found.values()))
