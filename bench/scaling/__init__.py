"""A refit of many ranks and sites as a discrete-event simulation, beside the formulas of ``dcr plan`` and a real
relay."""
