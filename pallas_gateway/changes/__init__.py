"""Changes of libraries: repairs and fast paths. The registry checks, installs, switches and closes them."""

from types import ModuleType

packages: tuple[ModuleType, ...] = ()
"""Those with the files of changes; set by the composition root, and imported when the first change is needed."""
