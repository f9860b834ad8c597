"""Tests that are coroutines have a loop of their own. A conftest takes the hook over by importing it."""

import asyncio
import inspect

import pytest

LONGEST_S = 400.0  # of one test, whose single waits are shorter


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters}
    asyncio.run(asyncio.wait_for(pyfuncitem.obj(**arguments), LONGEST_S))
    return True
