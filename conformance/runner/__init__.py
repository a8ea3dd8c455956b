"""Processes: a zygote that has imported torch, an importer per trainer, a server per backend, fresh ranks per case.

The front side is `conformance.runner.front.client.ForkServer`, the only part for other packages.
"""
