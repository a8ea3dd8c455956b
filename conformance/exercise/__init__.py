"""Checks answers to the gradient-averaging exercise against exact arithmetic."""
