"""What a script notes of a trainer's calls, where its numbers are right.

A script takes one of these for `watch`, which lets `seen` have a line for each call that says something.
"""

from __future__ import annotations

import hashlib
import os
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.optim.swa_utils import AveragedModel
from torch.utils._python_dispatch import TorchDispatchMode

from conformance.repro.parts.stand_in import Task
from conformance.repro.parts.values import SAMPLES


def watch(task: Task, seen: list[Any]) -> None:
    raise NotImplementedError


def around(owner: Any, name: str, before: Any = None, after: Any = None) -> None:
    """Has ``before`` called with the arguments of each call of a function, and ``after`` with its result and these."""
    call = getattr(owner, name)

    def noted(*arguments: Any, **more: Any) -> Any:
        if before is not None:
            before(*arguments, *more.values())
        result = call(*arguments, **more)
        if after is not None:
            after(result, *arguments, *more.values())
        return result

    setattr(owner, name, noted)


def autocast_type() -> str:
    return f"autocast of {torch.get_autocast_dtype('cpu')}" if torch.is_autocast_enabled("cpu") else "no autocast"


def watch_autocast(task: Task, seen: list[Any]) -> None:
    """Forwards in another precision than that of the task."""
    with task.autocast():
        wanted = autocast_type()

    def note(module: torch.nn.Module, inputs: Any, outputs: Any) -> None:
        if task.models and isinstance(module, type(task.models[0])) and module.training and autocast_type() != wanted:
            seen.append(f"a forward of {type(module).__name__} runs under {autocast_type()}, and not under {wanted}")

    register_module_forward_hook(note)


def watch_no_sync(task: Task, seen: list[Any]) -> None:
    """Forwards whose backward is under another `no_sync()` than they were."""

    def note(module: torch.nn.Module, inputs: Any, outputs: Any) -> None:
        if isinstance(module, DistributedDataParallel) and outputs.requires_grad:
            said = module.require_backward_grad_sync

            def look(gradient: torch.Tensor) -> None:
                if said and not module.require_backward_grad_sync:
                    seen.append("`no_sync()` is around a backward, but not around its forward")
                elif module.require_backward_grad_sync and not said:
                    seen.append("`no_sync()` is around a forward, but not around its backward")

            outputs.register_hook(look)

    register_module_forward_hook(note)


def watch_waiting(task: Task, seen: list[Any]) -> None:
    """What is still on its way between the ranks when an optimizer steps."""
    on_the_way: dict[Any, str] = {}

    def noting(name: str) -> None:
        around(dist.ProcessGroup, name, after=lambda work, *_: on_the_way.update({work: name}))

    for name in ("allreduce", "allgather", "reduce", "broadcast", "reduce_scatter", "send", "recv"):
        noting(name)
    around(dist.Work, "wait", before=lambda work, *_: on_the_way.pop(work, None))

    def look(*_: Any) -> None:
        seen.extend(f"`optimizer.step()` while nobody has waited for {name}" for name in on_the_way.values())
        on_the_way.clear()

    register_optimizer_step_pre_hook(look)


class Functional(TorchDispatchMode):
    """Notes functional collectives, and whether `wait_tensor` has been called for their results."""

    begun = 0

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), more: Any = None) -> Any:
        if function.namespace == "_c10d_functional":
            self.begun += -1 if "wait_tensor" in str(function) else 1
        return function(*arguments, **(more or {}))


def watch_functional_waiting(task: Task, seen: list[Any]) -> None:
    """Functional collectives that nobody has waited for when an optimizer steps."""
    mode_class: Any = Functional
    mode = mode_class()
    mode.__enter__()

    def look(*_: Any) -> None:
        if mode.begun > 0:
            seen.append(f"`optimizer.step()` while nobody has waited for {mode.begun} functional collectives")
        mode.begun = 0

    register_optimizer_step_pre_hook(look)


def watch_update(task: Task, seen: list[Any]) -> None:
    """Steps of the loss scaler after its update, in the same window."""
    is_updated = False

    def noting(name: str) -> None:
        def note(*_: Any) -> None:
            nonlocal is_updated
            if name == "step" and is_updated:
                seen.append("`scaler.step()` comes after the `scaler.update()` of its window")
            is_updated = name == "update"

        around(torch.amp.GradScaler, name, note)

    for name in ("scale", "update", "step"):
        noting(name)


