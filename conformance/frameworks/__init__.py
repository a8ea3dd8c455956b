"""Adapters of frameworks, one file each: the framework called as its own documentation does."""
