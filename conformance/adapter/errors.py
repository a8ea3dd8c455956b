"""What can be wrong with a target."""

from __future__ import annotations

from conformance.adapter.declaration import Declaration


class TrainerError(Exception):
    """A target that cannot be used; the message is one line that says what is wrong and what to do."""

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))


class MissingRequirement(TrainerError):
    """A trainer that cannot be imported here, because a module that it declares under `requires` is missing.

    `declaration` was read from the source; `module` is the missing one.
    """

    def __init__(self, message: str, declaration: Declaration, module: str) -> None:
        super().__init__(message)
        self.declaration = declaration
        self.module = module
