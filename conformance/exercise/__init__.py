"""Checks somebody's answers to the gradient-averaging exercise against exact arithmetic."""
