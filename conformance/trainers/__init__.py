"""The adapter API (`declaration`, `task`, `loading`) and the reference trainers, one file per path."""
