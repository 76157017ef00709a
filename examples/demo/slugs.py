"""Slugs for the articles of a small web site."""

from __future__ import annotations


def slugify(title: str) -> str:
    """The part of an article's address that comes from its title: lower case, words joined by `-`."""
    return title.lower().replace(" ", "-")


def unique(slug: str, taken: set[str]) -> str:
    """The slug, or the first of slug-2, slug-3, ... that nobody has."""
    if slug not in taken:
        return slug
    number = 2
    while f"{slug}-{number}" in taken:
        number += 1
    return f"{slug}-{number}"
