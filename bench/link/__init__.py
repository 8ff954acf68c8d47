"""A refit over links of a known rate, beside the full transfer over the same links: ``python -m bench.link``."""
