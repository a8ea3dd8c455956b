"""Runs one case in the server: its ranks' processes, rendezvous and supervision."""
