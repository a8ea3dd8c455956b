"""What the suite uses; nothing here imports torch."""
