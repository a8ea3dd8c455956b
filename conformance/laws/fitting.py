"""Adapts a law's fix to the run: its scaler, clipping, autocast and averaging."""

from __future__ import annotations

import re
import textwrap

from conformance.laws.subjects import Run
from conformance.trace.events import Clip, LossScaled, ScalerStep, Unscale, Update, Wrap

#: Lines of loops with a GradScaler, which are removed or replaced where there is none.
_ONLY_SCALED = re.compile(r"^ *(scaler\.(unscale_|update)\(.*|scale = scaler\.get_scale\(\))\n?", re.MULTILINE)
_IF_TAKEN = re.compile(r"^(?P<indent> *)if scaler\.get_scale\(\) >= scale:.*\n +(?P<then>.*)", re.MULTILINE)
_SCALED_LOSS = re.compile(r"scaler\.scale\((?P<loss>.*)\)\.backward\(\)")
_SCALED_STEP = re.compile(r"scaler\.step\((?P<optimizer>\w+)\)")
_CLIP = re.compile(r"clip_grad_norm_\((?P<parameters>[\w.()]+), [\w.]+\)")
_WITH_DDP = re.compile(
    r"for number, batch in enumerate\(.*\):\n    with nullcontext\(\) .*\.no_sync\(\):\n(?P<body>(?: {8}.*\n?)+)"
)
_BY_HAND = """
for parameter in model.parameters():  # after the last backward of the window, before clipping
    dist.all_reduce(parameter.grad)
    parameter.grad /= dist.get_world_size()
"""
_SHARDED = r"""for number, batch in enumerate(window, start=1):
    model.set_requires_gradient_sync(number == len(window))
"""
_BY_ENGINE = """for number, batch in enumerate(window, start=1):
    engine.set_gradient_accumulation_boundary(number == len(window))
    engine.backward(criterion(engine(batch.inputs), batch.targets))  # divides by gradient_accumulation_steps
    engine.step()
"""
_REDUCED = re.compile(r"^(?P<indent> *)dist\.all_reduce\(parameter\.grad\)", re.MULTILINE)
_AVERAGED = re.compile(r"dist\.all_reduce\(parameter\.grad\)\n *parameter\.grad /= dist\.get_world_size\(\)")
_FOUND = "DistributedDataParallel averages those that it found trainable"
_HOOKED = "DistributedOptimizer averages those that were trainable when it was created"
_BROADCAST = re.compile(r"for tensor in model\.state_dict\(\)\.values\(\):\n *dist\.broadcast\(tensor, src=0\).*")
_UNFROZEN = r"""\g<indent>if not parameter.requires_grad:
\g<indent>    continue
"""
_UNUSED = r"""\g<indent>if parameter.grad is None:  # this rank has not used it
\g<indent>    parameter.grad = torch.zeros_like(parameter)
"""
_AUTOCAST = re.compile(r"dtype=torch\.b?float16")


def fitted(fix: str, run: Run) -> str:
    """``fix`` for this run: without a GradScaler if the run neither has nor needs one, with the run's clip and
    autocast, and averaged as the run averages: by DDP, by hand, by FSDP2, Horovod or DeepSpeed."""
    plan = run.plan
    has_scaler = any(rank.of(kind) for rank in run.ranks for kind in (LossScaled, ScalerStep, Unscale, Update))
    if not has_scaler and not plan.precision.scaled:
        fix = _ONLY_SCALED.sub("", fix)
        fix = _IF_TAKEN.sub(r"\g<indent>\g<then>", fix)
        fix = _SCALED_LOSS.sub(r"\g<loss>.backward()", fix)
        fix = _SCALED_STEP.sub(r"\g<optimizer>.step()", fix)
    if plan.backend == "ddp" and not any(rank.of(Wrap) for rank in run.ranks):
        fix = _WITH_DDP.sub(_averaged_by_hand, fix)
    has_frozen = any(tensor.frozen for tensor in plan.model.tensors)
    guards = _UNFROZEN * has_frozen + _UNUSED * plan.model.may_go_unused
    fix = _REDUCED.sub(guards + r"\g<0>", fix)
    if plan.backend == "horovod":
        fix = fix.replace(_FOUND, _HOOKED)
        fix = _AVERAGED.sub("hvd.allreduce_(parameter.grad, op=hvd.Average)", fix)
        fix = _BROADCAST.sub("hvd.broadcast_parameters(model.state_dict(), root_rank=0)", fix)
    if plan.backend == "deepspeed":
        fix = _WITH_DDP.sub(_BY_ENGINE, fix)
    elif any(rank.shard is not None for rank in run.ranks):
        fix = _WITH_DDP.sub(lambda loop: _SHARDED + textwrap.indent(textwrap.dedent(loop["body"]), " " * 4), fix)
    kinds = {clip.kind for rank in run.ranks for clip in rank.of(Clip)}
    if plan.clip is not None:
        kinds = {plan.clip["kind"]}
    if kinds == {"value"}:
        fix = _CLIP.sub(r"clip_grad_value_(\g<parameters>, clip_value)", fix)
    if plan.precision.mixed:
        fix = _AUTOCAST.sub(f"dtype=torch.{plan.precision.compute.dtype}", fix)
    return fix.strip("\n")


def _averaged_by_hand(loop: re.Match[str]) -> str:
    lines = [line[4:].partition("  #")[0] for line in loop["body"].splitlines()]
    return "\n".join(["for batch in window:", *lines]) + _BY_HAND
