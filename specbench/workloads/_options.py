"""Options of a load pattern: what the user may set, what a record keeps of it, and which prompts it sends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from specbench.types import Prompt


class LoadOptions(BaseModel):
    """Base of every pattern's options; its fields are the options, and unknown ones are refused.

    A default means the pattern without that feature, so that options at their defaults need not be named.

    ``shortest``: the least output limit of a request as a share of the run's; each request's is drawn evenly from there
    to the whole, by the seed and what is asked. Equal limits make the users of a closed loop finish together.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    shortest: Annotated[float, Field(gt=0, le=1)] = 1.0

    def described(self) -> dict[str, Any]:
        """What decides the arrivals, as kept in a record: JSON values, defaults left out, files by their content."""
        return self.model_dump(mode="json", exclude_defaults=True)

    def arrange(self, prompts: Sequence[Prompt]) -> tuple[Prompt, ...]:
        """The conversations of the run in the order in which they arrive, from those of its tasks."""
        return tuple(prompts)
