"""Stretto: an elastic scheduler for deep-learning training on shared GPU clusters."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stretto.notebook import Run, Runs, compare, simulate

__version__ = "0.1.0"
__all__ = ["Run", "Runs", "__version__", "compare", "simulate"]


def __getattr__(name: str) -> Any:
    """What notebooks use, imported when it is first asked for: `import stretto` alone loads nothing else."""
    if name in __all__:
        import stretto.notebook

        return getattr(stretto.notebook, name)
    raise AttributeError(f"module 'stretto' has no attribute {name!r}")


def __dir__() -> list[str]:
    """What completion offers."""
    return sorted({*globals(), *__all__})
