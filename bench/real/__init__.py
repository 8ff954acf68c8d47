"""Real pairs: a pretrained transformer, fine-tuned; its bf16 weights before and after, as sharded HDF5 checkpoints."""
