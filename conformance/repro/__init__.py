"""A standalone script that shows why a case fails: torch, the trainer's own source, and nothing of ours."""
