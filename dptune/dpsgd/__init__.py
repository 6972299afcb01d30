"""Private training: sampling, per-unit gradients, clipping, noise, plan, loop."""
