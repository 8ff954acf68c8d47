"""dcr-mpi: bring a rollout cluster's replica of a model to exactly the trainer's bits by sending what changed."""

__version__ = "0.1.0"
