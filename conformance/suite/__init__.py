"""The pytest suite that users run: ``pytest --pyargs conformance.suite --trainer my_trainer.py``."""
