"""Parameters that get gradients, and that no optimizer holds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from conformance.watch import records
from conformance.watch.recording.recording import Recording

_MOST_NODES = 200_000


class Coverage:
    """Looks through the graphs of backward passes now and then: optimizers that are made later hold more, and what is
    frozen at first may be unfrozen."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._unheld: dict[int, torch.nn.Parameter] = {}

    def look(self, root: Any) -> None:
        """root: the node where a backward begins. It is looked through after 2, 4, 8 ... steps."""
        steps = sum(self._recording.steps.values())
        if steps < 2 or steps & (steps - 1):
            return
        known = self._recording.parameters.knows
        found = {id(one): one for one in _leaves(root) if not known(one)}
        held = [key for key, one in self._unheld.items() if known(one)]
        for key in held:
            del self._unheld[key]
        if found.keys() <= self._unheld.keys() and not held:
            return
        self._unheld |= found
        unheld = self._unheld.values()
        names = [self._name(one) for one in unheld]
        self._recording.note(records.Unheld(names, [list(one.shape) for one in unheld]))

    def _name(self, parameter: torch.nn.Parameter) -> str:
        # While FSDP2 has gathered it, the model holds another one in its place.
        whole = getattr(parameter, "_conformance_whole", lambda: None)()
        name = self._recording.parameters.name(parameter) or getattr(whole, "_param_fqn", None)
        return name or f"a parameter of shape {tuple(parameter.shape)}"


def _leaves(root: Any) -> Iterator[torch.nn.Parameter]:
    """The parameters that a backward from this node computes gradients for."""
    waiting, seen = [root], {root}
    while waiting and len(seen) < _MOST_NODES:
        node = waiting.pop()
        variable = getattr(node, "variable", None)
        # What FSDP2 gathers is a parameter, too, in place of the one that an optimizer holds.
        shards = getattr(variable, "_conformance_shards", None)
        parameter = variable if shards is None else shards()
        if isinstance(parameter, torch.nn.Parameter):
            yield parameter
        for following, _ in node.next_functions if node is not None else ():
            if following is not None and following not in seen:
                seen.add(following)
                waiting.append(following)
