"""The state of a recorder: watched parameters, numbers of objects, sites."""
