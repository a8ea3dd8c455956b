"""Trainer files, as text."""

from __future__ import annotations

ONE = """
from conformance import trainer

@trainer(backends=["single", "ddp"])
def train(task):
    return "one"
"""

TWO = (
    ONE
    + """

@trainer(backends=["ddp"], name="the other")
def other(task):
    return "other"

def helper():
    pass
"""
)
