"""Known bugs of trainers, one file for each kind.

Each class decorated with `fault` is a bug of the catalogue, or of the rare ones.
"""

from importlib import import_module
from pkgutil import iter_modules

from conformance.oracle.faults.catalogue import CATALOGUE as CATALOGUE
from conformance.oracle.faults.catalogue import RARE as RARE
from conformance.oracle.faults.catalogue import Fault as Fault
from conformance.oracle.faults.catalogue import applicable as applicable

for module in iter_modules(__path__):
    import_module(f"{__name__}.{module.name}")

KNOWN = (*CATALOGUE, *RARE)
