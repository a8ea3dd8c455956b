"""The recorder of a watched process."""
