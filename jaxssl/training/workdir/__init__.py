"""The folder of a run (workdir): the run's identity, lock and checkpoints."""
