"""Forward noise: hidden states that a server may see, and training on them."""
