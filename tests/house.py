"""`benchmarks/house.py` as a module: tests hold what it counts."""

import importlib.util
from functools import cache
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[1]


@cache
def house() -> ModuleType:
    """The counts; loaded from its file, since benchmarks are no package."""
    spec = importlib.util.spec_from_file_location("house", ROOT / "benchmarks" / "house.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
