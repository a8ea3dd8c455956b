"""Generates a first adapter: from scratch, or from a training script."""
