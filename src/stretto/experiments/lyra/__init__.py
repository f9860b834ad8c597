"""Tables and figures of Lyra (EuroSys 2023), made again: loaning, scaling, both, and the small testbed."""
