"""Acts: what dcr-mpi does to versions and replicas, as plain functions that take their ports."""
