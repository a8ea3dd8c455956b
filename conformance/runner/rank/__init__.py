"""Inside a rank: its environment, its imports, its reports, and how a worker enters."""
