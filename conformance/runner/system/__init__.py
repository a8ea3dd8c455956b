"""Processes, descriptors, signals, stacks, GPUs, and the messages between processes."""
