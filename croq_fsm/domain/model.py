"""Base of all values that are stored as JSON: frozen, strict about unknown fields."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Value(BaseModel):
    """An immutable value. Unknown fields are an error, so that old code never guesses."""

    model_config = ConfigDict(frozen=True, extra="forbid")
