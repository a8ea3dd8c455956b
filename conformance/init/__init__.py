"""Writing an adapter to begin with: from scratch, or out of a training script."""
