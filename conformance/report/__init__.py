"""Results and traces as HTML, in the terminal, and for Perfetto."""
