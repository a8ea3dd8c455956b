"""The reference trainers, one file per path: textbook loops against the public API alone. The rings share theirs."""
