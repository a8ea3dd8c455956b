"""Framework adapters, one file each: they call the framework as its own documentation does."""
