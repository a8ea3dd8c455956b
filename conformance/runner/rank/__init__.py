"""Runs inside a rank: its environment, imports and reports, and the entry of workers."""
