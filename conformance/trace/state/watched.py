"""Follows the parameters of the watched model wherever a trainer moves, wraps or copies them."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from threading import RLock
from typing import Any

import torch

from conformance.adapter import models
from conformance.trace.state.finding import (
    Elements,
    are_equal,
    cast_from,
    is_part,
    master_of,
    or_stepped,
    parameters_of,
    parametrized,
    parts_of,
    tensor_at,
)
from conformance.trace.state.optimizer_state import digest, held_by
from conformance.trace.tensor_values import Number, places
from conformance.workloads.model import model_of

Found = tuple[torch.Tensor | None, ...]


class Watched:
    """Knows the watched models, and the parameters that the optimizer really steps.

    spec: describes the task's model. With it, a copy of the model is recognised at first sight: it has all the model's
    shapes, and the values of the task or, after a broadcast, of rank 0. Once the task's own parameters are stepped,
    only these are watched. Without a spec, only models passed to `add` are known.
    kind: the class of the task's model.
    """

    def __init__(self, spec: Mapping[str, Any] | None = None) -> None:
        self.kind: type[torch.nn.Module] = torch.nn.Module if spec is None else models.module_class(spec)
        self._knows_copies = spec is not None
        self._spec = spec
        tensors = () if spec is None else model_of(spec).tensors
        self._elements = Elements([tensor.shape for tensor in tensors], [tensor.used for tensor in tensors])
        self._models: dict[int, weakref.ref[torch.nn.Module]] = {}
        self._unpickled: dict[int, weakref.ref[torch.nn.Module]] = {}
        self._names: tuple[str, ...] = ()
        # The number of the task's model that has each parameter.
        self._owner: dict[int, int] = {}
        self._latest: Found = ()
        self._stepped: Found | None = None
        self._numbers: dict[int, int] = {}
        # Keeps parameters alive, to prevent reuse of their identities.
        self._found: dict[int, Found] = {}
        # Parameters of copies, until the task's own parameters are stepped.
        self._copied: dict[int, Found] = {}
        self._own_went_forward = self._own_was_stepped = False
        # The task's models, kept alive because their parameters are read after the trainer has ended.
        self._own: list[torch.nn.Module] = []
        # The first weights of the last one of them.
        self._handed_out: list[Number] | None = None
        # Kept alive to prevent reuse of their identities.
        self._optimizers: list[torch.optim.Optimizer] = []
        self._stand_ins: list[torch.Tensor] = []
        # The parameters by the identity of their masters' parts.
        self._in_parts: dict[int, Found] = {}
        self._replaced: list[torch.Tensor] = []
        self._followers: list[Callable[[torch.nn.Module], None]] = []
        self.reading = RLock()
        """Locked while gradients are read or cleared: torch ends the process if one thread reads `.grad` while another
        one sets it to None."""

    def add(self, model: torch.nn.Module) -> None:
        """Watch a model. If it is watched already, read its parameters again."""
        # Removing a parametrization moves the parameter behind the others.
        places = {name: place for place, name in enumerate(self._names)}
        named: dict[str, torch.Tensor] = dict(
            sorted(model.named_parameters(), key=lambda one: places.get(one[0], len(places)))
        )
        if self._knows_copies and places and len(named) != len(places):
            named = self._of_known_names(named)
        self._names, parameters = tuple(named), tuple(named.values())
        self._models[id(model)] = weakref.ref(model)
        if self._knows_copies:
            self._own_parameters(model, parameters)
        self._copied.pop(id(model), None)
        self._latest = self._hand_out(parameters)
        if not self._knows_copies:
            self._elements = Elements([tuple(parameter.shape) for parameter in parameters], [None] * len(parameters))
        for act in self._followers:
            act(model)

    @contextmanager
    def followed_by(self, act: Callable[[torch.nn.Module], None]) -> Iterator[None]:
        """A context in which `act` is called with each model that is added, and now with all existing models."""
        for reference in self._models.values():
            if (model := reference()) is not None:
                act(model)
        self._followers.append(act)
        try:
            yield
        finally:
            self._followers.remove(act)

    def is_model(self, module: torch.nn.Module) -> bool:
        """Whether `module` is a watched model or a copy of the task's model, which is watched from now on."""
        watched = self._models.get(id(module))
        if watched is not None and watched() is module:
            return True
        if not self._knows_copies or not isinstance(module, self.kind):
            return False
        own = tuple(parameters_of(module).values())
        known = self._found.get(id(own[0])) if own else None
        if known is None and not self._is_copy(own, module):
            return False
        # With another number of parameters, as when a tied parameter has become two, the common ones identify it.
        has_all = known is None or len(own) == len(known)
        if known is not None and not self.is_copys(known):
            if has_all:
                self.add(module)
            return True
        self._models[id(module)] = weakref.ref(module)
        self._names = self._names or tuple(parameters_of(module))
        self._copied[id(module)] = self._hand_out(own, are_copies=True) if known is None or has_all else known
        for act in self._followers:
            act(module)
        return True

    def unpickled(self, module: torch.nn.Module) -> None:
        """A module was restored as a whole. If its class is the task's, it counts as a copy with any values."""
        if type(module) is self.kind and id(module) not in self._models:
            self._unpickled[id(module)] = weakref.ref(module)

    def goes_forward(self, module: torch.nn.Module) -> bool:
        """A watched model runs forward; returns whether it is a copy."""
        if id(module) not in self._copied:
            self._read_again(module)
            self._own_went_forward = True
            return False
        if not self._own_went_forward:
            self._latest = self._copied[id(module)]
        return True

    def ends(self) -> None:
        """Training has ended: the models may have new parameters, so read these again."""
        for model in self._own:
            self._read_again(model)

    def stands_for(self, whole: torch.Tensor, shard: torch.Tensor) -> None:
        """Forwards and backwards use `whole` instead of the watched parameter with this rank's `shard`."""
        if id(shard) in self._numbers and self._found.get(id(whole)) is not self._found[id(shard)]:
            self._stand_ins.append(whole)
            self._numbers[id(whole)], self._found[id(whole)] = self._numbers[id(shard)], self._found[id(shard)]

    def replaced(self, parameters: Mapping[str, torch.Tensor], model: torch.nn.Module) -> None:
        """`model` has shards instead of these `parameters`, by name. An optimizer of the old ones has no effect."""
        for name, shard in model.named_parameters():
            old = parameters[name]
            if old is not shard:
                self._replaced.append(old)
                self.stands_for(old, shard)

    def holds_replaced(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether `optimizer` has parameters that the model has replaced by shards."""
        return bool(self._replaced) and not {id(one) for one in self._replaced}.isdisjoint(map(id, held_by(optimizer)))

    def _own_parameters(self, model: torch.nn.Module, parameters: Sequence[torch.Tensor]) -> None:
        # Another module may share the parameters of a model that the task handed out.
        number = next((self._owner[id(one)] for one in parameters if id(one) in self._owner), None)
        if number is None:
            if model not in self._own:
                self._own.append(model)
                self._handed_out = self.weights(tuple(parameters))
            number = self._own.index(model)
        self._owner.update({id(parameter): number for parameter in parameters})

    def _of_known_names(self, named: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The parameters with names of the task's model, without those that a tied one was split into; all if one is
        missing."""
        known = {name: named[name] for name in self._names if name in named}
        return known if len(known) == len(self._names) else dict(named)

    def _read_again(self, model: torch.nn.Module) -> None:
        # In a functional call, a model has tensors instead of parameters.
        named = {name: one for name, one in parameters_of(model).items() if isinstance(one, torch.nn.Parameter)}
        own = list((named if len(named) == len(self._names) else self._of_known_names(named)).values())
        if all(id(one) in self._numbers for one in own):
            return
        # Originals of a parametrization may have other shapes. While torch captures the model, sizes may be symbols.
        shapes = [tuple(one.shape) for one in own]
        has_sizes = all(isinstance(size, int) for shape in shapes for size in shape)
        is_whole = not self._knows_copies or (has_sizes and sorted(shapes) == sorted(self._elements.shapes))
        if is_whole:
            self._stepped = None
            self.add(model)

    def handed_out(self, parameters: Iterable[torch.Tensor]) -> dict[str, list[int]]:
        """The field `of_models`: the numbers of the task's models that have these parameters; {} if there is only one
        model."""
        if len(self._own) < 2:
            return {}
        return {
            "of_models": sorted({self._owner[identity] for identity in map(id, parameters) if identity in self._owner})
        }

    def is_copys(self, parameters: Found | None) -> bool:
        """Whether these are the parameters of a copy of the task's model."""
        return bool(self._copied) and any(copied is parameters for copied in self._copied.values())

    @property
    def current(self) -> Found:
        """The parameters stepped or added last."""
        return self._stepped or self._latest

    @property
    def computing(self) -> Found:
        """The parameters to which backwards add gradients: `current`, or the parameters whose masters these are."""
        if (whole := self._in_parts.get(id(self.current))) is not None:
            return whole
        if self._own_went_forward:
            return tuple(self._own[0].parameters()) if self._is_ones_copy else self.current
        return self._latest if self.is_copys(self._latest) else self.current

    def model_of(self, identity: int) -> Found:
        """All parameters of the watched model that has the parameter with this `id`; () if it is not watched."""
        return self._found.get(identity, ())

    def stepped_in_parts(self, whole: Found, parts: Found) -> None:
        """A wrapper's optimizer steps `parts` of the masters of the parameters `whole`."""
        self._in_parts[id(self._hand_out(parts))] = whole

    @property
    def exchanged(self) -> Found:
        """The parameters whose values or gradients ranks exchange."""
        return self._in_parts.get(id(self.current), self.current)

    @property
    def _is_split(self) -> bool:
        """Whether the task's own parameters are split over the ranks."""
        return any(places(one) is not None for one in self._latest if one is not None)

    @property
    def _is_ones_copy(self) -> bool:
        """Whether `current` belongs to a copy, and the task handed out only one model."""
        return len(self._own) == 1 and self.is_copys(self.current)

    def numbers(self, tensors: Iterable[torch.Tensor]) -> list[int]:
        """The positions in `model.parameters()` of the watched parameters among `tensors`, sorted."""
        known = self._numbers
        return sorted({known[identity] for identity in map(id, tensors) if identity in known})

    def owners(self, gradients: Iterable[torch.Tensor]) -> list[int]:
        """The positions of the parameters whose `.grad` is among `gradients`."""
        identities = {id(gradient) for gradient in gradients}
        return [n for n, p in enumerate(self.exchanged) if p is not None and id(p.grad) in identities]

    def find(self, optimizer: torch.optim.Optimizer) -> Found | None:
        """The watched model whose parameters `optimizer` has: the task's own, else a copy. No copy of a model that is
        split over the ranks, whose own shards show the effect of steps."""
        held = held_by(optimizer)
        found = [self._found[id(parameter)] for parameter in held if id(parameter) in self._found]
        if not found and self._unpickled:
            self._look_for_unpickled(held)
            found = [self._found[id(parameter)] for parameter in held if id(parameter) in self._found]
        if self._is_split:
            return next((own for own in found if not self.is_copys(own)), None)
        if found:
            return next((own for own in found if not self.is_copys(own)), found[0]) if self._copied else found[0]
        if not self._knows_copies or self._own_was_stepped:
            return None
        candidate = self._copy_among(held)
        if candidate is None:
            return None
        self._copied[id(optimizer)] = self._hand_out(candidate, are_copies=True)
        self._optimizers.append(optimizer)
        return self._copied[id(optimizer)]

    def _look_for_unpickled(self, held: Sequence[torch.Tensor]) -> None:
        """Watch the model that was restored as a whole and has these parameters, unless the task's own has them now."""
        for model in self._own:
            self._read_again(model)
        for reference in [*self._unpickled.values()]:
            module, known = reference(), set(map(id, held))
            if module is not None and not known.isdisjoint(map(id, module.parameters())):
                self.is_model(module)

    def _is_copy(self, candidate: Found, module: torch.nn.Module) -> bool:
        """Whether the parameters of a module have the shapes of the watched model and, unless it was unpickled, the
        values of watched parameters, in any dtype."""
        if not self.is_readable or [tuple(one.shape) for one in candidate if one is not None] != self._elements.shapes:
            return False
        restored = self._unpickled.get(id(module))
        if restored is not None and restored() is module:
            return True
        return any(all(map(are_equal, candidate, found)) for found in self._known())

    def _copy_among(self, held: Sequence[torch.Tensor]) -> Found | None:
        """A copy whose parameters are among these, in any order."""
        if not self.is_readable or not {*self._elements.shapes} <= {tuple(one.shape) for one in held}:
            return None
        for found in self._known():
            rest, own = list(held), list[torch.Tensor]()
            for known in found:
                place = next((at for at, one in enumerate(rest) if are_equal(one, known) or is_part(one, known)), None)
                if place is None:
                    break
                own.append(rest.pop(place))
            else:
                return tuple(own)
        return None

    def _known(self) -> list[Found]:
        known = {id(found): found for found in (self._latest, self._start, *self._found.values())}
        return [found for found in known.values() if found]

    @cached_property
    def _start(self) -> Found:
        return () if self._spec is None else tuple(models.parameters(self._spec, 0, torch.float64))

    def stepped(self, parameters: Found) -> None:
        """The optimizer stepped these, so `weights` reads them from now on. A copy counts only until the task's own
        parameters are stepped."""
        if self.is_copys(parameters):
            self._stepped = self._stepped if self._own_was_stepped else parameters
            return
        self._stepped = parameters
        if not self._own_was_stepped:
            self._own_was_stepped = True
            for identity in [identity for identity, found in self._found.items() if self.is_copys(found)]:
                del self._found[identity], self._numbers[identity]

    def _hand_out(self, parameters: Found, *, are_copies: bool = False) -> Found:
        if are_copies and self._own_was_stepped:
            return parameters
        for number, parameter in enumerate(parameters):
            if parameter is not None:
                self._numbers[id(parameter)] = number
                self._found[id(parameter)] = parameters
        return parameters

    @property
    def is_readable(self) -> bool:
        """Whether the model uses few enough elements to read their values."""
        return self._elements.is_readable

    @property
    def size(self) -> int:
        """The number of elements of all parameters."""
        return sum(self._elements.sizes)

    def sight(self, number: int, tensor: torch.Tensor) -> list[Number]:
        """The used elements of `tensor`: the parameter `number` or its gradient."""
        return self._elements.sight(number, tensor)

    def laid_out(self, seen: Mapping[int, list[Number] | None]) -> list[Number] | None:
        """What `sight` saw of each parameter by its number, as one list like `gradients`; None for a large model."""
        return self._elements.laid_out(seen) if self.is_readable else None

    def weights(self, parameters: Found | None = None) -> list[Number] | None:
        """The values of `parameters`, by default of `current`; None for a large model."""
        if not self.is_readable:
            return None
        return self._elements.values(parameters or self.current or [None] * len(self._elements.shapes))

    def used_by(self, module: torch.nn.Module) -> Found:
        """The tensors that a forward of `module` uses, or their masters; a functional call replaces its parameters."""
        if not self.is_readable or len(self._own) > 1:
            return self.current
        # A parametrized or pruned tensor is computed from others, which have other names.
        named = zip(self._names, self.current, strict=False)
        return self._meant([self._used_at(module, name, stepped) for name, stepped in named])

    def _used_at(
        self, module: torch.nn.Module, name: str, otherwise: torch.Tensor | None = None
    ) -> torch.Tensor | None:
        # Reading a parametrization that gathers a shard would issue a collective.
        original = parametrized(module, name)
        if original is not None and id(original) in self._numbers and places(original) is not None:
            return original
        return tensor_at(module, name, otherwise)

    def may_be_rounded(self, used: Found) -> bool:
        """Whether one of these has 16 bits and is not stepped itself, so it may have masters."""
        halves = [one for one in used if one is not None and one.element_size() == 2]
        return bool(halves) and not set(map(id, halves)) <= set(map(id, self._stepped or ()))

    def final_weights(self) -> list[Number] | None:
        """The weights at the end of training; None for a large model."""
        if not self.is_readable:
            return None
        used = list(self.current)
        if self._own_went_forward and len(self._own) == 1 and not self._is_ones_copy:
            model = self._own[0]
            for number, name in enumerate(self._names[: len(used)]):
                # An attribute here is a hook's result of the last forward. A wrapped layer has another name.
                owner, _, leaf = name.rpartition(".")
                if leaf not in vars(model.get_submodule(owner)):
                    used[number] = self._used_at(model, name, used[number])
        return self.weights(self._meant(used))

    def _meant(self, used: Sequence[torch.Tensor | None]) -> Found:
        """`used`, each replaced by the master from which it was rounded, if any."""
        own = parameters_of(self._own[0]) if self._own else {}
        known = zip(used, self._names, self.current, strict=False)
        if id(self.current) in self._in_parts:
            # Parameters that are gathered only for use have no values otherwise.
            known = zip(map(or_stepped, used, self.current), self._names, self.current, strict=False)
        return tuple(
            # The quick check: mostly there is only one tensor.
            one if one is stepped is own.get(name) else master_of(one, cast_from(one), stepped, own.get(name))
            for one, name, stepped in known
        )

    def copies(self) -> list[Number] | None:
        """The weights with which the model computes, if parts of its masters were stepped last; else None."""
        whole = self._in_parts.get(id(self.current))
        return None if whole is None else self.weights(whole)

    def own_weights(self) -> list[Number] | None:
        """The weights of the task's only model, if a copy was stepped last; None otherwise or if they never changed."""
        if not self.is_readable or not self._is_ones_copy:
            return None
        found = self.weights(self._meant([self._used_at(self._own[0], name) for name in self._names]))
        return None if found == self._handed_out else found

    def held(self) -> list[int] | None:
        """The positions of the elements that this rank holds, among those of all parameters; None if no parameter is
        split over the ranks, or the model is too large to be read."""
        return self._elements.held(self.current) if self.is_readable else None

    def gradients(self, parameters: Found, scale: Any = None, only: Sequence[int] | None = None) -> list[Number] | None:
        """The values of the parameters' `.grad`, divided by `scale` if given; None for parameters not in `only`."""
        if not self.is_readable:
            return None
        gradients = [None if parameter is None else parameter.grad for parameter in parameters]
        if only is not None:
            gradients = [gradient if number in only else None for number, gradient in enumerate(gradients)]
        if scale is not None:
            gradients = [None if gradient is None else gradient / scale for gradient in gradients]
        return self._elements.values(gradients)

    def flat_gradients(self, others: Sequence[torch.Tensor]) -> list[Number] | None:
        """The `.grad` of tensors outside the model, if they have as many elements as its parameters; else None."""
        parts = parts_of([one.grad for one in others if one.grad is not None], self._latest)
        return None if parts is None or not self.is_readable else self._elements.values(parts)

    def state(self, optimizer: torch.optim.Optimizer) -> str | None:
        """A digest of the optimizer's state; None for a large model or an optimizer without the attribute `state`."""
        return digest(optimizer) if self.is_readable and hasattr(optimizer, "state") else None
