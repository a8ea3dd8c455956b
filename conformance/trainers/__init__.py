"""The reference trainers, one file per path: textbook loops that use only the public API. The rings share one loop."""
