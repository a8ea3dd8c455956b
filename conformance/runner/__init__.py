"""Processes: a zygote that has imported torch, an importer per trainer, a server per backend, fresh ranks per case.

`conformance.runner.front.client.ForkServer` is the front side, and the only part that other packages use.
"""
