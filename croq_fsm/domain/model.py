"""Base of all values that are stored as JSON: frozen, strict about unknown fields."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Value(BaseModel):
    """An immutable value. Unknown fields are an error, so that old code never guesses.

    Numbers are finite: JSON has no other, and what cannot be read back must not be stored.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
