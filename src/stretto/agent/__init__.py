"""What runs on each node: an agent that answers over HTTP, and a supervisor for each worker that outlives it.

Where systemd starts the agent, KillMode=process is needed: else a restart of the agent ends all workers.
A file that is damaged hurts its own run only (`reading`).
Both need the standard library only, and Linux. All that they know is in the run directories, so that either
may die at any moment:

    DIR/agent.lock  token  address.json     one agent for each state directory
    DIR/epoch.json                          the newest leader that has commanded here
    DIR/runs/ID/start.json                  what was asked for; there before anything runs
               /control                     a FIFO that has a reader exactly as long as the supervisor lives
               /running.json                the process, once it is known and before it does anything
               /ended.json                  how it ended; there once no process is left
               /log                         its standard output and error
               /keeper.log                  what the supervisor has to say, if it fails
    DIR/setups/JOB.ATTEMPT/                 where the workers of an attempt note that its setup is done
    DIR/forgotten/ID/                       the same, no longer listed, until the logs of the job are deleted
"""
