"""Runs the agent of this machine: `python -m stretto.agent --state DIR --node NAME --gpus N`."""

import sys

from stretto.agent.agent import main

if __name__ == "__main__":
    sys.exit(main())
