"""Inside a rank: its environment, what it imports, what it reports, and how a worker enters."""
