"""Adds what only a whole trace shows: the place of events in the plan, and weights joined over the ranks."""
