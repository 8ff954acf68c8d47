"""What the codec makes of synthetic and real pairs, and how fast, beside the formats of the reference systems."""
