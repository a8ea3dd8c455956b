"""The report of a watch: one HTML page that needs no other file."""
