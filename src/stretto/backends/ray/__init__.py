"""Workers on a Ray cluster: what holds their GPUs is Ray's, what runs them is ours.

    service process                  gateway process          each Ray node
    RayBackend -- lines of JSON --   Cluster -- Ray --   a node agent actor: starts, watches and shows workers
                                                         placeholders: one a worker, in its placement group

Ray ends a process that has lost its cluster for a minute, takes its signals and starts threads in it. So the
service never connects itself: its gateway does, and is started anew whenever it is gone.
"""
