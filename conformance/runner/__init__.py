"""Processes: a zygote that has imported torch, a server forked from it per trainer, fresh ranks per case.

`conformance.runner.front.client.ForkServer` is the front side, and the only part that other packages use.
"""
