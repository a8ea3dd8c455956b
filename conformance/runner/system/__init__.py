"""What the machine offers: processes, descriptors, signals, stacks, GPUs; and the messages between processes."""
