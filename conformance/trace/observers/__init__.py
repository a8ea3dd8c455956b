"""What is observed, one file each."""
