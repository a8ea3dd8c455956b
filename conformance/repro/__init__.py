"""Generates a standalone script that shows why a case fails: only torch and the trainer's own source."""
