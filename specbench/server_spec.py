"""What a run is told of the server that answers it: where it is, or how it is started. No torch here."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from specbench.secrets_in_text import masked_command

ANY_METHOD = "*"


def _urls(value: object) -> object:
    """``URL``, or texts ``METHOD=URL`` and ``URL``, or a table."""
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, list | tuple):
        return value
    found: dict[str, str] = {}
    for text in map(str, value):
        method, equals, url = text.partition("=")
        named = bool(equals) and "/" not in method and ":" not in method
        name = method.replace("_", "-") if named else ANY_METHOD
        if name in found:
            raise ValueError(f"two servers for {'any method' if name == ANY_METHOD else name}; give one")
        found[name] = url if named else text
    return found


def _texts(value: object) -> object:
    return tuple(value.split()) if isinstance(value, str) else value


class ServerSpec(BaseModel):
    """A server that runs (``base_url``, by method or for any), or one that is started for each method (``launch``).

    ``python`` is the interpreter of the engine's environment, ``weights`` a file that replaces the target's folder
    there (llama.cpp wants a GGUF), ``args`` further flags for the engine. ``timeout`` ends a request whose server is
    silent for that many seconds; one that is refused or put off is sent ``tries`` times at most.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    base_url: Annotated[dict[str, str], BeforeValidator(_urls)] = {}
    launch: str | None = None
    model: str | None = None  # as the server calls it; None: the only one that it has
    endpoint: Literal["completions", "chat"] = "completions"
    api_key_env: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")] = "SPECBENCH_API_KEY"
    python: str | None = None
    weights: str | None = None
    args: Annotated[tuple[str, ...], BeforeValidator(_texts)] = ()
    timeout: Annotated[float, Field(gt=0)] = 300.0
    start_timeout: Annotated[float, Field(gt=0)] = 900.0
    tries: Annotated[int, Field(ge=1)] = 3

    @model_validator(mode="after")
    def _consistent(self) -> ServerSpec:
        if self.base_url and self.launch is not None:
            raise ValueError("base_url names a server that runs and launch starts one; give one of the two")
        for url in self.base_url.values():
            if not url.startswith(("http://", "https://")):
                raise ValueError(f"'{url}' is no address of a server; write for example http://127.0.0.1:8000")
        for name in ("python", "weights", "args"):
            if getattr(self, name) and self.launch is None:
                raise ValueError(f"server.{name} is for a server that is started; add --launch, or drop it")
        return self

    @property
    def given(self) -> bool:
        """Whether any server is named."""
        return bool(self.base_url) or self.launch is not None

    def url_for(self, method: str) -> str | None:
        """The running server for a method; None where there is none."""
        return self.base_url.get(method, self.base_url.get(ANY_METHOD))

    def serves(self, method: str, *, among: int) -> bool:
        """Whether a method has a server of its own: one that serves any is one method's, if others are run too."""
        return self.launch is not None or method in self.base_url or (ANY_METHOD in self.base_url and among == 1)

    def content(self) -> dict[str, Any]:
        """What decides a cell: neither addresses and paths of this machine, nor patience, nor a key."""
        held = self.model_dump(mode="json", include={"launch", "model", "endpoint", "args"}, exclude_defaults=True)
        return {**held, "args": masked_command(self.args)} if self.args else held
