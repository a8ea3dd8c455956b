"""The process that imports torch once, and from which the servers of trainers are forked."""