def watch_unscale(task: Task, seen: list[Any]) -> None:
    """The gradients in which the loss scaler looks for overflows."""

    def note(scaler: Any, optimizer: torch.optim.Optimizer) -> None:
        parameters = [one for group in optimizer.param_groups for one in group["params"] if one.grad is not None]
        values = [float(value) for one in parameters for value in one.grad.flatten()[:4]]
        seen.append(f"looks for overflows in gradients of {', '.join(map(str, values[:8]))}")

    around(torch.amp.GradScaler, "unscale_", note)


def watch_collectives(task: Task, seen: list[Any]) -> None:
    """The collectives of a rank, in order."""

    def noting(name: str) -> None:
        def note(group: Any, tensors: Any, *_: Any) -> None:
            sizes = [list(one.shape) for one in tensors if isinstance(one, torch.Tensor)]
            seen.append(f"{name} of tensors of {sizes}")

        around(dist.ProcessGroup, name, note)

    for name in ("allreduce", "allgather", "reduce", "broadcast", "reduce_scatter"):
        noting(name)


def watch_saves(task: Task, seen: list[Any]) -> None:
    """The files that a rank writes with `torch.save`."""

    def note(content: Any, file: Any, *_: Any) -> None:
        seen.append(os.path.basename(getattr(file, "name", file)))

    around(torch, "save", note)


def watch_changes(task: Task, seen: list[Any]) -> None:
    """Weights that are others before a step than after the last one."""
    left: dict[torch.Tensor, torch.Tensor] = {}

    def look(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        for parameter, weights in left.items():
            if not torch.equal(parameter, weights):
                now, then = parameter.tolist(), weights.tolist()
                seen.append(f"weights are {now} before a step, and were {then} after the one before")
        left.clear()

    def keep(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        left.update((one, one.detach().clone()) for group in optimizer.param_groups for one in group["params"])

    register_optimizer_step_pre_hook(look)
    register_optimizer_step_post_hook(keep)


def watch_draws(task: Task, seen: list[Any]) -> None:
    """The states of the random numbers that the model draws from, before and after each forward."""

    def note(module: torch.nn.Module, *_: Any) -> None:
        if module in task.models and module.training:
            digest = hashlib.sha256(torch.get_rng_state().numpy().tobytes()).hexdigest()[:8]
            seen.append([f"random numbers of state {digest}"])

    register_module_forward_pre_hook(note)
    register_module_forward_hook(note)


def watch_states(task: Task, seen: list[Any]) -> None:
    """Weights, and what optimizers keep of them, before and after each step."""

    def note(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        parameters = [one for group in optimizer.param_groups for one in group["params"]]
        states = [{"weights": one, **optimizer.state[one]} for one in parameters]
        seen.append(
            [
                f"{name} {one.tolist()} of parameter {at}"
                for at, state in enumerate(states)
                for name, one in state.items()
                if isinstance(one, torch.Tensor)
            ]
        )

    register_optimizer_step_pre_hook(note)
    register_optimizer_step_post_hook(note)


def watch_scale(task: Task, seen: list[Any]) -> None:
    """What the loss scaler keeps, before each of its steps and after each of its updates."""

    def note(scaler: Any) -> None:
        seen.append([f"{name} of {value} in the loss scaler" for name, value in scaler.state_dict().items()])

    around(torch.amp.GradScaler, "step", before=lambda scaler, *_: note(scaler))
    around(torch.amp.GradScaler, "update", after=lambda _, scaler, *more: note(scaler))


def watch_averages(task: Task, seen: list[Any]) -> None:
    """Averages of the weights, before and after each update."""

    def note(average: AveragedModel) -> None:
        weights = [one.tolist() for one in average.module.parameters()]
        seen.append([f"an average over {int(average.n_averaged)} weights: {weights}"])

    around(
        AveragedModel, "update_parameters", lambda average, *_: note(average), lambda _, average, *more: note(average)
    )


def note_reading(task: Task, read: list[int]) -> None:
    """Lets ``read`` have the numbers of the samples that go forward for a gradient."""
    numbers = {tuple(row): number for number, row in enumerate(SAMPLES[0])}

    def note(module: torch.nn.Module, inputs: Any, outputs: Any) -> None:
        if module in task.models and outputs.requires_grad:
            read.extend(numbers[tuple(row)] for row in inputs[0].tolist())

    register_module_forward_hook(note)
