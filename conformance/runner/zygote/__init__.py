"""The process that imports torch once and forks the servers of trainers."""
