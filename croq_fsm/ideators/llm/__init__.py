"""Proposals of language models, through pydantic-ai (extra ``llm``)."""

from croq_fsm.ideators.llm.ideator import LlmIdeator

__all__ = ["LlmIdeator"]
