"""Results and traces as HTML and in the terminal."""
