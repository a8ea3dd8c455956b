"""The zygote, which imports torch once and forks the servers of trainers."""
