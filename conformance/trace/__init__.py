"""What really happened in a rank: event kinds, and the recorder that notes them."""
