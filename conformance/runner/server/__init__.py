"""The process of one trainer and backend, which forks the ranks of each case."""
