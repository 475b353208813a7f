"""Training of self-evaluating recursive agents (SERA, arXiv 2610.04902) in JAX."""
