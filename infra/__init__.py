"""Where the pipeline runs: stacks, images, manifests."""
