"""Judges what the recorders of a watched command write, while it comes in."""
