"""What only a whole trace shows: where in the plan an event is, and which events of several ranks belong together."""
