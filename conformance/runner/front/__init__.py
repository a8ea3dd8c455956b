"""The front side of the runner, which the suite uses. Imports no torch."""
