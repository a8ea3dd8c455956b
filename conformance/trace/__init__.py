"""The record of what a rank did: kinds of events, and the recorder that notes them."""
