"""How well children are confined, in words that can be compared."""

from __future__ import annotations

from enum import IntEnum


class Level(IntEnum):
    """Strength of the sandbox; each level holds all below it.

    NONE: children run as their user.
    LIMITS: they gain no privileges, have none of root's, and their number, files and output are
        bounded.
    NO_NETWORK: they also reach no network and no other process.
    FULL: they also see the system, the toolchains and their own folder only, and change nothing
        outside that folder.
    """

    NONE = 0
    LIMITS = 1
    NO_NETWORK = 2
    FULL = 3

    @property
    def title(self) -> str:
        """The name that the configuration uses: ``none``, ``limits``, ``no-network``, ``full``."""
        return self.name.lower().replace("_", "-")

    @classmethod
    def named(cls, title: str) -> Level:
        """The level of a configured name. Raises KeyError for an unknown one."""
        return cls[title.upper().replace("-", "_")]
