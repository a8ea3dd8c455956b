"""The kinds of event that a rank reports, one class each: when it is noted, its fields, and its label for people.

A trace contains events as JSON objects with these fields; `read` turns one into an instance of its class. The recorder
(`conformance.trace.recorder`) writes them. When a rank has ended, `conformance.trace.hindsight` adds the fields that
need the whole trace. `python -m tools.trace_schema` generates the tables of TRACE.md and trace-schema.json from here.

Weights and gradients are those of the watched model: all elements of its parameters, in the order of
``model.parameters()``, null where there is no value. The whole vector is null for models of more than 4096 elements.
``parameters`` are positions in ``model.parameters()``; optimizers, scalers, schedulers and models are numbered in order
of first sight.
"""

# ruff: noqa: F403, I001
# In the order of a run, which `KINDS` and the tables keep.
from conformance.trace.events.event import *
from conformance.trace.events.beginning import *
from conformance.trace.events.passes import *
from conformance.trace.events.steps import *
from conformance.trace.events.event_lines import *
