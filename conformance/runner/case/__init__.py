"""One case in the server: the processes of its ranks, their rendezvous, and their supervision."""
