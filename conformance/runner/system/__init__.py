"""Processes, descriptors, signals, stacks, and messages between processes."""
