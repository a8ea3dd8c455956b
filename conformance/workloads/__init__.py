"""What is trained, in exact rationals. Nothing here knows torch."""
