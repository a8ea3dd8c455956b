"""The process of one trainer, which imports it once and forks the ranks of each case."""
