"""Judges the records of a watched command while they come in."""
