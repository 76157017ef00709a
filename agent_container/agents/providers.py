"""Agents that work with any model service: the kind of credential that a model's name, `provider/model`, asks for."""

from __future__ import annotations

KINDS = ("anthropic", "openai", "google", "openrouter")
"""The services, each with the name that these agents and the kinds of credential have in common."""


def credentials_of(model: str | None) -> tuple[str, ...]:
    """The provider's kind; any of them without a provider, and none for one that has no kind of its own."""
    provider, slash, _ = (model or "").partition("/")
    if not slash:
        return KINDS
    return (provider,) if provider in KINDS else ()
