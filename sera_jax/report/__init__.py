"""What a run did, for people: `python -m sera_jax.report runs/NAME [runs/OTHER ...]`."""
